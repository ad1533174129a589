//! New nodes and restarts: pods wait until all that a node must have was heard of.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, taint};
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::bed::{is_tainted, taints, until_counted};
use super::busy::{BARE, Busy};
use crate::scene::{SOON, Scene, annotated, free_port, is_ready};

/// A cluster that has no admission policy of ours.
fn own_control_plane() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let own = OWN.get_or_init(ControlPlane::start);
    own.as_ref().map_err(Clone::clone)
}

fn three(optional: bool) -> serde_json::Value {
    let mut extensions = vec![
        json!({ "name": "a", "lease": {} }),
        json!({ "name": "b", "lease": {} }),
        json!({ "name": "c", "lease": {} }),
    ];
    if optional {
        extensions.push(json!({ "name": "log", "lease": {}, "affectsReadiness": false }));
    }
    json!({ "extensions": extensions })
}

/// A kubelet asks for its Node at each of its starts. Our own policies meet in that request: one puts the taint on, and who holds it,
/// the other keeps kubelets from writing what only the operator writes.
#[tokio::test]
async fn a_kubelet_registers_its_node_where_a_rule_selects_it_and_asks_again_when_it_starts()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("kubelet").await?;
    scene.prepare_readiness()?;
    scene.let_agents_in()?;
    scene.rule("three", three(false)).await?;
    let name = format!("{}-real", scene.name);
    let login = scene.control_plane.kubeconfig_for_node(&name)?;
    let kubelet: Api<Node> = Api::all(login.client().await?);
    let node = |annotations: serde_json::Value| {
        let node = json!({ "metadata": {
            "name": name, "labels": { "place": scene.name }, "annotations": annotations,
        } });
        serde_json::from_value(node).doing(|| "no Node")
    };
    let register = async |annotations| {
        let node = node(annotations)?;
        match kubelet.create(&PostParams::default(), &node).await {
            Ok(made) => Ok(Ok(made)),
            Err(kube::Error::Api(status)) => Ok(Err((status.code, status.message.clone()))),
            Err(error) => Err(Error::because("cannot ask", error)),
        }
    };
    let all: Api<Node> = Api::all(scene.client.clone());
    let made = until_async("both policies to be followed", SOON, async || {
        let lie = register(json!({ annotation::VOUCHER: "rendered-x" })).await?;
        let truth = register(json!({})).await?;
        if let (Err((403 | 422, _)), Ok(made)) = (&lie, &truth)
            && is_tainted(made)
        {
            return Ok(Look::Found(made.clone()));
        }
        let gone = all.delete(&name, &DeleteParams::default()).await;
        drop(gone);
        Ok(Look::NotYet(format!("{lie:?}, {truth:?}")))
    })
    .await?;
    let owner = scene.called("three");
    assert_eq!(
        annotated(&made, annotation::READINESS_OWNERS),
        Some(owner.as_str())
    );
    let again = register(json!({})).await?;
    assert!(matches!(again, Err((409, _))), "{again:?}");
    // Afterwards it is the operator's.
    let other = json!({ "metadata": { "annotations": { annotation::READINESS_OWNERS: null } } });
    let taken = kubelet
        .patch(&name, &PatchParams::default(), &Patch::Merge(other))
        .await;
    assert!(
        matches!(&taken, Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422)),
        "{taken:?}"
    );
    let gone = all.delete(&name, &DeleteParams::default()).await;
    gone.map(|_| ()).doing(|| "cannot delete the Node")
}

/// Covers R02, R09, R13, R14.
#[tokio::test]
async fn a_new_node_has_the_taint_from_its_creation_until_the_last_extension_reports() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("boot").await?;
    scene.prepare_readiness()?;
    scene.rule("three", three(true)).await?;
    // A policy that was just made is followed a moment later.
    until_async(
        "the policy to be followed",
        Duration::from_secs(30),
        async || {
            let probe = scene
                .describe("probe")
                .start(&scene.control_plane.admin_kubeconfig())
                .await?;
            let seen = scene.node(probe.name()).await?;
            probe
                .delete(&scene.control_plane.admin_kubeconfig())
                .await?;
            Ok(if is_tainted(&seen) {
                Look::Found(())
            } else {
                Look::NotYet("no taint".to_owned())
            })
        },
    )
    .await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let busy = Busy::look(&scene);
    let rounds = if is_soak() { 100 } else { 2 };
    let mut took = Vec::new();
    // What a busy machine spoils is measured again.
    let mut boots = 0;
    while boots < rounds || (took.len() <= rounds && boots < 4 * rounds) {
        boot(&scene, boots, &busy, &mut took).await?;
        boots += 1;
    }
    took.sort();
    let (valid, p99) = (took.len(), took.get((took.len() * 99).div_ceil(100) - 1));
    println!(
        "proof: {} boots, half of them new nodes and half reboots of ours: no pod bound early; released within {p99:?} (p99 of {valid}) of the last report",
        2 * boots
    );
    assert!(
        valid > rounds,
        "this machine is too busy to measure anything"
    );
    assert!(
        p99.is_some_and(|it| *it < Duration::from_secs(1)),
        "{took:?}"
    );

    // With the startup taint whoever is to run there tolerates that one, too.
    let with = json!({ "spec": { "autoscalerStartupTaint": true } });
    scene.edit_rule("three", with).await?;
    let node = scene.start(scene.describe("scaled")).await?;
    let seen = scene.tainted(node.name(), true).await?;
    assert_eq!(
        taints(&seen),
        [taint::META_READINESS, taint::AUTOSCALER_STARTUP]
    );
    for extension in ["a", "b", "c"] {
        scene
            .renew(node.name(), extension, SignedDuration::ZERO)
            .await?;
    }
    let seen = scene.tainted(node.name(), false).await?;
    assert_eq!(taints(&seen), Vec::<String>::new());
    Ok(())
}

/// A pod that waits for `node`, and not for one that the scheduler still believes in after it was deleted;
/// `tolerates` only our taint, or nothing.
async fn waiting(scene: &Scene, name: &str, node: &str, tolerates: bool) -> Result<()> {
    let mut spec = scene.spec(1);
    spec["nodeSelector"]["kubernetes.io/hostname"] = json!(node);
    spec["tolerations"] = if tolerates {
        json!([{ "key": taint::META_READINESS, "operator": "Exists" }])
    } else {
        json!([])
    };
    let pod = json!({ "metadata": { "name": name }, "spec": spec });
    scene.create::<Pod>(pod).await.map(|_| ())
}

/// A node that is new, and then rebooted by us: nobody is bound to it before its last extension reports.
async fn boot(scene: &Scene, number: usize, busy: &Busy, took: &mut Vec<Duration>) -> Result<()> {
    let (early, tolerant) = (format!("early-{number}"), format!("tolerant-{number}"));
    let name = format!("{}-n{number}", scene.name);
    waiting(scene, &early, &name, false).await?;
    waiting(scene, &tolerant, &name, true).await?;
    let node = scene.start(scene.describe(&format!("n{number}"))).await?;
    assert_eq!(node.name(), name);
    let seen = scene.node(&name).await?;
    assert_eq!(taints(&seen), [taint::META_READINESS]);
    assert_eq!(
        annotated(&seen, annotation::READINESS_OWNERS),
        Some(scene.called("three").as_str())
    );
    scene.ready(&format!("metadata.name={tolerant}"), 1).await?;
    took.extend(report(scene, &name, &early, busy).await?);

    // It is rebooted by us: drained first, and tainted before it goes down.
    let again = format!("again-{number}");
    scene.ask(&name, &format!("drain-{number}")).await?;
    let seen = scene.answered(&name, &format!("drain-{number}")).await?;
    assert!(is_tainted(&seen), "before it goes down: {}", scene.log());
    waiting(scene, &again, &name, false).await?;
    node.restart_machine().await?;
    scene.ask(&name, &format!("uncordon-{number}")).await?;
    let seen = scene.answered(&name, &format!("uncordon-{number}")).await?;
    assert_ne!(seen.spec.and_then(|it| it.unschedulable), Some(true));
    took.extend(report(scene, &name, &again, busy).await?);
    // The others went with the drain.
    let gone = scene
        .pods()
        .delete(&again, &kube::api::DeleteParams::default().grace_period(0))
        .await;
    gone.doing(|| "cannot delete a pod")?;
    node.delete(&scene.control_plane.admin_kubeconfig()).await
}

/// All three report, and the pod is bound after the last; how long the release took, if that could be measured.
async fn report(scene: &Scene, node: &str, early: &str, busy: &Busy) -> Result<Option<Duration>> {
    busy.slowest();
    let mut reported = Instant::now();
    for extension in ["a", "b", "c"] {
        let seen = scene.node(node).await?;
        assert!(is_tainted(&seen), "before {extension}: {}", scene.log());
        let pod = scene.pods().get(early).await.doing(|| "no pod")?;
        let bound = pod.spec.and_then(|it| it.node_name);
        assert_eq!(bound, None, "{early} on {node} before {extension}");
        reported = Instant::now();
        scene.renew(node, extension, SignedDuration::ZERO).await?;
    }
    let seen = scene.tainted(node, false).await?;
    let took = reported.elapsed();
    assert_eq!(
        taints(&seen),
        Vec::<String>::new(),
        "an optional one that never came changes nothing"
    );
    assert_eq!(annotated(&seen, annotation::READINESS_OWNERS), None);
    scene.ready(&format!("metadata.name={early}"), 1).await?;
    Ok((busy.slowest() < BARE).then_some(took))
}

/// Covers R02, R03, R06.
#[tokio::test]
async fn a_restart_takes_the_node_back_and_its_pods_are_left_alone() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("restart").await?;
    scene.prepare_readiness()?;
    let node = scene.describe("n1").lease_interval(Duration::from_secs(2));
    let node = scene.start(node).await?;
    let name = node.name().to_owned();
    let labelled =
        |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "plugin" });
    scene.pod(&name, "plugin", labelled).await?;
    let bystander = scene.pod(&name, "bystander", |_| {}).await?;
    let pods =
        json!({ "namespace": scene.name, "selector": { "matchLabels": { "app": "plugin" } } });
    scene
        .rule(
            "pods",
            json!({ "extensions": [{ "name": "plugin", "pods": pods }] }),
        )
        .await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    scene.report(&name, &node.boot_id(), "start-1").await?;
    scene
        .rule_status("pods", |it| it["nodes"]["ready"] == 1)
        .await?;
    assert!(!is_tainted(&scene.node(&name).await?));

    let mut starts = 1;
    let is_soon = |took: &Duration| *took < Duration::from_secs(2);
    kept_async(
        "a restart is noticed within two seconds",
        is_soon,
        async || {
            starts += 1;
            let restarted = Instant::now();
            let start = format!("start-{starts}");
            scene.report(&name, &node.boot_id(), &start).await?;
            scene.tainted(&name, true).await?;
            let noticed = restarted.elapsed();
            // The pod stayed ready throughout: it counts ten seconds after the kubelet was heard again.
            scene.tainted(&name, false).await?;
            let released = restarted.elapsed();
            assert!(released > Duration::from_secs(10), "{released:?}");
            Ok(noticed)
        },
    )
    .await?;

    // A reboot that nobody announced: the kubelet's new boot id tells, and the pod starts anew.
    node.restart_machine().await?;
    scene.event(&name, "NodeNotReady").await?;
    scene.tainted(&name, false).await?;
    let after = scene.pods().get("bystander").await.doing(|| "no pod")?;
    assert_eq!(
        after.metadata.uid, bystander.metadata.uid,
        "whoever runs there runs on"
    );
    assert!(is_ready(&after));
    Ok(())
}

/// Covers R02.
#[tokio::test]
async fn without_an_admission_policy_a_new_node_is_tainted_at_once_and_that_is_counted()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = own_control_plane()?;
    let scene = Scene::on(control_plane, "late").await?;
    control_plane.kubectl(&["create", "namespace", super::bed::EXTENSIONS])?;
    scene.rule("three", three(false)).await?;
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let _operator = scene.operator(&["--listen", &listen])?;
    scene
        .rule_status("three", |it| it["observedGeneration"] == 1)
        .await?;
    let mut nodes = Vec::new();
    let is_soon = |took: &Duration| *took < Duration::from_secs(3);
    kept_async(
        "a new node is tainted within three seconds",
        is_soon,
        async || {
            let made = Instant::now();
            let node = scene.describe(&format!("n{}", nodes.len()));
            let node = scene.start(node).await?;
            scene.tainted(node.name(), true).await?;
            nodes.push(node);
            Ok(made.elapsed())
        },
    )
    .await?;
    let counted = format!("evenkeel_readiness_exposed_nodes_total {}", nodes.len());
    until_counted(port, &counted).await
}

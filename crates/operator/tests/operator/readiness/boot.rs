//! New nodes and restarts: pods wait until all that a node must have was heard of.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, taint};
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::bed::{is_tainted, taints};
use crate::scene::{Scene, annotated, is_ready};

fn renewed() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

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
    json!({ "extensions": extensions, "autoscalerStartupTaint": true })
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
    let boots = if is_soak() { 200 } else { 3 };
    let mut slowest = Duration::ZERO;
    for number in 0..boots {
        // These pods wait for a node: one that tolerates nothing, and an extension that tolerates only us.
        let (early, tolerant) = (format!("early-{number}"), format!("tolerant-{number}"));
        for (name, tolerates) in [(&early, false), (&tolerant, true)] {
            let mut spec = scene.spec(1);
            let keys = [taint::META_READINESS, taint::AUTOSCALER_STARTUP];
            let ours: Vec<_> = keys
                .iter()
                .map(|key| json!({ "key": key, "operator": "Exists" }))
                .collect();
            spec["tolerations"] = if tolerates { json!(ours) } else { json!([]) };
            let pod = json!({ "metadata": { "name": name }, "spec": spec });
            scene.create::<Pod>(pod).await?;
        }
        let node = scene.start(scene.describe(&format!("n{number}"))).await?;
        let name = node.name().to_owned();
        let seen = scene.node(&name).await?;
        assert_eq!(
            taints(&seen),
            [taint::META_READINESS, taint::AUTOSCALER_STARTUP]
        );
        assert_eq!(
            annotated(&seen, annotation::READINESS_OWNERS),
            Some(scene.called("three").as_str())
        );
        scene.ready(&format!("metadata.name={tolerant}"), 1).await?;
        for extension in ["a", "b", "c"] {
            let seen = scene.node(&name).await?;
            assert!(is_tainted(&seen), "before {extension}: {}", scene.log());
            let pod = scene.pods().get(&early).await.doing(|| "no pod")?;
            assert!(
                pod.spec.and_then(|it| it.node_name).is_none(),
                "bound before {extension}"
            );
            scene.renew(&name, extension, SignedDuration::ZERO).await?;
        }
        let reported = Instant::now();
        let seen = scene.tainted(&name, false).await?;
        slowest = slowest.max(reported.elapsed());
        assert_eq!(
            taints(&seen),
            Vec::<String>::new(),
            "an optional one that never came changes nothing"
        );
        assert_eq!(annotated(&seen, annotation::READINESS_OWNERS), None);
        scene.ready(&format!("metadata.name={early}"), 1).await?;
        for pod in [&early, &tolerant] {
            let gone = scene
                .pods()
                .delete(pod, &kube::api::DeleteParams::default().grace_period(0))
                .await;
            gone.doing(|| "cannot delete a pod")?;
        }
        node.delete(&scene.control_plane.admin_kubeconfig()).await?;
    }
    println!(
        "proof: {boots} boots, no pod bound early; released within {slowest:?} of the last report"
    );
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    Ok(())
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
    let report = async |boot: &str, kubelet: &str| -> Result<()> {
        let report =
            json!({ "bootId": boot, "kubeletStart": kubelet, "state": "Done", "probes": {} });
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": format!("{name}.evenkeel-agent"), "annotations": { annotation::REPORT: report.to_string() } },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": 30, "renewTime": renewed() },
        });
        let (leases, lease) = (scene.leases(), Patch::Apply(lease));
        let parameters = PatchParams::apply("test").force();
        let applied = leases
            .patch(&format!("{name}.evenkeel-agent"), &parameters, &lease)
            .await;
        applied.map(|_| ()).doing(|| "cannot report")
    };
    report(&node.boot_id(), "start-1").await?;
    scene
        .rule_status("pods", |it| it["nodes"]["ready"] == 1)
        .await?;
    assert!(!is_tainted(&scene.node(&name).await?));

    let restarted = Instant::now();
    report(&node.boot_id(), "start-2").await?;
    scene.tainted(&name, true).await?;
    let noticed = restarted.elapsed();
    assert!(noticed < Duration::from_secs(2), "{noticed:?}");
    // The pod stayed ready throughout: it counts ten seconds after the kubelet was heard again.
    scene.tainted(&name, false).await?;
    let released = restarted.elapsed();
    assert!(released > Duration::from_secs(10), "{released:?}");

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
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|it| it.local_addr())
        .doing(|| "no port")?
        .port();
    let listen = format!("127.0.0.1:{port}");
    let _operator = scene.operator(&["--listen", &listen])?;
    scene
        .rule_status("three", |it| it["observedGeneration"] == 1)
        .await?;
    let made = Instant::now();
    let node = scene.start(scene.describe("n1")).await?;
    scene.tainted(node.name(), true).await?;
    let exposed = made.elapsed();
    assert!(exposed < Duration::from_secs(3), "{exposed:?}");
    until_async(
        "the exposure to be counted",
        Duration::from_secs(10),
        async || {
            let text = metrics(port).await?;
            Ok(
                if text.contains("evenkeel_readiness_exposed_nodes_total 1") {
                    Look::Found(())
                } else {
                    Look::NotYet(
                        text.lines()
                            .filter(|it| it.contains("readiness"))
                            .collect::<Vec<_>>()
                            .join("\n"),
                    )
                },
            )
        },
    )
    .await?;
    Ok(())
}

async fn metrics(port: u16) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .doing(|| "no metrics")?;
    let ask = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(ask).await.doing(|| "cannot ask")?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .await
        .doing(|| "no answer")?;
    Ok(text)
}

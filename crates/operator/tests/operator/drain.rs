//! What a drain promises to agents, to people and to the workloads on a node.

use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, cordon, label, pod, program};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::{NodeDouble, Os};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::scene::{SOON, Scene, annotated, is_cordoned};

/// Makes a pod of every kind that stays, and says their names.
async fn those_that_stay(scene: &Scene, node: &NodeDouble) -> Result<Vec<String>> {
    let name = node.name();
    let own = |suffix: &str| format!("{suffix}-{name}");
    scene
        .pod(name, &own("class"), |it| {
            it["spec"]["priorityClassName"] = json!(pod::NODE_CRITICAL);
        })
        .await?;
    scene
        .pod(name, &own("critical"), |it| {
            it["metadata"]["annotations"] = json!({ pod::CRITICAL: "" });
        })
        .await?;
    // A static pod's mirror, which only the node itself may make.
    let uid = scene.node(name).await?.uid();
    let mirror = json!({
        "metadata": {
            "name": own("mirror"),
            "annotations": { pod::MIRROR: "hash", pod::SOURCE: "file" },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": true,
            }],
        },
        "spec": {
            "nodeName": name,
            "containers": [{ "name": "main", "image": "example.com/main:1" }],
        },
    });
    let login = scene
        .control_plane
        .kubeconfig_for_node(name)?
        .client()
        .await?;
    let pods: Api<Pod> = Api::namespaced(login, &scene.name);
    let mirror = serde_json::from_value(mirror).doing(|| "no pod")?;
    let made = pods.create(&PostParams::default(), &mirror).await;
    made.doing(|| "the node cannot make its mirror pod")?;
    let fields = format!("metadata.name={}", own("mirror"));
    scene.ready(&fields, 1).await?;
    Ok(["class", "critical", "mirror"].map(own).into())
}

/// Covers M12.
#[tokio::test]
async fn a_drain_moves_what_goes_within_its_budget_leaves_what_stays_and_is_undone() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("drain").await?;
    let _operator = scene.operator(&[])?;
    let master = scene
        .describe("master")
        .label("node-role.kubernetes.io/control-plane", "")
        .taint("node-role.kubernetes.io/control-plane", "", "NoSchedule");
    let nodes = [
        scene.start(scene.describe("worker")).await?,
        scene.start(master).await?,
    ];
    scene.daemon_set("everywhere").await?;
    for node in &nodes {
        let name = node.name();
        let on_it = format!("spec.nodeName={name}");
        let other = nodes
            .iter()
            .find(|it| it.name() != name)
            .map_or("", NodeDouble::name);
        // All of the workload is on this node, and goes to the other one.
        let app = if other.ends_with("master") {
            "first"
        } else {
            "second"
        };
        scene
            .patch(other, &json!({ "spec": { "unschedulable": true } }))
            .await?;
        scene.deployment(app, 2, 1).await?;
        scene.ready(&on_it, 3).await?;
        scene
            .patch(other, &json!({ "spec": { "unschedulable": null } }))
            .await?;
        let of_set = |pod: &Pod| pod.name_any().starts_with("everywhere-");
        let mut stay = those_that_stay(&scene, node).await?;
        stay.extend(scene.names(&on_it, of_set).await?);
        // The label of our agent makes nobody stay: anybody can set it.
        scene
            .pod(name, "bare", |it| {
                it["metadata"]["labels"] = json!({ label::APP_NAME: program::AGENT });
            })
            .await?;
        scene
            .pod(name, "scratch", |it| {
                it["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
            })
            .await?;
        scene.budget(app, json!({ "maxUnavailable": 1 })).await?;

        scene.ask(name, "drain-rendered-1").await?;
        let api: Api<PodDisruptionBudget> = Api::namespaced(scene.client.clone(), &scene.name);
        let budget = format!("{app}-budget");
        let mut fewest = i32::MAX;
        let drained = until_async("the drain", SOON, async || {
            let status = api
                .get(&budget)
                .await
                .doing(|| "no budget")?
                .status
                .unwrap_or_default();
            fewest = fewest.min(status.current_healthy);
            let seen = scene.node(name).await?;
            let answer = annotated(&seen, annotation::LAST_APPLIED_DRAIN);
            Ok(if answer == Some("drain-rendered-1") {
                Look::Found(seen)
            } else {
                Look::NotYet(format!("{:?}", seen.annotations()))
            })
        })
        .await?;
        assert!(fewest >= 1, "one of two at a time, but {fewest} were left");
        assert!(is_cordoned(&drained));
        assert_eq!(
            annotated(&drained, annotation::CORDONED_BY),
            Some(cordon::DRAIN)
        );
        // At the moment of the answer nobody is left but those that stay.
        let left = scene.names(&on_it, |_| true).await?;
        assert_eq!(left, stay.into_iter().collect());
        let running = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        assert_eq!(scene.names(&on_it, running).await?, left);
        for (reason, said) in [
            ("Draining", "cordoned the node and started drain-rendered-1"),
            ("EvictedWithoutOwner", "bare"),
            ("EvictedWithEmptyDir", "scratch"),
            ("Drained", "(DaemonSet)"),
        ] {
            let note = scene.event(name, reason).await?;
            assert!(note.contains(said), "{reason}: {note}");
        }

        scene.ask(name, "uncordon-rendered-1").await?;
        let after = scene.answered(name, "uncordon-rendered-1").await?;
        assert!(!is_cordoned(&after));
        for ours in [annotation::CORDONED_BY, annotation::DRAIN_GRANTED] {
            assert_eq!(annotated(&after, ours), None, "{ours}");
        }

        // The same again on a node that a person has cordoned: drained, and cordoned ever after.
        scene
            .patch(name, &json!({ "spec": { "unschedulable": true } }))
            .await?;
        scene.ask(name, "drain-rendered-2").await?;
        let drained = scene.answered(name, "drain-rendered-2").await?;
        assert_eq!(annotated(&drained, annotation::CORDONED_BY), None);
        scene.ask(name, "uncordon-rendered-2").await?;
        let after = scene.answered(name, "uncordon-rendered-2").await?;
        assert!(is_cordoned(&after), "a person's cordon stays");
        scene
            .patch(name, &json!({ "spec": { "unschedulable": null } }))
            .await?;
        scene
            .control_plane
            .kubectl(&["delete", "deployment", app, "-n", &scene.name])?;
        until_async("the workload to be gone", SOON, async || {
            let left = scene
                .names("", |pod| pod.name_any().starts_with(app))
                .await?;
            Ok(if left.is_empty() {
                Look::Found(())
            } else {
                Look::NotYet(format!("{left:?}"))
            })
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_budget_holds_a_drain_which_names_it_when_late_and_goes_on_when_allowed() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("budget").await?;
    let _operator = scene.operator(&["--drain-timeout", "3s"])?;
    let node = scene.start(scene.describe("full")).await?;
    scene.deployment("web", 2, 1).await?;
    scene
        .ready(&format!("spec.nodeName={}", node.name()), 2)
        .await?;
    scene.budget("web", json!({ "minAvailable": 1 })).await?;
    let start = Instant::now();
    scene.ask(node.name(), "drain-next").await?;
    // The first one went, and its successor finds no place: the second has to stay.
    let note = scene.event(node.name(), "DrainOverdue").await?;
    assert!(start.elapsed() >= Duration::from_secs(3));
    let held = scene
        .ready(&format!("spec.nodeName={}", node.name()), 1)
        .await?;
    let held = held.first().map(String::as_str).unwrap_or_default();
    let said = format!(
        "the drain takes longer than 3s: eviction of pod {}/{held} is blocked: The disruption budget web-budget needs 1 healthy pods",
        scene.name
    );
    assert!(note.starts_with(&said), "{note}");
    let seen = scene.node(node.name()).await?;
    assert_eq!(annotated(&seen, annotation::REASON), Some(note.as_str()));
    assert_eq!(annotated(&seen, annotation::LAST_APPLIED_DRAIN), None);
    // A place for the successor is what was missing.
    let _other = scene.start(scene.describe("empty")).await?;
    let seen = scene.answered(node.name(), "drain-next").await?;
    assert_eq!(annotated(&seen, annotation::REASON), Some(""));
    let left = scene
        .names(&format!("spec.nodeName={}", node.name()), |_| true)
        .await?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[tokio::test]
async fn with_proceed_a_late_drain_goes_ahead_and_evicts_nobody_against_a_budget() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("proceed").await?;
    let _operator = scene.operator(&["--drain-timeout", "2s", "--drain-on-timeout", "proceed"])?;
    let node = scene.start(scene.describe("n1")).await?;
    scene.deployment("web", 1, 1).await?;
    let before = scene
        .ready(&format!("spec.nodeName={}", node.name()), 1)
        .await?;
    scene.budget("web", json!({ "maxUnavailable": 0 })).await?;
    let start = Instant::now();
    scene.ask(node.name(), "drain-next").await?;
    scene.answered(node.name(), "drain-next").await?;
    assert!(start.elapsed() >= Duration::from_secs(2));
    let note = scene.event(node.name(), "DrainProceeds").await?;
    assert!(note.contains("web-budget"), "{note}");
    let after = scene
        .ready(&format!("spec.nodeName={}", node.name()), 1)
        .await?;
    assert_eq!(after, before);
    Ok(())
}

#[tokio::test]
async fn two_budgets_for_one_pod_are_reported_at_once_and_the_drain_goes_on_with_one() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("two").await?;
    let _operator = scene.operator(&[])?;
    let node = scene.start(scene.describe("n1")).await?;
    scene.deployment("web", 1, 1).await?;
    scene
        .ready(&format!("spec.nodeName={}", node.name()), 1)
        .await?;
    scene.budget("web", json!({ "maxUnavailable": 1 })).await?;
    let second = json!({
        "metadata": { "name": "second" },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    });
    let second: PodDisruptionBudget = scene.create(second).await?;
    scene.ask(node.name(), "drain-next").await?;
    let note = scene.event(node.name(), "EvictionFailed").await?;
    assert!(note.contains("more than one PodDisruptionBudget"), "{note}");
    let api: Api<PodDisruptionBudget> = Api::namespaced(scene.client.clone(), &scene.name);
    let gone = api
        .delete(&second.name_any(), &DeleteParams::default())
        .await;
    gone.doing(|| "cannot delete the budget")?;
    scene.answered(node.name(), "drain-next").await?;
    Ok(())
}

#[tokio::test]
async fn nodes_of_a_pool_go_one_after_the_other_and_windows_nodes_beside_them() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("turns").await?;
    let _operator = scene.operator(&[])?;
    let first = scene.start(scene.describe("a")).await?;
    let second = scene.start(scene.describe("b")).await?;
    let windows = scene.start(scene.describe("w").os(Os::Windows)).await?;
    // A budget holds the first one for as long as we like.
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "web" });
    scene.pod(first.name(), "web", labelled).await?;
    scene.budget("web", json!({ "minAvailable": 1 })).await?;
    scene.ask(first.name(), "drain-next").await?;
    scene.event(first.name(), "Draining").await?;
    scene.ask(second.name(), "drain-next").await?;
    let note = scene.event(second.name(), "DrainWaits").await?;
    let said = format!(
        "drain-next is waiting: node {} is unavailable and maxUnavailable is 1",
        first.name()
    );
    assert_eq!(note, said);
    // A slow drain blocks nobody who need not wait for it.
    scene.ask(windows.name(), "drain-next").await?;
    scene.answered(windows.name(), "drain-next").await?;
    let waiting = scene.node(second.name()).await?;
    assert!(!is_cordoned(&waiting));
    assert_eq!(annotated(&waiting, annotation::DRAIN_GRANTED), None);
    let first_seen = scene.node(first.name()).await?;
    assert_eq!(annotated(&first_seen, annotation::LAST_APPLIED_DRAIN), None);
    // The budget goes, and with it the first drain; but its node is down until it is back.
    scene
        .control_plane
        .kubectl(&["delete", "pdb", "web-budget", "-n", &scene.name])?;
    scene.answered(first.name(), "drain-next").await?;
    let waiting = scene.node(second.name()).await?;
    assert!(!is_cordoned(&waiting));
    scene.ask(first.name(), "uncordon-next").await?;
    scene.answered(first.name(), "uncordon-next").await?;
    scene.answered(second.name(), "drain-next").await?;
    Ok(())
}

#[tokio::test]
async fn a_request_that_nobody_can_answer_is_an_event_and_a_withdrawn_one_is_undone() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("rubbish").await?;
    let _operator = scene.operator(&[])?;
    let node = scene.start(scene.describe("n1")).await?;
    scene.ask(node.name(), "explode-now").await?;
    let note = scene.event(node.name(), "DrainRequestUnknown").await?;
    assert!(note.contains("\"explode-now\""), "{note}");
    assert!(!is_cordoned(&scene.node(node.name()).await?));
    // Held by a budget, and then the agent thinks better of it.
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "web" });
    scene.pod(node.name(), "web", labelled).await?;
    scene.budget("web", json!({ "minAvailable": 1 })).await?;
    scene.ask(node.name(), "drain-next").await?;
    scene.event(node.name(), "Draining").await?;
    // A person who uncordons it in the middle does not fill it again.
    let uncordon = json!({ "spec": { "unschedulable": null } });
    scene.patch(node.name(), &uncordon).await?;
    scene.event(node.name(), "Cordoned").await?;
    assert!(is_cordoned(&scene.node(node.name()).await?));
    scene.ask(node.name(), "uncordon-next").await?;
    let seen = scene.answered(node.name(), "uncordon-next").await?;
    assert!(!is_cordoned(&seen));
    assert_eq!(scene.ready("metadata.name=web", 1).await?.len(), 1);
    Ok(())
}

//! What holds when the operator is killed, and what it may not do at all.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::scene::{SOON, Scene, annotated, is_cordoned};

#[tokio::test]
async fn a_killed_operator_is_followed_by_one_that_finishes_what_was_begun() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("killed").await?;
    let mut operator = scene.operator(&["--drain-timeout", "2s"])?;
    let node = scene.start(scene.describe("n1")).await?;
    let on_it = format!("spec.nodeName={}", node.name());
    // One pod takes its time to end, the other may not go at all.
    scene
        .pod(node.name(), "slow", |it| {
            it["spec"]["terminationGracePeriodSeconds"] = json!(8);
        })
        .await?;
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "held" });
    scene.pod(node.name(), "held", labelled).await?;
    scene.budget("held", json!({ "minAvailable": 1 })).await?;
    scene.ask(node.name(), "drain-next").await?;
    until_async("the slow pod to be evicted", SOON, async || {
        let ending = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        let names = scene.names(&on_it, ending).await?;
        Ok(if names.contains("slow") {
            Look::Found(())
        } else {
            Look::NotYet(format!("{names:?}"))
        })
    })
    .await?;
    operator.kill()?;
    let before = scene.node(node.name()).await?;
    assert!(is_cordoned(&before));
    let granted = annotated(&before, annotation::DRAIN_GRANTED).map(str::to_owned);
    assert!(granted.is_some());

    // Its successor leads once the Lease is over, knows since when, and goes on.
    let _operator = scene.operator(&["--drain-timeout", "2s"])?;
    let note = scene.event(node.name(), "DrainOverdue").await?;
    assert!(note.contains("held-budget"), "{note}");
    let during = scene.node(node.name()).await?;
    assert_eq!(
        annotated(&during, annotation::DRAIN_GRANTED),
        granted.as_deref()
    );
    scene
        .control_plane
        .kubectl(&["delete", "pdb", "held-budget", "-n", &scene.name])?;
    scene.answered(node.name(), "drain-next").await?;
    assert!(scene.names(&on_it, |_| true).await?.is_empty());
    scene.ask(node.name(), "uncordon-next").await?;
    let after = scene.answered(node.name(), "uncordon-next").await?;
    assert!(!is_cordoned(&after));
    Ok(())
}

/// What an agent does: it asks for a drain, is down for a moment, and asks to be uncordoned.
async fn be_drained(scene: &Scene, node: &str) -> Result<()> {
    scene.ask(node, "drain-next").await?;
    let drained = scene.answered(node, "drain-next").await?;
    assert!(is_cordoned(&drained), "{node}");
    scene.ask(node, "uncordon-next").await?;
    let after = scene.answered(node, "uncordon-next").await?;
    assert!(!is_cordoned(&after), "{node}");
    Ok(())
}

/// Kills operators at ever other moments, and then lets one live.
async fn chaos(scene: &Scene) -> Result<Running> {
    for moment in 1..=8 {
        let mut operator = scene.operator(&[])?;
        tokio::time::sleep(Duration::from_millis(130 * moment)).await;
        operator.kill()?;
        scene.nobody_leads().await?;
    }
    scene.operator(&[])
}

#[tokio::test]
async fn however_often_it_is_killed_one_node_is_down_at_a_time_and_none_stays_cordoned()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("chaos").await?;
    let mut nodes = Vec::new();
    for suffix in ["a", "b", "c"] {
        nodes.push(scene.start(scene.describe(suffix)).await?);
    }
    // Without a budget: it would count an eviction whose asker is killed half-way for two minutes.
    scene.deployment("web", 6, 1).await?;
    scene.ready("spec.nodeName!=", 6).await?;
    let down = async || {
        let of_scene = ListParams::default().labels(&format!("place={}", scene.name));
        let nodes = scene.nodes().list(&of_scene).await;
        let nodes = nodes.doing(|| "cannot list nodes")?.items;
        let is_down =
            |node: &Node| is_cordoned(node) || annotated(node, annotation::DRAIN_GRANTED).is_some();
        Ok::<_, Error>(nodes.iter().filter(|node| is_down(node)).count())
    };
    let watching = async {
        let mut most = 0;
        loop {
            most = most.max(down().await?);
            assert!(most <= 1, "{most} nodes were down at once");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let [a, b, c] = [0, 1, 2].map(|it| be_drained(&scene, nodes[it].name()));
    let rolling = async { tokio::try_join!(chaos(&scene), a, b, c) };
    let _operator = tokio::select! {
        ended = watching => return ended,
        rolled = rolling => rolled?.0,
    };
    assert_eq!(down().await?, 0);
    scene.ready("spec.nodeName!=", 6).await?;
    Ok(())
}

#[tokio::test]
async fn an_operator_that_is_asked_to_stop_hands_over_at_once() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("stopped").await?;
    let mut first = scene.operator(&[])?;
    let node = scene.start(scene.describe("n1")).await?;
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "held" });
    scene.pod(node.name(), "held", labelled).await?;
    scene.budget("held", json!({ "minAvailable": 1 })).await?;
    scene.ask(node.name(), "drain-next").await?;
    scene.event(node.name(), "Draining").await?;
    first.stop(Duration::from_secs(10)).await?;
    let _second = scene.operator(&[])?;
    scene
        .control_plane
        .kubectl(&["delete", "pdb", "held-budget", "-n", &scene.name])?;
    let start = Instant::now();
    scene.answered(node.name(), "drain-next").await?;
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "it waited for the Lease to be over"
    );
    Ok(())
}

#[tokio::test]
async fn an_operator_cut_off_from_the_api_server_leads_again_and_finishes() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("away").await?;
    let proxy = ApiProxy::before(scene.control_plane)?;
    let login = scene.login()?.at(&proxy.address().to_string());
    let mut operator = scene.operator_as(&login, &[])?;
    let node = scene.start(scene.describe("n1")).await?;
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "held" });
    scene.pod(node.name(), "held", labelled).await?;
    scene.budget("held", json!({ "minAvailable": 1 })).await?;
    scene.ask(node.name(), "drain-next").await?;
    scene.event(node.name(), "Draining").await?;
    proxy.refuse();
    proxy.cut();
    until_async("it to step down", SOON, async || {
        operator.still_runs()?;
        let log = scene.log();
        Ok(if log.contains("is no longer the leader") {
            Look::Found(())
        } else {
            Look::NotYet(log)
        })
    })
    .await?;
    // What happened meanwhile is seen when it is back.
    scene
        .control_plane
        .kubectl(&["delete", "pdb", "held-budget", "-n", &scene.name])?;
    proxy.accept();
    scene.answered(node.name(), "drain-next").await?;
    assert!(
        scene
            .names("metadata.name=held", |_| true)
            .await?
            .is_empty()
    );
    operator.still_runs()
}

#[tokio::test]
async fn the_operator_may_evict_pods_and_neither_change_nor_delete_them() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("rights").await?;
    let node = scene.start(scene.describe("n1")).await?;
    let pod = scene.pod(node.name(), "web", |_| {}).await?;
    let client = scene.login()?.client().await?;
    let nodes: Api<Node> = Api::all(client.clone());
    until_async(
        "its role to be in force",
        Duration::from_secs(10),
        async || {
            Ok(match nodes.get(node.name()).await {
                Ok(_) => Look::Found(()),
                Err(error) => Look::NotYet(error.to_string()),
            })
        },
    )
    .await?;
    let pods: Api<Pod> = Api::namespaced(client, &scene.name);
    let label = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    let deleted = pods.delete(&pod.name_any(), &DeleteParams::default()).await;
    let patched = pods
        .patch(&pod.name_any(), &PatchParams::default(), &label)
        .await;
    let node_deleted = nodes.delete(node.name(), &DeleteParams::default()).await;
    for answer in [
        deleted.map(|_| ()),
        patched.map(|_| ()),
        node_deleted.map(|_| ()),
    ] {
        match answer {
            Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{status:?}"),
            other => panic!("the operator was allowed to: {other:?}"),
        }
    }
    let evicted = pods.evict(&pod.name_any(), &EvictParams::default()).await;
    evicted.map(|_| ()).doing(|| "it may not evict")
}

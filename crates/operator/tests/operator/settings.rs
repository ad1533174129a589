//! The settings of a pool that its nodes and their drains follow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, taint};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Result, need};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use crate::agents::Agents;
use crate::pools::file;
use crate::rollout::LONG;
use crate::scene::{SOON, Scene, annotated, is_cordoned};

/// Covers M20.
#[tokio::test]
async fn a_pool_decides_whether_its_nodes_heal_drift_and_how_long_their_drains_may_take()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("settings").await?;
    let node = scene.describe("n1").label("pool-web", &scene.name);
    let node = scene.start(node).await?;
    scene.pool("web", json!({ "paused": true })).await?;
    let set = |drift: Option<&str>| {
        json!({ "metadata": { "annotations": {
            annotation::DRIFT: drift,
            annotation::DRAIN_TIMEOUT: "1s",
            annotation::DRAIN_ON_TIMEOUT: "proceed",
        } } })
    };
    scene.edit_pool("web", set(Some("heal"))).await?;
    let _operator = scene.operator(&[])?;
    for drift in [Some("heal"), Some("degrade"), None] {
        scene.edit_pool("web", set(drift)).await?;
        until_async("the node to carry it", SOON, async || {
            let seen = scene.node(node.name()).await?;
            let found = annotated(&seen, annotation::DRIFT);
            Ok(if found == drift {
                Look::Found(())
            } else {
                Look::NotYet(format!("{found:?}"))
            })
        })
        .await?;
    }
    // A paused pool lets nobody begin; another one lets its drain go ahead after a second.
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "held" });
    scene.pod(node.name(), "held", labelled).await?;
    scene.budget("held", json!({ "minAvailable": 1 })).await?;
    scene.ask(node.name(), "drain-next").await?;
    let note = scene.event(node.name(), "DrainWaits").await?;
    assert!(note.contains("the pool is paused"), "{note}");
    scene
        .edit_pool("web", json!({ "spec": { "paused": false } }))
        .await?;
    scene.answered(node.name(), "drain-next").await?;
    let note = scene.event(node.name(), "DrainProceeds").await?;
    assert!(note.contains("after 1s"), "{note}");
    Ok(())
}

/// The pool's setting wins over the operator's, and the drain does not end before its time, either.
#[tokio::test]
async fn a_drain_waits_no_longer_than_the_pool_says_for_pods_that_no_kubelet_ends() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("stuck").await?;
    let node = scene.describe("n1").label("pool-web", &scene.name);
    let node = scene.start(node).await?;
    scene.pool("web", json!({})).await?;
    let skip = json!({ "metadata": { "annotations": {
        annotation::DRAIN_SKIP_WAIT_FOR_DELETE: "4s",
    } } });
    scene.edit_pool("web", skip).await?;
    let _operator = scene.operator(&["--drain-skip-wait-for-delete", "1h"])?;
    scene.pod(node.name(), "stuck", |_| {}).await?;
    node.lie("Ready", "False").await?;
    node.pause();
    let start = Instant::now();
    scene.ask(node.name(), "drain-next").await?;
    scene.answered(node.name(), "drain-next").await?;
    // Both times that count have whole seconds.
    assert!(start.elapsed() > Duration::from_secs(2));
    let note = scene.event(node.name(), "DrainSkipsTerminating").await?;
    let said = format!(
        "without waiting for pods that are terminating: {}/stuck",
        scene.name
    );
    assert!(note.ends_with(&said), "{note}");
    let left = scene
        .names(&format!("spec.nodeName={}", node.name()), |it| {
            it.metadata.deletion_timestamp.is_some()
        })
        .await?;
    assert_eq!(left.len(), 1, "nobody deleted it by force: {left:?}");
    Ok(())
}

/// What nobody can take is not worth evicting: a pool may say so, and no budget is asked.
#[tokio::test]
async fn a_pool_may_keep_the_pods_of_its_nodes_where_they_are() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("keeps").await?;
    let node = scene.describe("n1").label("pool-web", &scene.name);
    let node = scene.start(node).await?;
    scene.pool("web", json!({})).await?;
    let keeps = json!({ "metadata": { "annotations": { annotation::DRAIN: "never" } } });
    scene.edit_pool("web", keeps).await?;
    let labelled = |it: &mut serde_json::Value| it["metadata"]["labels"] = json!({ "app": "held" });
    scene.pod(node.name(), "held", labelled).await?;
    scene.pod(node.name(), "free", |_| {}).await?;
    scene.budget("held", json!({ "minAvailable": 1 })).await?;
    let _operator = scene.operator(&[])?;
    scene.ask(node.name(), "drain-next").await?;
    scene.answered(node.name(), "drain-next").await?;
    let note = scene.event(node.name(), "DrainKeepsPods").await?;
    assert_eq!(
        note,
        "ended drain-next without evicting pods: the pool has evenkeel.dev/drain: never"
    );
    assert!(is_cordoned(&scene.node(node.name()).await?));
    let on_it = format!("spec.nodeName={}", node.name());
    let stay = |it: &Pod| it.metadata.deletion_timestamp.is_none();
    assert_eq!(scene.names(&on_it, stay).await?.len(), 2);
    scene.ask(node.name(), "uncordon-next").await?;
    scene.answered(node.name(), "uncordon-next").await?;
    assert!(!is_cordoned(&scene.node(node.name()).await?));
    Ok(())
}

/// Whether pods are kept off a node until it has its first configuration.
fn is_closed(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let mut taints = spec.and_then(|it| it.taints.as_ref()).into_iter().flatten();
    taints.any(|it| it.key == taint::FIRST_CONFIG && it.effect == "NoSchedule")
}

async fn until_closed(scene: &Scene, node: &NodeDouble, wanted: bool) -> Result<()> {
    let what = format!("closed to be {wanted} for {}", node.name());
    until_async(&what, SOON, async || {
        let seen = scene.node(node.name()).await?;
        Ok(if is_closed(&seen) == wanted {
            Look::Found(())
        } else {
            Look::NotYet(format!("{:?}", seen.spec))
        })
    })
    .await
}

/// Covers O15.
#[tokio::test]
async fn a_new_node_of_a_pool_takes_no_pods_until_its_first_configuration_is_done() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("first").await?;
    let describe = |suffix: &str| scene.describe(suffix).label("pool-web", &scene.name);
    let registered = describe("registered")
        .taint(taint::FIRST_CONFIG, "", "NoSchedule")
        .taint("example.com/theirs", "", "NoSchedule");
    let nodes = vec![
        scene.start(describe("plain")).await?,
        scene.start(registered).await?,
    ];
    let nodes = Arc::new(nodes);
    scene.pool("web", json!({ "paused": true })).await?;
    let first_config_first = |value: Option<&str>| json!({ "metadata": { "annotations": { annotation::FIRST_CONFIG_FIRST: value } } });
    scene
        .edit_pool("web", first_config_first(Some("true")))
        .await?;
    scene.config("web", "50-web", file("/etc/web", "1")).await?;
    let _agents = Agents::start(&scene, &nodes).await?;
    let _operator = scene.operator(&[])?;
    // Also in a pool that is paused.
    for node in nodes.iter() {
        until_closed(&scene, node, true).await?;
    }
    let paused = |it: bool| json!({ "spec": { "paused": it } });
    scene.edit_pool("web", paused(false)).await?;
    let first = scene.until_updated("web", "", LONG).await?;
    for node in nodes.iter() {
        until_closed(&scene, node, false).await?;
        let seen = scene.node(node.name()).await?;
        let current = annotated(&seen, annotation::CURRENT_CONFIG);
        assert_eq!(current, Some(first.as_str()));
    }
    let others = scene.node(nodes[1].name()).await?.spec;
    let others = others.and_then(|it| it.taints).unwrap_or_default();
    assert!(others.iter().any(|it| it.key == "example.com/theirs"));

    scene.edit_pool("web", paused(true)).await?;
    let late = scene.start(describe("late")).await?;
    until_closed(&scene, &late, true).await?;
    // Nobody is closed for a pool that does not ask for it.
    scene.edit_pool("web", first_config_first(None)).await?;
    until_closed(&scene, &late, false).await
}

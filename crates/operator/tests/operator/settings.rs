//! The settings of a pool that its nodes and their drains follow.

use evenkeel_api::names::annotation;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Result, need};
use serde_json::json;

use crate::scene::{SOON, Scene, annotated};

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

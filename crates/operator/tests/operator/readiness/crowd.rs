//! A thousand nodes at once. This takes minutes, and runs in a soak only.

use std::time::{Duration, Instant};

use evenkeel_api::names::taint;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeFleet;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::bed::is_tainted;
use crate::scene::Scene;

const NODES: usize = 1_000;

async fn tainted(scene: &Scene) -> Result<usize> {
    let all = scene
        .nodes()
        .list(&ListParams::default().labels(&format!("place={}", scene.name)))
        .await;
    Ok(all
        .doing(|| "no nodes")?
        .items
        .iter()
        .filter(|it| is_tainted(it))
        .count())
}

/// Sets a condition on all of them, as their own problem detectors would.
async fn say(scene: &Scene, names: &[String], status: &str) -> Result<()> {
    let api: Api<Node> = scene.nodes();
    let patch = Patch::Strategic(json!({ "status": { "conditions": [{
        "type": "GpuReady", "status": status, "reason": "Test", "message": "",
        "lastHeartbeatTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    }] } }));
    let said = futures::stream::iter(names)
        .map(async |name| {
            api.patch_status(name, &PatchParams::default(), &patch)
                .await
                .map(|_| ())
        })
        .buffer_unordered(32)
        .collect::<Vec<_>>()
        .await;
    said.into_iter()
        .collect::<kube::Result<()>>()
        .doing(|| "cannot set a condition")
}

#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn a_thousand_nodes_that_become_unhealthy_are_tainted_about_as_fast_as_a_bare_loop_would()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("crowd").await?;
    scene.prepare_readiness()?;
    let described = (0..NODES).map(|number| scene.describe(&format!("n{number:04}")));
    let fleet =
        NodeFleet::start(described.collect(), &scene.control_plane.admin_kubeconfig()).await?;
    let names: Vec<String> = (0..NODES)
        .map(|number| format!("{}-n{number:04}", scene.name))
        .collect();
    say(&scene, &names, "True").await?;

    // The bare loop: one patch for each, and one to take it off again.
    let api: Api<Node> = scene.nodes();
    let loop_of = async |taints: serde_json::Value| -> Result<Duration> {
        let begun = Instant::now();
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        let done = futures::stream::iter(&names)
            .map(async |name| {
                api.patch(name, &PatchParams::default(), &patch)
                    .await
                    .map(|_| ())
            })
            .buffer_unordered(32)
            .collect::<Vec<_>>()
            .await;
        done.into_iter()
            .collect::<kube::Result<()>>()
            .doing(|| "cannot taint")?;
        Ok(begun.elapsed())
    };
    let bare = loop_of(json!([{ "key": taint::META_READINESS, "effect": "NoSchedule" }])).await?;
    loop_of(json!([])).await?;

    let condition = json!([{ "name": "gpu", "condition": { "type": "GpuReady" } }]);
    scene
        .rule(
            "gpu",
            json!({ "extensions": condition, "evictAfter": "0s" }),
        )
        .await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    until_async("all to be ready", Duration::from_mins(3), async || {
        let rule = scene
            .rules()
            .get(&scene.called("gpu"))
            .await
            .doing(|| "no rule")?;
        let nodes = &rule.data["status"]["nodes"];
        Ok(if nodes["ready"] == NODES {
            Look::Found(())
        } else {
            let log = scene.log();
            Look::NotYet(format!(
                "{nodes} {:?}",
                log.lines().rev().take(5).collect::<Vec<_>>()
            ))
        })
    })
    .await?;
    let begun = Instant::now();
    let said = async {
        say(&scene, &names, "False").await?;
        Ok::<_, evenkeel_testbed::Error>(begun.elapsed())
    };
    let all = until_async("all to be tainted", Duration::from_mins(3), async || {
        let count = tainted(&scene).await?;
        Ok(if count == NODES {
            Look::Found(begun.elapsed())
        } else {
            Look::NotYet(count.to_string())
        })
    });
    let (said, all) = futures::join!(said, all);
    let (said, all) = (said?, all?);
    let after = all.saturating_sub(said);
    println!(
        "proof: {NODES} nodes became unhealthy in {said:?}; the last was tainted {after:?} after that, {all:?} in all; a bare loop of taints takes {bare:?}"
    );
    assert!(all < said + bare.mul_f64(2.5), "{all:?} {said:?} {bare:?}");
    drop(fleet);
    Ok(())
}

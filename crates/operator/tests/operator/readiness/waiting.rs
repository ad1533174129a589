//! What was only not heard yet after a restart: it keeps new pods away, and takes none away.

use std::time::Duration;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::bed::{Extension, is_tainted};
use crate::scene::{SOON, Scene};

const OFTEN: Duration = Duration::from_secs(1);
/// Much longer than pods of a node that is not well stay there.
const LONG: Duration = Duration::from_secs(9);

/// Covers N02.
#[tokio::test]
async fn a_kubelet_that_restarts_evicts_nobody_however_long_nothing_is_heard() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("waiting").await?;
    scene.prepare_readiness()?;
    let mut nodes = Vec::new();
    let mut extensions = Vec::new();
    for number in 0..3 {
        let node = scene.describe(&format!("n{number}"));
        let node = scene
            .start(node.lease_interval(Duration::from_secs(2)))
            .await?;
        for kind in ["NetReady", "KernelSound"] {
            scene.condition(node.name(), kind, "True").await?;
        }
        let labelled = |it: &mut Value| it["metadata"]["labels"] = json!({ "app": "plugin" });
        let plugin = format!("plugin-{number}");
        scene.pod(node.name(), &plugin, labelled).await?;
        let extension = Extension::start(&scene, node.name(), "dp", OFTEN, SignedDuration::ZERO);
        extensions.push(extension);
        scene
            .report(node.name(), &node.boot_id(), "start-1")
            .await?;
        nodes.push(node);
    }
    let (node, name) = (&nodes[0], nodes[0].name().to_owned());
    let bystander = scene.pod(&name, "bystander", |_| {}).await?;
    let pods =
        json!({ "namespace": scene.name, "selector": { "matchLabels": { "app": "plugin" } } });
    let rule = json!({
        "evictAfter": "2s",
        "extensions": [
            { "name": "net", "condition": { "type": "NetReady" } },
            { "name": "kernel", "condition": { "type": "KernelSound", "freshness": "10m" } },
            { "name": "dp", "lease": { "expiry": "3s" } },
            { "name": "plugin", "pods": pods },
        ],
    });
    scene.rule("all", rule).await?;
    let place = format!("place={}", scene.name);
    let options = ["--rule-selector", place.as_str()];
    let operator = scene.operator(&options)?;
    scene
        .rule_status("all", |it| it["nodes"]["ready"] == 3)
        .await?;

    // The kubelet is upgraded, and for long nobody renews anything but the kubelet.
    extensions.remove(0).stop().await?;
    scene.report(&name, &node.boot_id(), "start-2").await?;
    node.restart_kubelet().await?;
    scene.tainted(&name, true).await?;
    let is_left_alone = async || {
        let pod = scene.pods().get("bystander").await.doing(|| "no pod")?;
        let same = pod.metadata.uid == bystander.metadata.uid;
        let shut = is_tainted(&scene.node(&name).await?);
        Ok(same && pod.metadata.deletion_timestamp.is_none() && shut)
    };
    scene
        .stays("only not heard yet", LONG, is_left_alone)
        .await?;
    // Nor does another operator.
    drop(operator);
    scene.nobody_leads().await?;
    let _operator = scene.operator(&options)?;
    scene
        .stays("another one leads", LONG, is_left_alone)
        .await?;

    // All is heard again.
    scene.condition(&name, "KernelSound", "True").await?;
    let _extension = Extension::start(&scene, &name, "dp", OFTEN, SignedDuration::ZERO);
    scene.tainted(&name, false).await?;
    // A condition that says so is something else.
    scene.condition(&name, "NetReady", "False").await?;
    scene.tainted(&name, true).await?;
    until_async("the bystander to be evicted", SOON, async || {
        let pod = scene.pods().get_opt("bystander").await;
        let pod = pod.doing(|| "no answer")?;
        let goes = pod.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
        Ok(if goes {
            Look::Found(())
        } else {
            Look::NotYet(scene.log())
        })
    })
    .await?;
    scene.event(&name, "EvictingPods").await.map(|_| ())
}

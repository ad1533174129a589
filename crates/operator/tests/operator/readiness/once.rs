//! Conditions that are written once, and never again while they are so.

use std::time::Duration;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use super::bed::is_tainted;
use crate::scene::{SOON, Scene};

/// Covers N01.
#[tokio::test]
async fn a_condition_that_appears_once_opens_a_new_node_and_one_from_before_a_reboot_does_not()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("once").await?;
    scene.prepare_readiness()?;
    let extensions = json!([{ "name": "net", "condition": { "type": "NetReady" } }]);
    let rule = json!({ "extensions": extensions, "evictAfter": "0s" });
    scene.rule("net", rule).await?;
    let place = format!("place={}", scene.name);
    let options = ["--rule-selector", place.as_str()];
    let operator = scene.operator(&options)?;
    scene
        .rule_status("net", |it| it["observedGeneration"] == 1)
        .await?;

    // A new node, and its condition comes once.
    let node = scene.start(scene.describe("n1")).await?;
    let name = node.name().to_owned();
    scene.tainted(&name, true).await?;
    scene.condition(&name, "NetReady", "True").await?;
    scene.tainted(&name, false).await?;

    // After a restart of the kubelet alone it is still so.
    scene.report(&name, &node.boot_id(), "start-1").await?;
    scene.report(&name, &node.boot_id(), "start-2").await?;
    let is_open = async || Ok(!is_tainted(&scene.node(&name).await?));
    scene
        .stays("a kubelet's restart", Duration::from_secs(3), is_open)
        .await?;

    // After a reboot it is from before, and another operator knows that.
    node.restart_machine().await?;
    scene.tainted(&name, true).await?;
    drop(operator);
    scene.nobody_leads().await?;
    let operator = scene.operator(&options)?;
    let is_shut = async || Ok(is_tainted(&scene.node(&name).await?));
    scene
        .stays("from before the reboot", Duration::from_secs(5), is_shut)
        .await?;
    // It is written while nobody leads: whoever comes then knows that it is newer.
    drop(operator);
    scene.condition(&name, "NetReady", "True").await?;
    scene.nobody_leads().await?;
    let _operator = scene.operator(&options)?;
    let free = scene.tainted(&name, false).await?;
    let left = free.annotations().keys();
    let left: Vec<_> = left.filter(|it| it.contains("readiness")).collect();
    assert!(left.is_empty(), "{left:?}");

    // Its Node is deleted, and its kubelet registers it anew with the condition.
    node.lie("NetReady", "True").await?;
    let before = free.metadata.uid;
    let deleted = scene.nodes().delete(&name, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the Node")?;
    node.restart_kubelet().await?;
    until_async("the new Node to be open", SOON, async || {
        let seen = scene.node(&name).await?;
        let is_new = seen.metadata.uid != before;
        Ok(if is_new && !is_tainted(&seen) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{:?} {}", seen.spec, scene.log()))
        })
    })
    .await
}

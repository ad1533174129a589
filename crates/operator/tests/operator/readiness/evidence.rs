//! Each kind of evidence on a real API server: pods, conditions, and what an agent says of itself.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::bed::is_tainted;
use crate::scene::{SOON, Scene};

/// How long it is looked whether something does not happen.
const WHILE: Duration = Duration::from_secs(4);

impl Scene {
    /// Writes whether a pod is ready, as its kubelet would.
    async fn turn(&self, pod: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = Patch::Strategic(json!({ "status": { "conditions": [
            { "type": "Ready", "status": status, "lastTransitionTime": now },
        ] } }));
        let written = self
            .pods()
            .patch_status(pod, &PatchParams::default(), &patch)
            .await;
        written
            .map(|_| ())
            .doing(|| format!("cannot write the status of pod {pod}"))
    }

    async fn remove(&self, pod: &str) -> Result<()> {
        let deleted = self.pods().delete(pod, &DeleteParams::default()).await;
        deleted
            .map(|_| ())
            .doing(|| format!("cannot delete pod {pod}"))
    }

    async fn stays_tainted(&self, node: &str, wanted: bool, why: &str) -> Result<()> {
        let is_so = async || Ok(is_tainted(&self.node(node).await?) == wanted);
        self.stays(why, WHILE, is_so).await
    }

    /// What the agent of a node says of its configuration.
    async fn says(&self, node: &str, state: &str) -> Result<()> {
        self.report_of(
            node,
            &json!({ "bootId": "b", "kubeletStart": "k", "state": state, "probes": {} }),
        )
        .await
    }
}

/// Covers R06.
#[tokio::test]
async fn all_pods_on_the_node_must_be_ready_none_is_not_and_a_debounce_bridges_an_update()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("pods").await?;
    scene.prepare_readiness()?;
    let pods = |debounce: &str| {
        let selector = json!({ "matchLabels": { "app": "dp" } });
        let pods = json!({ "namespace": scene.name, "selector": selector, "debounce": debounce });
        json!([{ "name": "dp", "pods": pods }])
    };
    let rule = json!({ "extensions": pods("0s"), "evictAfter": "0s" });
    scene.rule("pods", rule).await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let node = scene.start(scene.describe("n1")).await?;
    let name = node.name().to_owned();
    let labelled = |it: &mut Value| it["metadata"]["labels"] = json!({ "app": "dp" });

    // None is not ready, and another pod, or one on another node, is none of them.
    scene.tainted(&name, true).await?;
    let other = scene.start(scene.describe("n2")).await?;
    scene.pod(&name, "bystander", |_| {}).await?;
    scene.pod(other.name(), "elsewhere", labelled).await?;
    scene.tainted(other.name(), false).await?;
    scene
        .stays_tainted(&name, true, "there is no such pod")
        .await?;

    // One that is ready opens it; of two, both must be.
    scene.pod(&name, "one", labelled).await?;
    scene.tainted(&name, false).await?;
    scene.pod(&name, "two", labelled).await?;
    scene.stays_tainted(&name, false, "both are ready").await?;
    scene.turn("two", false).await?;
    scene.tainted(&name, true).await?;
    assert!(!is_tainted(&scene.node(other.name()).await?));
    scene.turn("two", true).await?;
    scene.tainted(&name, false).await?;
    scene.turn("one", false).await?;
    scene.tainted(&name, true).await?;
    scene.remove("one").await?;
    scene.tainted(&name, false).await?;

    // With a debounce an update, old pod away and new one ready later, is ridden over; what lasts longer is not.
    scene
        .edit_rule("pods", json!({ "spec": { "extensions": pods("6s") } }))
        .await?;
    scene
        .rule_status("pods", |it| it["observedGeneration"] == 2)
        .await?;
    scene.remove("two").await?;
    scene
        .stays_tainted(&name, false, "for so long none is bridged")
        .await?;
    scene.pod(&name, "three", labelled).await?;
    scene
        .stays_tainted(&name, false, "the next one is ready")
        .await?;
    let unready = Instant::now();
    scene.turn("three", false).await?;
    scene.tainted(&name, true).await?;
    let took = unready.elapsed();
    assert!(took >= Duration::from_secs(5), "after {took:?}");
    scene.turn("three", true).await?;
    scene.tainted(&name, false).await.map(|_| ())
}

/// Covers R07.
#[tokio::test]
async fn a_condition_counts_within_its_freshness_and_one_that_is_false_at_once() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("fresh").await?;
    scene.prepare_readiness()?;
    let fresh = json!({ "type": "GpuReady", "freshness": "8s" });
    let once = json!({ "type": "NetReady" });
    let extensions = json!([
        { "name": "gpu", "condition": fresh }, { "name": "net", "condition": once },
    ]);
    scene
        .rule(
            "fresh",
            json!({ "extensions": extensions, "evictAfter": "0s" }),
        )
        .await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let node = scene.start(scene.describe("n1")).await?;
    let name = node.name().to_owned();
    scene.tainted(&name, true).await?;
    scene.condition(&name, "GpuReady", "True").await?;
    scene
        .stays_tainted(&name, true, "the other one is not there")
        .await?;
    // On a new node what is written once counts, and goes on to; what must be fresh must be written again.
    scene.condition(&name, "NetReady", "True").await?;
    scene.condition(&name, "GpuReady", "True").await?;
    scene.tainted(&name, false).await?;
    for _ in 0..3 {
        scene.condition(&name, "GpuReady", "True").await?;
        scene.stays_tainted(&name, false, "it is renewed").await?;
    }
    let last = Instant::now();
    scene.condition(&name, "GpuReady", "True").await?;
    scene.tainted(&name, true).await?;
    let took = last.elapsed();
    assert!(took >= Duration::from_secs(7), "after {took:?}");
    scene.condition(&name, "GpuReady", "True").await?;
    scene.tainted(&name, false).await?;
    let said = Instant::now();
    scene.condition(&name, "NetReady", "False").await?;
    scene.tainted(&name, true).await?;
    assert!(
        said.elapsed() < Duration::from_secs(6),
        "{:?}",
        said.elapsed()
    );
    Ok(())
}

/// Covers R16.
#[tokio::test]
async fn what_an_agent_says_of_itself_counts_only_where_a_rule_asks_and_evicts_nobody() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("state").await?;
    scene.prepare_readiness()?;
    // For comparison: an extension that is silent evicts, by the same times.
    let own = json!([{ "name": "evenkeel-agent", "lease": { "expiry": "30s" } }]);
    let other = json!([{ "name": "dp", "lease": { "expiry": "3s" } }]);
    let only = |label: &str| json!({ "matchLabels": { "place": scene.name, label: "yes" } });
    for (name, label, extensions) in [("agent", "asks", own), ("other", "silent", other)] {
        let rule =
            json!({ "nodeSelector": only(label), "extensions": extensions, "evictAfter": "1s" });
        scene.rule(name, rule).await?;
    }
    let options = [
        "--rule-selector",
        &format!("place={}", scene.name),
        "--eviction-pause=100ms",
        "--slow-eviction-pause=100ms",
    ];
    let _operator = scene.operator(&options)?;
    let asked = scene
        .start(scene.describe("asked").label("asks", "yes"))
        .await?;
    let free = scene.start(scene.describe("free")).await?;
    let silent = scene
        .start(scene.describe("silent").label("silent", "yes"))
        .await?;
    for node in [&asked, &free] {
        scene.says(node.name(), "Done").await?;
    }
    scene.tainted(asked.name(), false).await?;
    scene
        .renew(silent.name(), "dp", SignedDuration::ZERO)
        .await?;
    scene.tainted(silent.name(), false).await?;
    let mut pods: Vec<Pod> = Vec::new();
    for node in [&asked, &free, &silent] {
        let pod = format!("guest-of-{}", node.name());
        pods.push(scene.pod(node.name(), &pod, |_| {}).await?);
    }
    for node in [&asked, &free] {
        scene.says(node.name(), "Degraded").await?;
    }
    scene.tainted(asked.name(), true).await?;
    // The one whose extension is silent loses its pod meanwhile; whose agent is Degraded, and then silent, does not.
    let guest = format!("guest-of-{}", silent.name());
    until_async("the pod of the silent one to go", SOON, async || {
        let there = scene.pods().get_opt(&guest).await;
        Ok(match there.doing(|| "cannot read a pod")? {
            None => Look::Found(()),
            Some(there) => Look::NotYet(format!("{:?} {}", there.status, scene.log())),
        })
    })
    .await?;
    scene.tainted(silent.name(), true).await?;
    let lease = format!("{}.evenkeel-agent", asked.name());
    let leases = scene.leases();
    let deleted = leases.delete(&lease, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the Lease")?;
    let is_left_alone = async || {
        let mut there = 0;
        for pod in pods.iter().take(2) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let now = scene
                .pods()
                .get_opt(name)
                .await
                .doing(|| "cannot read a pod")?;
            let is_it = |it: &Pod| {
                it.metadata.uid == pod.metadata.uid && it.metadata.deletion_timestamp.is_none()
            };
            there += usize::from(now.is_some_and(|it| is_it(&it)));
        }
        Ok(there == 2)
    };
    scene
        .stays(
            "its state evicts nobody",
            Duration::from_secs(15),
            is_left_alone,
        )
        .await?;
    assert!(is_tainted(&scene.node(asked.name()).await?));
    assert!(
        !is_tainted(&scene.node(free.name()).await?),
        "no rule asks for it"
    );
    let condition = scene.node(asked.name()).await?;
    let owners =
        crate::scene::annotated(&condition, annotation::READINESS_OWNERS).map(str::to_owned);
    assert_eq!(owners, Some(scene.called("agent")));
    Ok(())
}

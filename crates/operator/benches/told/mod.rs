//! Tells the API server of many nodes at once that they are bad, and watches which of them are tainted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::scene::Scene;

/// How many requests the bare loop has under way, and whoever reports evidence: as many as the operator.
const AT_ONCE: usize = 32;
const LONG: Duration = Duration::from_mins(30);

/// When the API server had something about each node, by the node's name.
type Times = BTreeMap<String, Instant>;

/// What a watch of the bench's own has seen: who said that it is bad, and who was tainted.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) bad: Times,
    pub(crate) tainted: Times,
}

/// Follows the nodes of a scene, and their taints with this key.
pub(crate) fn watch(scene: &Scene, key: &'static str) -> Arc<Mutex<Seen>> {
    let api: Api<Node> = scene.nodes();
    let config = watcher::Config::default().labels(&format!("place={}", scene.name));
    let seen = Arc::<Mutex<Seen>>::default();
    let written = Arc::clone(&seen);
    tokio::spawn(async move {
        let mut changes = std::pin::pin!(watcher(api, config).default_backoff().applied_objects());
        while let Some(change) = changes.next().await {
            let Ok(node) = change else { continue };
            let (now, name) = (Instant::now(), node.name_any());
            let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
            let is_bad = conditions
                .into_iter()
                .flatten()
                .any(|it| it.type_ == "GpuReady" && it.status == "False");
            let mut seen = written.lock().unwrap_or_else(PoisonError::into_inner);
            if is_bad {
                seen.bad.entry(name.clone()).or_insert(now);
            } else {
                seen.bad.remove(&name);
            }
            let taints = node.spec.as_ref().and_then(|it| it.taints.as_ref());
            if taints.into_iter().flatten().any(|it| it.key == key) {
                seen.tainted.entry(name).or_insert(now);
            } else {
                seen.tainted.remove(&name);
            }
        }
    });
    seen
}

/// Waits until so many are tainted; says when the last one was, or, if none is to be, now.
pub(crate) async fn until_tainted(seen: &Mutex<Seen>, wanted: usize) -> Result<Instant> {
    until_async("all to be tainted, or none", LONG, async || {
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(if seen.tainted.len() == wanted {
            let last = seen.tainted.values().max().copied();
            Look::Found(last.unwrap_or(Instant::now()))
        } else {
            Look::NotYet(seen.tainted.len().to_string())
        })
    })
    .await
}

/// Patches every node, or its status.
pub(crate) async fn patch_all(
    scene: &Scene,
    names: &[String],
    patch: &Value,
    of_status: bool,
) -> Result<Duration> {
    let api: Api<Node> = scene.nodes();
    let begun = Instant::now();
    let parameters = PatchParams::default();
    let done = futures::stream::iter(names).map(async |name| {
        let done = if of_status {
            let patch = Patch::Strategic(patch);
            api.patch_status(name, &parameters, &patch).await
        } else {
            api.patch(name, &parameters, &Patch::Merge(patch)).await
        };
        done.map(|_| ())
    });
    let done: Vec<_> = done.buffer_unordered(AT_ONCE).collect().await;
    let done: kube::Result<()> = done.into_iter().collect();
    done.doing(|| "cannot patch a node")?;
    Ok(begun.elapsed())
}

/// One patch for each that taints it, and one to take that off again. The better of two counts.
pub(crate) async fn bare_loop(scene: &Scene, names: &[String], key: &str) -> Result<Duration> {
    let taints = json!([{ "key": key, "effect": "NoSchedule" }]);
    let with = json!({ "spec": { "taints": taints } });
    let without = json!({ "spec": { "taints": null } });
    let mut bare = Duration::MAX;
    for _ in 0..2 {
        bare = bare.min(patch_all(scene, names, &with, false).await?);
        patch_all(scene, names, &without, false).await?;
    }
    Ok(bare)
}

/// The condition that tells of a node, written now.
pub(crate) fn condition(status: &str) -> Value {
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    json!({ "status": { "conditions": [{
        "type": "GpuReady", "status": status, "reason": "Bench", "message": "", "lastHeartbeatTime": now,
    }] } })
}

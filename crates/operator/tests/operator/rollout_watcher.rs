//! Somebody outside of the operator who watches a rollout, and counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use evenkeel_api::names::annotation;
use evenkeel_testbed::{Error, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::runtime::watcher::{self, watcher};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::scene::{Scene, annotated, is_cordoned};

/// Somebody outside of the operator who sees every version of every Node, and counts.
pub(crate) struct RolloutWatcher {
    most_down: Arc<AtomicUsize>,
    most_told: Arc<AtomicUsize>,
    versions: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl RolloutWatcher {
    /// Watches the nodes of `scene` from now on.
    pub(crate) fn of(scene: &Scene) -> Self {
        let (most_down, most_told, versions) = (Arc::default(), Arc::default(), Arc::default());
        let counters: [Arc<AtomicUsize>; 3] = [
            Arc::clone(&most_down),
            Arc::clone(&most_told),
            Arc::clone(&versions),
        ];
        let config = watcher::Config::default().labels(&format!("place={}", scene.name));
        let mut changes = watcher(scene.nodes(), config).boxed();
        let task = tokio::spawn(async move {
            let mut nodes: BTreeMap<String, (bool, bool)> = BTreeMap::new();
            while let Some(change) = changes.next().await {
                match change {
                    Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => {
                        nodes.insert(node.name_any(), (is_down(&node), is_told(&node)));
                    }
                    Ok(watcher::Event::Delete(node)) => _ = nodes.remove(&node.name_any()),
                    _ => continue,
                }
                let down = nodes.values().filter(|it| it.0).count();
                let told = nodes.values().filter(|it| it.1).count();
                let [most_down, most_told, versions] = &counters;
                most_down.fetch_max(down, Ordering::SeqCst);
                most_told.fetch_max(told, Ordering::SeqCst);
                versions.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            most_down,
            most_told,
            versions,
            task,
        }
    }

    /// How many were down at once at most, and how many on their way.
    pub(crate) fn saw(&self) -> (usize, usize) {
        (
            self.most_down.load(Ordering::SeqCst),
            self.most_told.load(Ordering::SeqCst),
        )
    }

    /// How many versions of Nodes it has seen.
    pub(crate) fn versions(&self) -> usize {
        self.versions.load(Ordering::SeqCst)
    }

    /// An error if ever more than `limit` were down, or on their way, at once; or if it saw nothing.
    pub(crate) fn check(&self, limit: usize) -> Result<()> {
        let (down, told) = self.saw();
        if self.task.is_finished() || down == 0 || told == 0 {
            return Err(Error::failed(format!(
                "it saw {down} down and {told} on their way"
            )));
        }
        if down > limit || told > limit {
            return Err(Error::failed(format!(
                "{down} nodes were down and {told} on their way at once, and {limit} may be"
            )));
        }
        Ok(())
    }
}

impl Drop for RolloutWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether it is down, or may be, by the operator's doing.
fn is_down(node: &Node) -> bool {
    is_cordoned(node) || annotated(node, annotation::DRAIN_GRANTED).is_some()
}

/// Whether it was told something that it does not run yet.
fn is_told(node: &Node) -> bool {
    let desired = annotated(node, annotation::DESIRED_CONFIG);
    desired.is_some() && desired != annotated(node, annotation::CURRENT_CONFIG)
}

/// Somebody who sees every status of every pool of a scene.
pub(crate) struct StatusWatcher {
    since: Instant,
    written: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl StatusWatcher {
    pub(crate) fn of(scene: &Scene) -> Self {
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        let config = watcher::Config::default().labels(&format!("place={}", scene.name));
        let mut changes = watcher(scene.pools(), config).boxed();
        let task = tokio::spawn(async move {
            let mut known: BTreeMap<String, Value> = BTreeMap::new();
            while let Some(change) = changes.next().await {
                if let Ok(watcher::Event::Apply(pool) | watcher::Event::InitApply(pool)) = change {
                    let mut status = pool.data.get("status").cloned().unwrap_or_default();
                    // Permits are recorded when they are granted and returned; what is said is the rest.
                    if let Some(said) = status.as_object_mut() {
                        said.remove("permits");
                    }
                    let before = known.insert(pool.name_any(), status.clone());
                    if before.unwrap_or_default() != status {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        });
        Self {
            since: Instant::now(),
            written,
            task,
        }
    }

    /// How often the status of the scene's one pool was written; an error if more than once a second.
    pub(crate) fn check(&self) -> Result<usize> {
        let written = self.written.load(Ordering::SeqCst);
        let passed = self.since.elapsed();
        // One may stand at the beginning of the first second, and one at the end of the last.
        let may = usize::try_from(passed.as_secs()).unwrap_or(usize::MAX) + 2;
        if self.task.is_finished() || written == 0 || written > may {
            return Err(Error::failed(format!(
                "the status was written {written} times in {passed:?}"
            )));
        }
        Ok(written)
    }
}

impl Drop for StatusWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

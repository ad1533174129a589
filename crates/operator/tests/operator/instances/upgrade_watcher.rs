//! Somebody outside of the operator who watches nodes and a workload during an upgrade, and counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::{Error, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use tokio::task::JoinHandle;

use super::bed::{CURRENT, DESIRED, VERSION, is_up};
use crate::scene::{Scene, annotated, is_cordoned, is_ready};

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    /// Whether each node is down or on its way.
    away: BTreeMap<String, bool>,
    most_away: Vec<String>,
    /// Whether each pod is ready.
    pods: BTreeMap<String, bool>,
    fewest_pods: Option<usize>,
    /// When the pods of a node had left, and when it ran its new version.
    drained: BTreeMap<String, Instant>,
    took: BTreeMap<String, Duration>,
}

impl Seen {
    fn node(&mut self, node: &Node) {
        let name = node.name_any();
        let is_away = is_cordoned(node)
            || annotated(node, annotation::DRAIN_GRANTED).is_some()
            || !is_up(node)
            || annotated(node, CURRENT) != annotated(node, DESIRED);
        self.away.insert(name.clone(), is_away);
        let away: Vec<_> = self.away.iter().filter(|it| *it.1).collect();
        if away.len() > self.most_away.len() {
            self.most_away = away.into_iter().map(|it| it.0.clone()).collect();
        }
        let asked = annotated(node, annotation::DESIRED_DRAIN).unwrap_or_default();
        let is_drained = annotated(node, annotation::LAST_APPLIED_DRAIN) == Some(asked);
        let Some(version) = asked.strip_prefix("drain-upgrade-").filter(|_| is_drained) else {
            return;
        };
        let since = *self
            .drained
            .entry(name.clone())
            .or_insert_with(Instant::now);
        if annotated(node, VERSION) == Some(version) {
            self.took.entry(name).or_insert_with(|| since.elapsed());
        }
    }

    fn pod(&mut self, pod: &Pod, is_there: bool) {
        self.pods.insert(pod.name_any(), is_there && is_ready(pod));
        let ready = self.pods.values().filter(|it| **it).count();
        self.fewest_pods = Some(self.fewest_pods.map_or(ready, |it| it.min(ready)));
    }
}

/// Somebody who sees every version of every Node and pod.
pub(crate) struct UpgradeWatcher {
    seen: Arc<Mutex<Seen>>,
    tasks: [JoinHandle<()>; 2],
}

impl UpgradeWatcher {
    /// Watches the Windows nodes of `scene` that serve, and the pods of `app`, from now on.
    pub(crate) fn of(scene: &Scene, nodes: &[&str], app: &str) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let config = watcher::Config::default().labels(&format!("place={}", scene.name));
        let mut changes = watcher(scene.nodes(), config).boxed();
        let book = Arc::clone(&seen);
        let of_nodes = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                if let Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = change
                    && names.contains(&node.name_any())
                {
                    locked(&book).node(&node);
                }
            }
        });
        let pods: Api<Pod> = scene.pods();
        let config = watcher::Config::default().labels(&format!("app={app}"));
        let mut changes = watcher(pods, config).boxed();
        let book = Arc::clone(&seen);
        let of_pods = tokio::spawn(async move {
            let mut first = Vec::new();
            while let Some(change) = changes.next().await {
                match change {
                    // Nobody is missing before all were listed.
                    Ok(watcher::Event::InitApply(pod)) => first.push(pod),
                    Ok(watcher::Event::InitDone) => {
                        let mut book = locked(&book);
                        for pod in first.drain(..) {
                            book.pods.insert(pod.name_any(), is_ready(&pod));
                        }
                    }
                    Ok(watcher::Event::Apply(pod)) => locked(&book).pod(&pod, true),
                    Ok(watcher::Event::Delete(pod)) => locked(&book).pod(&pod, false),
                    _ => {}
                }
            }
        });
        Self {
            seen,
            tasks: [of_nodes, of_pods],
        }
    }

    /// An error if ever more than `nodes` were away at once or fewer than `pods` ready; or if it saw nothing.
    pub(crate) fn check(&self, nodes: usize, pods: usize) -> Result<()> {
        let seen = locked(&self.seen);
        let is_blind = seen.most_away.is_empty() || seen.fewest_pods.is_none();
        if is_blind || self.tasks.iter().any(JoinHandle::is_finished) {
            return Err(Error::failed(format!("it saw nothing: {seen:?}")));
        }
        if seen.most_away.len() > nodes || seen.fewest_pods.is_some_and(|it| it < pods) {
            return Err(Error::failed(format!(
                "{:?} were away at once, and {nodes} may be; {:?} pods were ready at the worst, and {pods} must be",
                seen.most_away, seen.fewest_pods
            )));
        }
        Ok(())
    }

    /// How long each node took from when its pods had left until it ran its new version.
    pub(crate) fn took(&self) -> BTreeMap<String, Duration> {
        locked(&self.seen).took.clone()
    }
}

fn locked(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for UpgradeWatcher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

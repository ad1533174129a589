//! Somebody outside of the operator who watches nodes go, and the pods on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_api::names::annotation;
use evenkeel_testbed::{Error, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::scene::{Scene, annotated, is_cordoned, is_ready};

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    /// Nodes that are there: whether each is unavailable, by the operator's doing.
    away: BTreeMap<String, bool>,
    most_away: BTreeSet<String>,
    /// Pods that are there: their node, and whether they are ready.
    pods: BTreeMap<String, (String, bool)>,
    fewest_pods: Option<usize>,
    /// Nodes that were stopped or deleted with pods on them.
    mistakes: Vec<String>,
    /// Nodes whose agents were stopped, and nodes that were deleted.
    stopped: BTreeSet<String>,
    gone: BTreeSet<String>,
}

impl Seen {
    fn node(&mut self, node: &Node) {
        let is_granted = annotated(node, annotation::DRAIN_GRANTED).is_some();
        let by_us = annotated(node, annotation::CORDONED_BY).is_some();
        let is_away = is_granted || (is_cordoned(node) && by_us) || !is_up(node);
        self.away.insert(node.name_any(), is_away);
        let away: BTreeSet<_> = self.away.iter().filter(|it| *it.1).collect();
        if away.len() > self.most_away.len() {
            self.most_away = away.into_iter().map(|it| it.0.clone()).collect();
        }
    }

    fn has_no_pods(&mut self, node: &str, what: &str) {
        let left = self.pods.iter().filter(|(_, (on, _))| on == node);
        let left: Vec<_> = left.map(|(name, _)| name.clone()).collect();
        if !left.is_empty() {
            self.mistakes.push(format!("{node} {what} with {left:?}"));
        }
    }

    fn pod(&mut self, pod: &Pod, is_there: bool) {
        if is_there {
            let node = pod.spec.as_ref().and_then(|it| it.node_name.clone());
            let state = (node.unwrap_or_default(), is_ready(pod));
            self.pods.insert(pod.name_any(), state);
        } else {
            self.pods.remove(&pod.name_any());
        }
        let ready = self.pods.values().filter(|it| it.1).count();
        self.fewest_pods = Some(self.fewest_pods.map_or(ready, |it| it.min(ready)));
    }
}

/// Somebody who sees every version of every Node and pod, and of what the operator remembers of instances.
pub(crate) struct RemovalWatcher {
    seen: Arc<Mutex<Seen>>,
    tasks: Vec<JoinHandle<()>>,
}

impl RemovalWatcher {
    /// Watches instances (address and Node) and the pods of `app`, from now on.
    pub(crate) fn watch(scene: &Scene, instances: &[(&str, &str)], app: &str) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let nodes: BTreeMap<String, String> = instances
            .iter()
            .map(|(address, node)| ((*address).to_owned(), (*node).to_owned()))
            .collect();
        let names: BTreeSet<String> = nodes.values().cloned().collect();
        let config = watcher::Config::default().labels(&format!("place={}", scene.name));
        let mut changes = watcher(scene.nodes(), config).boxed();
        let book = Arc::clone(&seen);
        let of_nodes = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                match change {
                    Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node))
                        if names.contains(&node.name_any()) =>
                    {
                        locked(&book).node(&node);
                    }
                    Ok(watcher::Event::Delete(node)) if names.contains(&node.name_any()) => {
                        let (name, mut book) = (node.name_any(), locked(&book));
                        book.away.remove(&name);
                        book.has_no_pods(&name, "was deleted");
                        book.gone.insert(name);
                    }
                    _ => {}
                }
            }
        });
        let config = watcher::Config::default().labels(&format!("app={app}"));
        let mut changes = watcher(scene.pods(), config).boxed();
        let book = Arc::clone(&seen);
        let of_pods = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                match change {
                    // Nobody is missing before all were listed.
                    Ok(watcher::Event::InitApply(pod)) => {
                        let mut book = locked(&book);
                        book.pod(&pod, true);
                        book.fewest_pods = None;
                    }
                    Ok(watcher::Event::Apply(pod)) => locked(&book).pod(&pod, true),
                    Ok(watcher::Event::Delete(pod)) => locked(&book).pod(&pod, false),
                    _ => {}
                }
            }
        });
        let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), &scene.name);
        let config = watcher::Config::default().labels("evenkeel.dev/instance-status=true");
        let mut changes = watcher(maps, config).boxed();
        let book = Arc::clone(&seen);
        let of_records = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                let Ok(watcher::Event::Apply(map)) = change else {
                    continue;
                };
                let data = map.data.unwrap_or_default();
                let text = data.get("status").map_or("null", String::as_str);
                let record: Value = serde_json::from_str(text).unwrap_or_default();
                let node = data.get("instance").and_then(|it| nodes.get(it));
                let Some(node) = node.filter(|_| record["isGoing"] == true) else {
                    continue;
                };
                let mut book = locked(&book);
                // Its agent is stopped after that was written.
                book.has_no_pods(node, "was stopped");
                book.stopped.insert(node.clone());
            }
        });
        Self {
            seen,
            tasks: vec![of_nodes, of_pods, of_records],
        }
    }

    /// Nodes whose agents were stopped.
    pub(crate) fn stopped(&self) -> BTreeSet<String> {
        locked(&self.seen).stopped.clone()
    }

    /// An error if ever more than `limit` nodes were unavailable at once, fewer than `pods` ready, or one of `nodes` was stopped
    /// or deleted with pods on it; or if it did not see them go.
    pub(crate) fn check(&self, limit: usize, pods: usize, nodes: &[String]) -> Result<()> {
        let seen = locked(&self.seen);
        let all: BTreeSet<_> = nodes.iter().cloned().collect();
        let is_blind = seen.gone != all || seen.fewest_pods.is_none();
        if is_blind || self.tasks.iter().any(JoinHandle::is_finished) {
            return Err(Error::failed(format!("it did not see them go: {seen:?}")));
        }
        let too_few = seen.fewest_pods.is_some_and(|it| it < pods);
        if seen.most_away.len() > limit || too_few || !seen.mistakes.is_empty() {
            return Err(Error::failed(format!(
                "at most {limit} nodes may be unavailable, and {pods} pods must be ready: {seen:?}"
            )));
        }
        println!(
            "proof: {:?} were unavailable at the worst, and {:?} pods ready",
            seen.most_away, seen.fewest_pods
        );
        Ok(())
    }
}

fn is_up(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for RemovalWatcher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

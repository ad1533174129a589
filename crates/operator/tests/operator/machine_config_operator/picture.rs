//! All that is theirs on a cluster, without what is never the same twice: times, and numbers that a cluster gives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_testbed::{Doing, Error, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::runtime::watcher::{self, watcher};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::scene::Scene;

/// Never the same twice, wherever they are in an object.
const FLEETING: [&str; 9] = [
    "bootID",
    "creationTimestamp",
    "lastHeartbeatTime",
    "lastTransitionTime",
    "lastUpdateTime",
    "resourceVersion",
    "time",
    "timeAdded",
    "uid",
];
/// Put on a Node by the control plane when its kubelet comes and goes: how often depends on how busy this machine is.
const RESTLESS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// What one Node went through: for each thing that is said of it, all values, one after the other.
type History = BTreeMap<String, Vec<String>>;

/// What the Nodes of a scene go through, seen by somebody outside who misses no version.
pub(crate) struct Histories {
    seen: Arc<Mutex<BTreeMap<String, History>>>,
    task: JoinHandle<()>,
}

impl Histories {
    /// From now on.
    pub(crate) fn of(scene: &Scene) -> Self {
        let seen = Arc::<Mutex<BTreeMap<String, History>>>::default();
        let noted = Arc::clone(&seen);
        let config = watcher::Config::default().labels(&format!("place={}", scene.name));
        let mut changes = watcher(scene.nodes(), config).boxed();
        let task = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                if let Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = change {
                    let mut all = noted.lock().unwrap_or_else(PoisonError::into_inner);
                    note(all.entry(node.name_any()).or_default(), &said(&node));
                }
            }
        });
        Self { seen, task }
    }

    fn all(&self) -> Result<BTreeMap<String, History>> {
        if self.task.is_finished() {
            return Err(Error::failed("nobody watched the nodes to the end"));
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seen.clone())
    }
}

impl Drop for Histories {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is said of a Node by annotations, labels, taints and a cordon.
fn said(node: &Node) -> BTreeMap<String, String> {
    let spec = node.spec.clone().unwrap_or_default();
    let of_annotations = node
        .annotations()
        .iter()
        .map(|(name, value)| (format!("annotation {name}"), value.clone()));
    let of_labels = node
        .labels()
        .iter()
        .map(|(name, value)| (format!("label {name}"), value.clone()));
    let taints = spec.taints.unwrap_or_default().into_iter();
    let taints = taints
        .filter(|it| !RESTLESS.contains(&it.key.as_str()))
        .map(|it| {
            let value = it.value.unwrap_or_default();
            (
                format!("taint {}", it.key),
                format!("{value}:{}", it.effect),
            )
        });
    let cordon = ("cordon".to_owned(), format!("{:?}", spec.unschedulable));
    of_annotations
        .chain(of_labels)
        .chain(taints)
        .chain([cordon])
        .collect()
}

/// Notes what has changed. What is said no more is empty.
fn note(history: &mut History, said: &BTreeMap<String, String>) {
    for (what, values) in history.iter_mut() {
        if !said.contains_key(what) && values.last().is_some_and(|it| !it.is_empty()) {
            values.push(String::new());
        }
    }
    for (what, value) in said {
        let values = history.entry(what.clone()).or_default();
        if values.last() != Some(value) {
            values.push(value.clone());
        }
    }
}

/// All that is theirs, and what their nodes went through.
pub(crate) struct Picture {
    objects: BTreeMap<String, Value>,
    histories: BTreeMap<String, History>,
}

impl Picture {
    /// What is there now.
    pub(crate) async fn of(scene: &Scene, pool: &str, histories: &Histories) -> Result<Self> {
        let mut objects = BTreeMap::new();
        let all = ListParams::default();
        let found = scene.pools().get(pool).await.doing(|| "no pool")?;
        objects.insert(format!("pool {pool}"), json!(found));
        for config in scene
            .configs()
            .list(&all)
            .await
            .doing(|| "no configs")?
            .items
        {
            objects.insert(
                format!("MachineConfig {}", config.name_any()),
                json!(config),
            );
        }
        for node in scene.nodes().list(&all).await.doing(|| "no nodes")?.items {
            objects.insert(format!("node {}", node.name_any()), json!(node));
        }
        for object in objects.values_mut() {
            strip(object);
            // The API server has them in the order of their times.
            if let Some(managed) = object["metadata"]["managedFields"].as_array_mut() {
                managed.sort_by_key(Value::to_string);
            }
        }
        Ok(Self {
            objects,
            histories: histories.all()?,
        })
    }

    /// An error with the first difference.
    pub(crate) fn is_the_same_as(&self, other: &Self) -> Result<()> {
        let differ = |what: &str, one: String, another: String| {
            Err(Error::failed(format!(
                "{what} is\n{one}\nwithout ours, and with ours\n{another}"
            )))
        };
        let names = |of: &Self| json!(of.objects.keys().collect::<Vec<_>>());
        if names(self) != names(other) {
            return differ(
                "what is there",
                format!("{:#}", names(self)),
                format!("{:#}", names(other)),
            );
        }
        for (name, object) in &self.objects {
            if *object != other.objects[name] {
                return differ(
                    name,
                    format!("{object:#}"),
                    format!("{:#}", other.objects[name]),
                );
            }
        }
        for (node, history) in &self.histories {
            let another = other.histories.get(node);
            if Some(history) != another {
                return differ(
                    &format!("what {node} went through"),
                    format!("{history:#?}"),
                    format!("{another:#?}"),
                );
            }
        }
        Ok(())
    }

    /// How many MachineConfigs there are.
    pub(crate) fn configs(&self) -> usize {
        let names = self.objects.keys();
        names.filter(|it| it.starts_with("MachineConfig ")).count()
    }

    /// How often anything changed that is said of a node.
    pub(crate) fn changes(&self) -> usize {
        let values = self.histories.values().flat_map(BTreeMap::values);
        values.map(|it| it.len() - 1).sum()
    }
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let kept = std::mem::take(fields).into_iter();
            let kept = kept.filter(|(name, _)| !FLEETING.contains(&name.as_str()));
            fields.extend(kept.map(|(name, mut value)| {
                strip(&mut value);
                // An owner, in the list of who wrote which field.
                let is_owner = name.starts_with("k:{\"uid\":");
                (if is_owner { "owner".to_owned() } else { name }, value)
            }));
        }
        Value::Array(elements) => elements.iter_mut().for_each(strip),
        _ => {}
    }
}

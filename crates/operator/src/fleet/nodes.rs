//! Nodes, as narrow as our decisions need them: read, kept and written. A whole Node has 12 KiB, what
//! is kept of it here a few hundred bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::names::taint;
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::fleet::drain::Candidate;
use evenkeel_plan::fleet::node::NodePatch;
use evenkeel_plan::fleet::node_facts::{self, NodeFacts, NodeMetadata, NodeSpec, NodeStatus};
use futures::StreamExt;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::objects::{Objects, list_all, metadata, narrow, ours};
use crate::store::{Identity, Kept, Store};

/// How many objects are asked for at a time: also if all of them are as large as can be (1.5 MiB), there is room for them.
pub(crate) const PAGE: u32 = 15;
/// How many nodes are written at once.
const WRITES: usize = 16;
/// How long after the API server failed it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// A Node as the API server has it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeObject {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: NodeSpec,
    status: NodeStatus,
}

narrow!(NodeObject, "Node", "nodes", "", ClusterResourceScope);

impl From<NodeObject> for NodeFacts {
    fn from(object: NodeObject) -> Self {
        let NodeObject {
            metadata,
            spec,
            status,
        } = object;
        Self::from(node_facts::NodeObject {
            metadata: NodeMetadata {
                name: metadata.name.unwrap_or_default(),
                uid: metadata.uid.unwrap_or_default(),
                resource_version: metadata.resource_version.unwrap_or_default(),
                creation_timestamp: metadata.creation_timestamp.map(|it| it.0),
                labels: metadata.labels.unwrap_or_default(),
                annotations: metadata.annotations.unwrap_or_default(),
            },
            spec,
            status,
        })
    }
}

/// How an Event names a Node.
pub(crate) fn reference(node: &NodeFacts) -> ObjectReference {
    node.identity().reference("v1".to_owned(), "Node")
}

/// The taints of a Node, with those of ours that are to be there, and without the others.
fn taints(node: &NodeFacts, change: &BTreeMap<&str, bool>) -> Vec<Value> {
    let is_other = |it: &&Value| !it["key"].as_str().is_some_and(|it| change.contains_key(it));
    let others = node.taints().iter().filter(is_other).cloned();
    let ours = change.iter().filter(|(_, is_there)| **is_there);
    let ours = ours.map(|(key, _)| json!({ "key": key, "effect": taint::effect(key) }));
    others.chain(ours).collect()
}

impl Kept for NodeFacts {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.node.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        (&self.node, &self.instance) == (&other.node, &other.instance)
    }
}

/// All Nodes that we care for: one store for all controllers.
#[derive(Clone)]
pub(crate) struct Nodes(Objects<NodeObject, NodeFacts>);

impl Nodes {
    pub(crate) fn new(client: Client) -> Self {
        Self(Objects::new(Api::all(client)))
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<NodeFacts> {
        self.0.store()
    }

    /// Keeps them, those with `labels` only, until the program is asked to stop.
    pub(crate) async fn keep(&self, labels: Option<&str>, check: Check, stop: &Stop) {
        self.0.keep("nodes", watching(labels), check, stop).await;
    }

    /// The Node as it is now, if there is one.
    pub(crate) async fn read(&self, name: &str) -> kube::Result<Option<NodeFacts>> {
        let object = self.0.api().get_opt(name).await?;
        Ok(object.map(NodeFacts::from))
    }

    /// All Nodes of the cluster, also those that we do not care for: a pod that has to go somewhere may go to any.
    pub(crate) async fn candidates(&self) -> kube::Result<Vec<Candidate>> {
        let page = ListParams::default().limit(PAGE);
        list_all(self.0.api(), page, |it| NodeFacts::from(it).candidate()).await
    }

    /// Writes a JSON Patch on the Node, and takes note of it.
    pub(crate) async fn patch(&self, name: &str, steps: &[Value]) -> kube::Result<NodeFacts> {
        let patch: json_patch::Patch =
            serde_json::from_value(json!(steps)).map_err(kube::Error::SerdeError)?;
        let patch: Patch<()> = Patch::Json(patch);
        let written = self.0.api().patch(name, &ours(), &patch).await?;
        Ok(self.0.noted(written))
    }

    /// Writes conditions into the status of the Node, and takes note of it.
    pub(crate) async fn publish(&self, name: &str, conditions: &Value) -> kube::Result<NodeFacts> {
        let patch = Patch::Strategic(json!({ "status": { "conditions": conditions } }));
        let written = self.0.api().patch_status(name, &ours(), &patch).await?;
        Ok(self.0.noted(written))
    }

    /// Writes `change` on the Node, provided that it is still as it was `seen`, and takes note of it.
    pub(crate) async fn write(&self, seen: &NodeFacts, change: &NodePatch) -> kube::Result<()> {
        let mut patch = json!({ "metadata": { "annotations": change.annotations } });
        if let Some(unschedulable) = change.unschedulable {
            // Absent is what everybody else writes for a node that is not cordoned.
            patch["spec"]["unschedulable"] = json!(unschedulable.then_some(true));
        }
        if !change.taints.is_empty() {
            // A list is written whole; whoever else wrote to it since makes this one fail, and be tried again.
            patch["spec"]["taints"] = json!(taints(seen, &change.taints));
        }
        self.0.merge_as_seen(seen, patch).await.map(|_| ())
    }

    /// Writes each change on its Node, some at a time, and says so; `what` is written cannot be, where one fails. Those
    /// that took effect, and when it is to be tried again.
    pub(crate) async fn write_all(
        &self,
        pool: Option<&str>,
        what: &str,
        writes: Vec<(NodeFacts, NodePatch)>,
    ) -> (Vec<(NodeFacts, NodePatch)>, Option<Duration>) {
        let writes = futures::stream::iter(writes).map(async |(seen, change)| {
            let written = self.write(&seen, &change).await;
            (seen, change, written)
        });
        let answers: Vec<_> = writes.buffer_unordered(WRITES).collect().await;
        let (mut done, mut again) = (Vec::new(), None);
        for (seen, change, written) in answers {
            let node = &seen.node.name;
            match written {
                Ok(()) => {
                    let (annotations, taints) = (&change.annotations, &change.taints);
                    tracing::info!(pool, node, ?taints, "wrote on the node: {annotations:?}");
                    done.push((seen, change));
                }
                // Somebody else wrote to it, or it is gone: the watch will show it.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => {
                    tracing::warn!(pool, node, "cannot write {what}, will retry: {error}");
                    again = Some(AGAIN);
                }
            }
        }
        (done, again)
    }
}

/// A watch on objects with `labels` only.
pub(crate) fn watching(labels: Option<&str>) -> watcher::Config {
    let config = watcher::Config::default().page_size(PAGE);
    match labels {
        Some(labels) => config.labels(labels),
        None => config,
    }
}

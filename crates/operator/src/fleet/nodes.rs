//! Nodes, as narrow as our decisions need them: read, kept and written. A whole Node has 12 KiB, what
//! is kept of it here a few hundred bytes.

use std::time::Duration;

use evenkeel_api::names::{annotation, taint};
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::fleet::bounds;
use evenkeel_plan::fleet::drain::Candidate;
use evenkeel_plan::fleet::node::{Node, NodePatch};
use evenkeel_plan::readiness::{ConditionSnapshot, NodeSnapshot, own_list};
use futures::StreamExt;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::objects::{Objects, list_all, narrow, ours};
use crate::store::{Identity, Kept, Store};

/// How many objects are asked for at a time: also if all of them are as large as can be (1.5 MiB), there is room for them.
pub(crate) const PAGE: u32 = 15;
/// How many nodes are written at once.
const WRITES: usize = 16;
/// How long after the API server failed it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What is read of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeObject {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
    taints: Vec<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    conditions: Vec<Condition>,
    node_info: NodeInfo,
    addresses: Vec<Address>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot_id: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: Box<str>,
    status: Box<str>,
    last_heartbeat_time: Option<Box<str>>,
    last_transition_time: Option<Box<str>>,
}

narrow!(NodeObject, "Node", "nodes", "", ClusterResourceScope);

/// A Node as it was at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) node: Node,
    pub(crate) uid: String,
    pub(crate) version: String,
    /// Its addresses and names, as its kubelet says.
    pub(crate) addresses: Box<[Box<str>]>,
    /// The instance that it was made of, with the user who logs in there.
    pub(crate) instance: Option<Box<str>>,
    /// What only readiness looks at; the rest of it is above.
    readiness: NodeSnapshot,
}

impl From<NodeObject> for Seen {
    fn from(object: NodeObject) -> Self {
        let NodeObject {
            mut metadata,
            spec,
            mut status,
        } = object;
        // Before any is left out: whoever writes the first one makes the map.
        let has_annotations = metadata
            .annotations
            .as_ref()
            .is_some_and(|it| !it.is_empty());
        let extensions = metadata
            .annotations
            .as_mut()
            .and_then(|it| it.remove(annotation::SYSTEM_EXTENSIONS))
            .map(own_list::bounded);
        if let Some(all) = &mut metadata.annotations {
            bounds::annotations(all);
        }
        if let Some(all) = &mut metadata.labels {
            bounds::labels(all);
        }
        status.conditions.truncate(bounds::MANY);
        status.addresses.truncate(bounds::MANY);
        let is_ready = |it: &Condition| *it.kind == *"Ready" && *it.status == *"True";
        let annotation = |name: &str| metadata.annotations.as_ref()?.get(name).cloned();
        let mut readiness = NodeSnapshot {
            boot_id: status.node_info.boot_id,
            taints: spec.taints,
            owners: annotation(annotation::READINESS_OWNERS),
            record: annotation(annotation::READINESS_RECORD),
            extensions,
            has_annotations,
            ..NodeSnapshot::default()
        };
        let instance = annotation(annotation::INSTANCE).map(Into::into);
        let mut node = Node {
            ready: status.conditions.iter().any(is_ready),
            unschedulable: spec.unschedulable,
            ..Node::of(
                metadata.name.unwrap_or_default(),
                metadata
                    .creation_timestamp
                    .map_or_else(Default::default, |it| it.0),
                &metadata.labels.unwrap_or_default(),
                metadata.annotations.unwrap_or_default(),
            )
        };
        if let Some(windows) = &mut node.windows {
            windows.addresses = status
                .addresses
                .iter()
                .map(|it| it.address.clone())
                .collect();
        }
        readiness.conditions = status
            .conditions
            .into_iter()
            .map(|it| ConditionSnapshot {
                kind: it.kind,
                status: it.status,
                transition: it.last_transition_time.unwrap_or_default(),
                heartbeat: it.last_heartbeat_time.unwrap_or_default(),
            })
            .collect();
        Self {
            node,
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            addresses: status
                .addresses
                .into_iter()
                .map(|it| it.address.into())
                .collect(),
            instance,
            readiness,
        }
    }
}

impl Seen {
    /// The Node, as readiness looks at it.
    pub(crate) fn snapshot(&self) -> NodeSnapshot {
        NodeSnapshot {
            name: self.node.name.clone(),
            uid: self.uid.clone(),
            labels: self.node.labels.clone(),
            has_permit: self.node.claims_permit(),
            ..self.readiness.clone()
        }
    }

    /// The Node, as a pod looks at it that has to go somewhere.
    fn candidate(&self) -> Candidate {
        Candidate::of(&self.node, &self.readiness.taints)
    }

    /// Its taints, with the one that says that the operator's own pods leave it, or without.
    fn taints(&self, draining: bool) -> Vec<Value> {
        let taints = self.readiness.taints.iter();
        let others = taints.filter(|it| it["key"] != taint::DRAINING);
        let ours =
            draining.then(|| json!({ "key": taint::DRAINING, "effect": "PreferNoSchedule" }));
        others.cloned().chain(ours).collect()
    }

    /// How an Event names this Node.
    pub(crate) fn reference(&self) -> ObjectReference {
        let api_version = "v1".to_owned();
        self.identity().reference(api_version, "Node")
    }
}

impl Kept for Seen {
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
pub(crate) struct Nodes(Objects<NodeObject, Seen>);

impl Nodes {
    pub(crate) fn new(client: Client) -> Self {
        Self(Objects::new(Api::all(client)))
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<Seen> {
        self.0.store()
    }

    /// Keeps them, those with `labels` only, until the program is asked to stop.
    pub(crate) async fn keep(&self, labels: Option<&str>, check: Check, stop: &Stop) {
        self.0.keep("nodes", watching(labels), check, stop).await;
    }

    /// The Node as it is now, if there is one.
    pub(crate) async fn read(&self, name: &str) -> kube::Result<Option<Seen>> {
        let object = self.0.api().get_opt(name).await?;
        Ok(object.map(Seen::from))
    }

    /// All Nodes of the cluster, also those that we do not care for: a pod that has to go somewhere may go to any.
    pub(crate) async fn candidates(&self) -> kube::Result<Vec<Candidate>> {
        let page = ListParams::default().limit(PAGE);
        list_all(self.0.api(), page, |it| Seen::from(it).candidate()).await
    }

    /// Writes a JSON Patch on the Node, and takes note of it.
    pub(crate) async fn patch(&self, name: &str, steps: &[Value]) -> kube::Result<Seen> {
        let patch: json_patch::Patch =
            serde_json::from_value(json!(steps)).map_err(kube::Error::SerdeError)?;
        let patch: Patch<()> = Patch::Json(patch);
        let written = self.0.api().patch(name, &ours(), &patch).await?;
        Ok(self.0.noted(written))
    }

    /// Writes conditions into the status of the Node, and takes note of it.
    pub(crate) async fn publish(&self, name: &str, conditions: &Value) -> kube::Result<Seen> {
        let patch = Patch::Strategic(json!({ "status": { "conditions": conditions } }));
        let written = self.0.api().patch_status(name, &ours(), &patch).await?;
        Ok(self.0.noted(written))
    }

    /// Writes `change` on the Node, provided that it is still as it was `seen`, and takes note of it.
    pub(crate) async fn write(&self, seen: &Seen, change: &NodePatch) -> kube::Result<()> {
        let mut patch = json!({ "metadata": { "annotations": change.annotations } });
        if let Some(unschedulable) = change.unschedulable {
            // Absent is what everybody else writes for a node that is not cordoned.
            patch["spec"]["unschedulable"] = json!(unschedulable.then_some(true));
        }
        if let Some(draining) = change.draining_taint {
            // A list is written whole; whoever else wrote to it since makes this one fail, and be tried again.
            patch["spec"]["taints"] = json!(seen.taints(draining));
        }
        self.0.merge_as_seen(seen, patch).await.map(|_| ())
    }

    /// Writes each change on its Node, some at a time, and says so; `what` is written cannot be, where one fails. Those
    /// that took effect, and when it is to be tried again.
    pub(crate) async fn write_all(
        &self,
        pool: Option<&str>,
        what: &str,
        writes: Vec<(Seen, NodePatch)>,
    ) -> (Vec<(Seen, NodePatch)>, Option<Duration>) {
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
                    tracing::info!(pool, node, "wrote on the node: {:?}", change.annotations);
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

#[cfg(test)]
mod tests {
    use evenkeel_api::names::label;

    use super::*;

    #[test]
    fn of_a_node_what_decides_is_read_and_nothing_else() {
        let object = json!({
            "metadata": {
                "name": "n1", "uid": "u", "resourceVersion": "9",
                "labels": { label::OS: "linux", label::ZONE: "a" },
                "annotations": { annotation::DESIRED_DRAIN: "drain-x", "other": "x" },
            },
            "spec": { "unschedulable": true, "taints": [] },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "x" }] },
        });
        let seen: Seen = serde_json::from_value::<NodeObject>(object).unwrap().into();
        assert!(seen.node.ready && seen.node.unschedulable);
        assert_eq!(seen.node.zone(), "a");
        assert_eq!(seen.node.desired_drain.as_deref(), Some("drain-x"));
        let Identity { name, uid, version } = seen.identity();
        assert_eq!((name, uid, version), ("n1", "u", "9"));
    }
}

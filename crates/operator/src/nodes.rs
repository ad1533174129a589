//! Nodes, as narrow as our decisions need them: read, kept and written. A whole Node has 12 KiB, what
//! is kept of it here a few hundred bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use evenkeel_api::names::{annotation, label, program};
use evenkeel_plan::node::{Change, Node};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::Deserialize;
use serde_json::json;

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
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Resource for NodeObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A Node as it was at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) node: Node,
    pub(crate) uid: String,
    pub(crate) version: String,
}

impl From<NodeObject> for Seen {
    fn from(object: NodeObject) -> Self {
        let NodeObject {
            metadata,
            spec,
            status,
        } = object;
        let mut annotations = metadata.annotations.unwrap_or_default();
        let labels = metadata.labels.unwrap_or_default();
        let is_ready = |it: &Condition| it.kind == "Ready" && it.status == "True";
        let node = Node {
            name: metadata.name.unwrap_or_default(),
            created: metadata
                .creation_timestamp
                .map_or_else(Default::default, |it| it.0),
            os: labels.get(label::OS).cloned(),
            labels: labels.iter().collect(),
            ready: status.conditions.iter().any(is_ready),
            unschedulable: spec.unschedulable,
            desired_drain: annotations.remove(annotation::DESIRED_DRAIN),
            last_applied_drain: annotations.remove(annotation::LAST_APPLIED_DRAIN),
            cordoned_by: annotations.remove(annotation::CORDONED_BY),
            drain_granted: annotations.remove(annotation::DRAIN_GRANTED),
            reason: annotations.remove(annotation::REASON),
            desired_config: annotations.remove(annotation::DESIRED_CONFIG),
            current_config: annotations.remove(annotation::CURRENT_CONFIG),
            state: annotations.remove(annotation::STATE),
            drift: annotations.remove(annotation::DRIFT),
        };
        Self {
            node,
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
        }
    }
}

impl Seen {
    /// How an Event names this Node.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// Whether `other` is a later version of the same Node, or another Node of the same name.
    fn is_older_than(&self, other: &Self) -> bool {
        let number = |seen: &Self| seen.version.parse::<u64>().ok();
        self.uid != other.uid
            || match (number(self), number(other)) {
                (Some(mine), Some(theirs)) => mine < theirs,
                _ => true,
            }
    }
}

/// Writes `change` on the Node, provided that it is still as it was `seen`.
pub(crate) async fn write(
    nodes: &Api<NodeObject>,
    seen: &Seen,
    change: &Change,
) -> kube::Result<Seen> {
    let mut patch = json!({
        "metadata": {
            "uid": seen.uid,
            "resourceVersion": seen.version,
            "annotations": change.annotations,
        },
    });
    if let Some(unschedulable) = change.unschedulable {
        // Absent is what everybody else writes for a node that is not cordoned.
        patch["spec"]["unschedulable"] = json!(unschedulable.then_some(true));
    }
    let parameters = PatchParams {
        field_manager: Some(program::OPERATOR.to_owned()),
        ..PatchParams::default()
    };
    let name = &seen.node.name;
    let written = nodes.patch(name, &parameters, &Patch::Merge(patch)).await?;
    Ok(written.into())
}

/// All Nodes that we care for, by name.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    seen: BTreeMap<String, Seen>,
}

impl Nodes {
    /// Remembers a Node unless a later version is known. Says whether anything that matters differs.
    pub(crate) fn put(&mut self, seen: Seen) -> bool {
        match self.seen.get_mut(&seen.node.name) {
            Some(known) if !known.is_older_than(&seen) => false,
            Some(known) => {
                let differs = known.node != seen.node || known.uid != seen.uid;
                *known = seen;
                differs
            }
            None => {
                self.seen.insert(seen.node.name.clone(), seen);
                true
            }
        }
    }

    /// Forgets a Node, unless it is another one of that name by now.
    pub(crate) fn remove(&mut self, name: &str, uid: &str) {
        if self.seen.get(name).is_some_and(|seen| seen.uid == uid) {
            self.seen.remove(name);
        }
    }

    /// Forgets every Node whose name is not in `names`.
    pub(crate) fn keep(&mut self, names: &std::collections::BTreeSet<String>) {
        self.seen.retain(|name, _| names.contains(name));
    }

    /// All of them, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Seen> {
        self.seen.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(version: &str, uid: &str, desired: Option<&str>) -> Seen {
        let object = json!({
            "metadata": {
                "name": "n1", "uid": uid, "resourceVersion": version,
                "annotations": desired.map(|it| json!({ annotation::DESIRED_DRAIN: it })),
            },
            "spec": { "unschedulable": true, "taints": [] },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "x" }] },
        });
        serde_json::from_value::<NodeObject>(object).unwrap().into()
    }

    #[test]
    fn what_came_late_does_not_replace_what_is_newer() {
        let mut nodes = Nodes::default();
        assert!(nodes.put(seen("9", "a", None)));
        assert!(!nodes.put(seen("10", "a", None)), "nothing that matters");
        assert!(!nodes.put(seen("9", "a", Some("drain-x"))));
        assert!(nodes.put(seen("11", "a", Some("drain-x"))));
        assert!(nodes.put(seen("3", "another", None)));
        nodes.remove("n1", "a");
        let only = nodes.iter().next().unwrap();
        assert!(only.node.ready && only.node.unschedulable);
        nodes.keep(&std::collections::BTreeSet::new());
        assert_eq!(nodes.iter().count(), 0);
    }
}

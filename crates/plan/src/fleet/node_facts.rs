//! A Node, read once into the facts that decisions need: by the operator, which keeps them of every Node, and by the command
//! line, which shows what the operator would decide. A whole Node has 12 KiB, its facts a few hundred bytes.

use std::collections::BTreeMap;

use evenkeel_api::names::{annotation, taint};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::fleet::bounds;
use crate::fleet::drain::Candidate;
use crate::fleet::node::Node;
use crate::readiness::{ConditionSnapshot, NodeSnapshot, own_list};

/// What is read of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    /// Its name, labels and annotations.
    pub metadata: NodeMetadata,
    /// What others want of it.
    pub spec: NodeSpec,
    /// What its kubelet says.
    pub status: NodeStatus,
}

/// What is read of the metadata of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeMetadata {
    /// Its name.
    pub name: String,
    /// Which of all Nodes that ever had this name it is.
    pub uid: String,
    /// The version of the object.
    pub resource_version: String,
    /// When the object was made.
    pub creation_timestamp: Option<Timestamp>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What is read of the spec of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    unschedulable: bool,
    taints: Vec<Value>,
}

/// What is read of the status of a Node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
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

/// What decisions need of a Node as it was at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// What rollouts, drains and upgrades look at.
    pub node: Node,
    /// Which of all Nodes that ever had this name it is.
    pub uid: String,
    /// The version of the object.
    pub version: String,
    /// The instance that it was made of, with the user who logs in there.
    pub instance: Option<Box<str>>,
    /// What only readiness looks at; the rest of it is above.
    readiness: NodeSnapshot,
}

impl From<NodeObject> for NodeFacts {
    fn from(object: NodeObject) -> Self {
        let NodeObject {
            mut metadata,
            spec,
            mut status,
        } = object;
        // Before any is left out: whoever writes the first one makes the map.
        let has_annotations = !metadata.annotations.is_empty();
        let extensions = metadata.annotations.remove(annotation::SYSTEM_EXTENSIONS);
        bounds::annotations(&mut metadata.annotations);
        bounds::labels(&mut metadata.labels);
        status.conditions.truncate(bounds::MANY);
        status.addresses.truncate(bounds::MANY);
        let condition = status.conditions.iter().find(|it| *it.kind == *"Ready");
        let ready = condition.is_some_and(|it| *it.status == *"True");
        let not_ready_since = condition
            .filter(|_| !ready)
            .and_then(|it| it.last_transition_time.as_deref()?.parse().ok());
        let annotation = |name: &str| metadata.annotations.get(name).cloned();
        let names = metadata.annotations.keys();
        let completed_nrc = names
            .filter_map(|it| it.strip_prefix(annotation::NRC_BOOTSTRAP_COMPLETED))
            .map(Into::into);
        let conditions = status.conditions.into_iter().map(|it| ConditionSnapshot {
            kind: it.kind,
            status: it.status,
            transition: it.last_transition_time.unwrap_or_default(),
            heartbeat: it.last_heartbeat_time.unwrap_or_default(),
        });
        let has = |key: &&str| spec.taints.iter().any(|it| it["key"] == **key);
        let taints = taint::ALL.into_iter().filter(has).collect();
        let readiness = NodeSnapshot {
            boot_id: status.node_info.boot_id,
            taints: spec.taints,
            owners: annotation(annotation::READINESS_OWNERS),
            record: annotation(annotation::READINESS_RECORD),
            own_taints: annotation(annotation::READINESS_TAINTS),
            completed: annotation(annotation::BOOTSTRAP_COMPLETED),
            completed_nrc: completed_nrc.take(bounds::MANY).collect(),
            extensions: extensions.map(own_list::bounded),
            has_annotations,
            conditions: conditions.collect(),
            ..NodeSnapshot::default()
        };
        let instance = annotation(annotation::INSTANCE).map(Into::into);
        let mut node = Node {
            ready,
            not_ready_since,
            unschedulable: spec.unschedulable,
            taints,
            ..Node::of(
                metadata.name,
                metadata.creation_timestamp.unwrap_or_default(),
                &metadata.labels,
                metadata.annotations,
            )
        };
        if let Some(windows) = &mut node.windows {
            windows.addresses = status.addresses.into_iter().map(|it| it.address).collect();
        }
        Self {
            node,
            uid: metadata.uid,
            version: metadata.resource_version,
            instance,
            readiness,
        }
    }
}

impl NodeFacts {
    /// The Node, as readiness looks at it.
    pub fn snapshot(&self) -> NodeSnapshot {
        NodeSnapshot {
            name: self.node.name.clone(),
            uid: self.uid.clone(),
            labels: self.node.labels.clone(),
            has_permit: self.node.claims_permit(),
            ..self.readiness.clone()
        }
    }

    /// The Node, as a pod looks at it that has to go somewhere.
    pub fn candidate(&self) -> Candidate {
        Candidate::of(&self.node, self.taints())
    }

    /// Its taints, as they stand there.
    pub fn taints(&self) -> &[Value] {
        &self.readiness.taints
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_api::names::label;
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_node_what_decides_is_read_and_nothing_else() {
        let object = json!({
            "metadata": {
                "name": "n1", "uid": "u", "resourceVersion": "9",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { label::OS: "linux", label::ZONE: "a" },
                "annotations": {
                    annotation::DESIRED_DRAIN: "drain-x", annotation::READINESS_OWNERS: "gpu", "other": "x",
                },
            },
            "spec": {
                "unschedulable": true,
                "taints": [{ "key": "kubernetes.io/MetaReadiness", "effect": "NoSchedule" }],
            },
            "status": {
                "nodeInfo": { "bootID": "b" },
                "conditions": [{ "type": "Ready", "status": "True", "reason": "x", "lastHeartbeatTime": "t" }],
            },
        });
        let facts: NodeFacts = serde_json::from_value::<NodeObject>(object).unwrap().into();
        assert!(facts.node.ready && facts.node.unschedulable);
        assert_eq!(facts.node.zone(), "a");
        assert_eq!(facts.node.desired_drain.as_deref(), Some("drain-x"));
        assert_eq!(facts.node.created.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!((facts.uid.as_str(), facts.version.as_str()), ("u", "9"));
        let node = facts.snapshot();
        assert!(node.is_tainted() && node.has_annotations && !node.has_permit);
        assert_eq!((node.name.as_str(), node.boot_id.as_str()), ("n1", "b"));
        assert_eq!(node.labels.get(label::ZONE), Some("a"));
        assert_eq!(&*node.conditions[0].heartbeat, "t");
        assert_eq!(node.owners.as_deref(), Some("gpu"));
        assert_eq!(facts.node.not_ready_since, None);
    }

    #[test]
    fn since_when_a_node_is_not_ready_is_what_its_condition_says() {
        let read = |condition: Value| {
            let object =
                json!({ "status": { "conditions": [{ "type": "DiskPressure" }, condition] } });
            let facts: NodeFacts = serde_json::from_value::<NodeObject>(object).unwrap().into();
            (facts.node.ready, facts.node.not_ready_since)
        };
        let since = "2026-03-01T10:00:00Z";
        let condition = |status: &str| json!({ "type": "Ready", "status": status, "lastTransitionTime": since });
        let at = since.parse().ok();
        assert_eq!(read(condition("Unknown")), (false, at));
        assert_eq!(read(condition("False")), (false, at));
        assert_eq!(read(condition("True")), (true, None));
        assert_eq!(
            read(json!({ "type": "Ready", "status": "Unknown" })),
            (false, None)
        );
    }
}

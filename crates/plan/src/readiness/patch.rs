//! What is written on a Node: our taints and who holds them, in one JSON Patch that is refused when
//! the list is another by now. Taints of others go back exactly as they stood there.

use std::collections::BTreeSet;

use evenkeel_api::names::{annotation, taint};
use evenkeel_api::notice::Notice;
use serde_json::{Value, json};

use super::snapshot::{EFFECT, NodeSnapshot};

/// What is to be on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// The taint, held by these rules; never none.
    Held {
        /// The names of the rules.
        owners: BTreeSet<String>,
        /// Whether the Cluster Autoscaler's taint is there, too.
        startup: bool,
        /// What another operator has to know of it, if anything.
        record: Option<String>,
    },
    /// No taint of ours.
    Free,
}

impl Want {
    /// What has to be written for it; nothing if it is so already.
    pub fn patch(&self, node: &NodeSnapshot) -> Option<Vec<Value>> {
        let (owners, record) = match self {
            Self::Held { owners, record, .. } => {
                let owners: Vec<_> = owners.iter().map(String::as_str).collect();
                (Some(owners.join(",")), record.clone())
            }
            Self::Free => (None, None),
        };
        let taints = self.taints(node);
        let mut steps = Vec::new();
        if taints != node.taints {
            let before = (!node.taints.is_empty()).then_some(&node.taints);
            steps.push(json!({ "op": "test", "path": "/spec/taints", "value": before }));
            steps.push(match (before, taints.is_empty()) {
                (_, true) => json!({ "op": "remove", "path": "/spec/taints" }),
                (Some(_), false) => {
                    json!({ "op": "replace", "path": "/spec/taints", "value": taints })
                }
                (None, false) => json!({ "op": "add", "path": "/spec/taints", "value": taints }),
            });
        }
        let mut has_annotations = node.has_annotations;
        for (name, wanted, found) in [
            (annotation::READINESS_OWNERS, owners, &node.owners),
            (annotation::READINESS_RECORD, record, &node.record),
        ] {
            if wanted == *found {
                continue;
            }
            let path = format!("/metadata/annotations/{}", name.replace('/', "~1"));
            match wanted {
                None => steps.push(json!({ "op": "remove", "path": path })),
                Some(text) if has_annotations => {
                    steps.push(json!({ "op": "add", "path": path, "value": text }));
                }
                Some(text) => {
                    let path = "/metadata/annotations";
                    let all = json!({ name: text });
                    steps.push(json!({ "op": "test", "path": path, "value": null }));
                    steps.push(json!({ "op": "add", "path": path, "value": all }));
                    has_annotations = true;
                }
            }
        }
        if steps.is_empty() {
            return None;
        }
        // Never another Node of the same name.
        steps.insert(
            0,
            json!({ "op": "test", "path": "/metadata/uid", "value": node.uid }),
        );
        Some(steps)
    }

    /// The taints of the Node with ours as they are to be.
    pub fn taints(&self, node: &NodeSnapshot) -> Vec<Value> {
        let (held, startup) = match self {
            Self::Held { startup, .. } => (true, *startup),
            Self::Free => (false, false),
        };
        let mut taints = node.taints.clone();
        put(&mut taints, taint::META_READINESS, held);
        put(&mut taints, taint::AUTOSCALER_STARTUP, startup);
        taints
    }
}

/// What a write means for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaintChange {
    /// The taint is added, for this reason.
    Taint(String),
    /// The taint is removed.
    Untaint,
    /// Only who holds the taint is written, or what another operator has to know of it.
    Record,
}

impl TaintChange {
    /// One word for it, for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Taint(_) => "taint",
            Self::Untaint => "release",
            Self::Record => "owners",
        }
    }

    /// What people should hear of it.
    pub fn notice(&self) -> Option<Notice> {
        match self {
            Self::Taint(why) => Some(Notice::warning(
                "NodeNotReady",
                format!("the node takes no new pods until it is ready: {why}"),
            )),
            Self::Untaint => Some(Notice::normal(
                "NodeReady",
                "all extensions are healthy: the node takes pods",
            )),
            Self::Record => None,
        }
    }
}

/// A condition that is published on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word for why.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

/// Puts a taint of ours into the list, or takes it out.
fn put(taints: &mut Vec<Value>, key: &str, wanted: bool) {
    let is_it = |it: &Value| it["key"] == key && it["effect"] == EFFECT;
    if !wanted {
        taints.retain(|it| !is_it(it));
    } else if !taints.iter().any(is_it) {
        taints.push(json!({ "key": key, "effect": EFFECT }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(taints: Value, owners: Option<&str>) -> NodeSnapshot {
        NodeSnapshot {
            name: "n1".to_owned(),
            uid: "u".to_owned(),
            taints: serde_json::from_value(taints).unwrap(),
            owners: owners.map(str::to_owned),
            has_annotations: true,
            ..NodeSnapshot::default()
        }
    }

    fn held(owners: &[&str], startup: bool) -> Want {
        Want::Held {
            owners: owners.iter().map(ToString::to_string).collect(),
            startup,
            record: None,
        }
    }

    #[test]
    fn one_patch_has_the_taint_and_who_holds_it_and_is_refused_on_another_list() {
        let theirs = json!({ "key": "a", "effect": "NoExecute", "timeAdded": "t" });
        let ours = json!({ "key": taint::META_READINESS, "effect": "NoSchedule" });
        let startup = json!({ "key": taint::AUTOSCALER_STARTUP, "effect": "NoSchedule" });
        let owners = "/metadata/annotations/evenkeel.dev~1readiness-owners";
        let uid = json!({ "op": "test", "path": "/metadata/uid", "value": "u" });
        assert_eq!(
            held(&["gpu"], false).patch(&node(json!([]), None)),
            Some(vec![
                uid.clone(),
                json!({ "op": "test", "path": "/spec/taints", "value": null }),
                json!({ "op": "add", "path": "/spec/taints", "value": [ours] }),
                json!({ "op": "add", "path": owners, "value": "gpu" }),
            ])
        );
        assert_eq!(
            held(&["gpu", "cni"], true).patch(&node(json!([theirs, ours]), Some("gpu"))),
            Some(vec![
                uid.clone(),
                json!({ "op": "test", "path": "/spec/taints", "value": [theirs, ours] }),
                json!({ "op": "replace", "path": "/spec/taints", "value": [theirs, ours, startup] }),
                json!({ "op": "add", "path": owners, "value": "cni,gpu" }),
            ])
        );
        assert_eq!(
            Want::Free.patch(&node(json!([startup, ours]), Some("gpu"))),
            Some(vec![
                uid.clone(),
                json!({ "op": "test", "path": "/spec/taints", "value": [startup, ours] }),
                json!({ "op": "remove", "path": "/spec/taints" }),
                json!({ "op": "remove", "path": owners }),
            ])
        );
        // The same key with another effect is somebody else's.
        let evicting = json!({ "key": taint::META_READINESS, "effect": "NoExecute" });
        assert_eq!(Want::Free.patch(&node(json!([evicting]), None)), None);
        let bare = NodeSnapshot {
            has_annotations: false,
            ..node(json!([ours]), None)
        };
        assert_eq!(
            held(&["gpu"], false).patch(&bare),
            Some(vec![
                uid,
                json!({ "op": "test", "path": "/metadata/annotations", "value": null }),
                json!({ "op": "add", "path": "/metadata/annotations", "value": { annotation::READINESS_OWNERS: "gpu" } }),
            ])
        );
        assert_eq!(
            held(&["gpu"], false).patch(&node(json!([ours]), Some("gpu"))),
            None
        );
        // What another operator has to know comes and goes with the taint.
        let record = "/metadata/annotations/evenkeel.dev~1readiness-record";
        let mut silent = held(&["gpu"], false);
        if let Want::Held { record, .. } = &mut silent {
            *record = Some("r".to_owned());
        }
        let steps = silent.patch(&node(json!([]), None)).unwrap();
        assert_eq!(
            steps.last(),
            Some(&json!({ "op": "add", "path": record, "value": "r" }))
        );
        let recorded = NodeSnapshot {
            record: Some("r".to_owned()),
            ..node(json!([ours]), Some("gpu"))
        };
        assert_eq!(silent.patch(&recorded), None);
        let steps = Want::Free.patch(&recorded).unwrap();
        assert_eq!(
            steps.last(),
            Some(&json!({ "op": "remove", "path": record }))
        );
    }
}

//! What is written on a Node: our taints and who holds them, in one JSON Patch that is refused when
//! the list is another by now. Taints of others go back exactly as they stood there.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::names::{annotation, taint};
use evenkeel_api::notice::Notice;
use evenkeel_api::readiness::RuleTaint;
use serde_json::{Value, json};

use super::snapshot::NodeSnapshot;

/// What is to be on a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Want {
    /// The taints that are to be there.
    pub taints: BTreeSet<RuleTaint>,
    /// Those that are ours to take off, where they are not to be there.
    pub managed: BTreeSet<RuleTaint>,
    /// Those that go with an annotation which says that they are ours.
    pub listed: BTreeSet<RuleTaint>,
    /// The rules that hold it and are named on it.
    pub owners: BTreeSet<String>,
    /// Whether the Cluster Autoscaler's taint is there, too.
    pub startup: bool,
    /// What another operator has to know of it, if anything.
    pub record: Option<String>,
    /// Annotations that say which bootstrap rules it has done with; none are ever taken off.
    pub completed: BTreeMap<String, String>,
}

impl Want {
    /// What has to be written for it; nothing if it is so already.
    pub fn patch(&self, node: &NodeSnapshot) -> Option<Vec<Value>> {
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
        let list = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(",");
        let listed: BTreeSet<_> = self.listed.iter().map(ToString::to_string).collect();
        let some = |text: String| Some(text).filter(|it| !it.is_empty());
        let fixed = [
            (
                annotation::READINESS_OWNERS,
                some(list(&self.owners)),
                &node.owners,
            ),
            (
                annotation::READINESS_TAINTS,
                some(list(&listed)),
                &node.own_taints,
            ),
            (
                annotation::READINESS_RECORD,
                self.record.clone(),
                &node.record,
            ),
        ];
        let fixed = fixed
            .into_iter()
            .filter(|(_, wanted, found)| wanted != *found);
        let fixed = fixed.map(|(name, wanted, _)| (name, wanted));
        let completed = self.completed.iter();
        let completed = completed.map(|(name, value)| (name.as_str(), Some(value.clone())));
        let mut has_annotations = node.has_annotations;
        for (name, wanted) in fixed.chain(completed) {
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
        let mut taints = node.taints.clone();
        let goes = |it: &Value| {
            self.managed.iter().any(|ours| ours.is(it))
                && !self.taints.iter().any(|wanted| wanted.is(it))
        };
        taints.retain(|it| !goes(it));
        for wanted in &self.taints {
            if !taints.iter().any(|it| wanted.is(it)) {
                taints.push(wanted.to_value());
            }
        }
        if self.owns_startup() {
            put_startup(&mut taints, self.startup);
        }
        taints
    }

    /// Whether the Cluster Autoscaler's taint is ours to say.
    fn owns_startup(&self) -> bool {
        self.managed.iter().any(RuleTaint::is_shared) || self.startup
    }

    /// Whether something is to keep pods away.
    pub fn is_held(&self) -> bool {
        !self.taints.is_empty()
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

/// Puts the Cluster Autoscaler's taint into the list, or takes it out.
fn put_startup(taints: &mut Vec<Value>, wanted: bool) {
    let startup = RuleTaint {
        key: taint::AUTOSCALER_STARTUP.to_owned(),
        ..RuleTaint::default()
    };
    if !wanted {
        taints.retain(|it| !startup.is(it));
    } else if !taints.iter().any(|it| startup.is(it)) {
        taints.push(startup.to_value());
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
        Want {
            taints: BTreeSet::from([RuleTaint::default()]),
            owners: owners.iter().map(ToString::to_string).collect(),
            startup,
            ..free()
        }
    }

    fn free() -> Want {
        Want {
            managed: BTreeSet::from([RuleTaint::default()]),
            ..Want::default()
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
            free().patch(&node(json!([startup, ours]), Some("gpu"))),
            Some(vec![
                uid.clone(),
                json!({ "op": "test", "path": "/spec/taints", "value": [startup, ours] }),
                json!({ "op": "remove", "path": "/spec/taints" }),
                json!({ "op": "remove", "path": owners }),
            ])
        );
        // The same key with another effect is somebody else's.
        let evicting = json!({ "key": taint::META_READINESS, "effect": "NoExecute" });
        assert_eq!(free().patch(&node(json!([evicting]), None)), None);
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
        silent.record = Some("r".to_owned());
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
        let steps = free().patch(&recorded).unwrap();
        assert_eq!(
            steps.last(),
            Some(&json!({ "op": "remove", "path": record }))
        );
    }
}

//! Another node, as far as it matters to a pod that has to leave its own: whether it takes the pod. Only what the node
//! itself says counts, and the pod's node selector and tolerations; how full the node is, and affinities, are for the
//! scheduler.

use std::fmt;

use serde_json::Value;

use crate::fleet::labels::Labels;
use crate::fleet::node::Node;

use super::Pod;

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What it does to pods: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.effect)
    }
}

/// What a pod says about taints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Toleration {
    /// The key of the taint; none is every key.
    pub key: Option<String>,
    /// `Exists` or `Equal`; none is `Equal`.
    pub operator: Option<String>,
    /// The value of the taint, where the operator is `Equal`.
    pub value: Option<String>,
    /// The effect of the taint; none is every effect.
    pub effect: Option<String>,
}

impl Toleration {
    fn tolerates(&self, taint: &Taint) -> bool {
        let said = |text: &Option<String>| text.clone().filter(|it| !it.is_empty());
        let is_any_value = self.operator.as_deref() == Some("Exists");
        let key = said(&self.key);
        said(&self.effect).is_none_or(|it| it == taint.effect)
            && key.map_or(is_any_value, |it| it == taint.key)
            && (is_any_value || self.value.as_deref().unwrap_or_default() == taint.value)
    }
}

/// A node to which a pod might go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// All of its labels.
    pub labels: Labels,
    /// Whether its kubelet says that it is ready.
    pub ready: bool,
    /// Whether it is cordoned, by whomever.
    pub unschedulable: bool,
    /// Its taints.
    pub taints: Vec<Taint>,
}

impl Candidate {
    /// A node with `taints` as the API server has them.
    pub fn of(node: &Node, taints: &[Value]) -> Self {
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let taints = taints.iter().map(|it| Taint {
            key: text(&it["key"]),
            value: text(&it["value"]),
            effect: text(&it["effect"]),
        });
        Self {
            name: node.name.clone(),
            labels: node.labels.clone(),
            ready: node.ready,
            unschedulable: node.unschedulable,
            taints: taints.collect(),
        }
    }

    /// Why it does not take `pod`, if it does not.
    pub fn refuses(&self, pod: &Pod) -> Option<String> {
        if self.unschedulable {
            return Some("is cordoned".to_owned());
        }
        if !self.ready {
            return Some("is not ready".to_owned());
        }
        let missing = |(key, value): &(&String, &String)| self.labels.get(key) != Some(value);
        if let Some((key, value)) = pod.node_selector.iter().find(missing) {
            return Some(format!("does not have the label {key}={value}"));
        }
        let keeps_away = |taint: &&Taint| {
            matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
                && !pod.tolerations.iter().any(|it| it.tolerates(taint))
        };
        let taint = self.taints.iter().find(keeps_away)?;
        Some(format!("has the taint {taint}"))
    }
}

/// Whether `node` is the only one of `all` that takes pods which ask for nothing special: while it is drained, no
/// workload of the cluster runs.
pub fn is_only_node(node: &str, all: &[Candidate]) -> bool {
    let pod = Pod::default();
    let mut others = all.iter().filter(|it| it.name != node);
    others.all(|it| it.refuses(&pod).is_some())
}

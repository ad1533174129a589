//! What another operator must know of a node's restart, as it is written on the Node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::snapshot::NodeSnapshot;

/// What is to be known of a node that has the taint and cannot be seen from its evidence. Whoever takes
/// over begins with it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RestartRecord {
    /// Something fell silent or is missing, and was heard before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) silent: bool,
    /// Conditions as they were before the restart, by rule and extension.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) before: BTreeMap<String, Box<str>>,
}

impl RestartRecord {
    /// What stands on the Node. What cannot be read says nothing.
    pub(super) fn of(node: &NodeSnapshot) -> Self {
        let text = node.record.as_deref().unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    }

    pub(super) fn into_text(self) -> Option<String> {
        if self == Self::default() {
            return None;
        }
        serde_json::to_string(&self).ok()
    }
}

/// Which restart it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    /// The whole machine's.
    Machine,
    /// The kubelet's alone: the machine and what else runs there went on.
    Kubelet,
}

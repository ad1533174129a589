//! The own Node, as far as the worker needs it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::Value;

/// What of the own Node matters here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OwnNode {
    pub(crate) uid: String,
    pub(crate) annotations: BTreeMap<String, String>,
    /// All of it, for the variables in commands.
    pub(crate) object: Value,
}

impl OwnNode {
    pub(crate) fn of(mut node: Node) -> Self {
        node.metadata.managed_fields = None;
        // Pulled images are most of a Node, and no command wants them.
        if let Some(status) = &mut node.status {
            status.images = None;
        }
        Self {
            uid: node.uid().unwrap_or_default(),
            annotations: node.annotations().clone(),
            object: serde_json::to_value(&node).unwrap_or_default(),
        }
    }
}

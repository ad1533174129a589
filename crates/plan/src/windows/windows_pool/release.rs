//! What a node is to run: a version and the hash of its services.

use evenkeel_api::names::annotation;

use crate::fleet::node::{Node, NodePatch, WindowsFacts};

/// What a node is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The version.
    pub version: String,
    /// The hash of its services.
    pub hash: String,
}

impl Grant {
    /// Says it on `node`, unless it says so already.
    pub fn told(&self, node: &Node) -> NodePatch {
        let said = |field: fn(&WindowsFacts) -> &Option<String>| {
            node.windows.as_ref().and_then(|it| field(it).as_deref())
        };
        let mut change = NodePatch::default();
        if said(|it| &it.desired_version) != Some(self.version.as_str()) {
            change = change.with(annotation::WINDOWS_DESIRED_VERSION, self.version.as_str());
        }
        if said(|it| &it.desired_services) != Some(self.hash.as_str()) {
            change = change.with(annotation::DESIRED_SERVICES, self.hash.as_str());
        }
        change
    }
}

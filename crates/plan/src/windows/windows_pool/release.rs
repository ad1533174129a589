//! What a node is to run: a version and the hash of its services.

use std::collections::BTreeMap;

use evenkeel_api::names::annotation;
use evenkeel_api::windows::version::{NotAVersion, Version};

use crate::fleet::node::{Node, NodePatch};

/// What a node is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The version.
    pub version: Version,
    /// The hash of its services: SHA-256 of their canonical contents.
    pub hash: String,
}

impl Grant {
    /// What the annotations of a Node say; nothing before both are there.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Result<Self, NotAVersion>> {
        let said = |name| annotations.get(name).filter(|it| !it.is_empty());
        let version = said(annotation::WINDOWS_DESIRED_VERSION)?.parse();
        let hash = said(annotation::DESIRED_SERVICES)?.clone();
        Some(version.map(|version| Self { version, hash }))
    }

    /// Says it on `node`, unless it says so already.
    pub fn told(&self, node: &Node) -> NodePatch {
        let windows = node.windows.as_deref();
        let mut change = NodePatch::default();
        if !windows.is_some_and(|it| it.is_told(&self.version)) {
            let version = self.version.to_string();
            change = change.with(annotation::WINDOWS_DESIRED_VERSION, version);
        }
        if windows.and_then(|it| it.desired_services.as_ref()) != Some(&self.hash) {
            change = change.with(annotation::DESIRED_SERVICES, self.hash.as_str());
        }
        change
    }
}

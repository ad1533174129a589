//! The own Node, as far as the worker needs it.

use std::collections::BTreeMap;

use evenkeel_plan::fleet::node::NodePatch;
use serde_json::Value;

/// What of the own Node matters here.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OwnNode {
    pub(crate) uid: String,
    pub(crate) annotations: BTreeMap<String, String>,
    /// All of it where commands have variables, else nothing.
    pub(crate) object: Value,
}

impl OwnNode {
    /// The annotation `name`.
    pub(crate) fn said(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    /// Takes note of what was written.
    pub(crate) fn was_patched(&mut self, patch: NodePatch) {
        for (name, value) in patch.annotations {
            match value {
                Some(value) => _ = self.annotations.insert(name.to_owned(), value),
                None => _ = self.annotations.remove(name),
            }
        }
    }
}

//! The own Node, as far as the worker needs it.

use std::collections::BTreeMap;

/// What of the own Node matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnNode {
    pub(crate) uid: String,
    pub(crate) annotations: BTreeMap<String, String>,
}

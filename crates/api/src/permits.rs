//! Disruption permits, as the status of a pool records them: which of its nodes may be disrupted now. What stands on
//! a Node itself is for its agent; what counts stands here, where no node can write.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The permits of one pool. Whoever changes them writes all of them, over the version that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Permits {
    /// Which leader of the operator wrote this. Each new one raises it before it grants anything, and from then on
    /// nobody before it can write.
    pub epoch: i64,
    /// Nodes that may be disrupted: each stands here before it is told so, and until it serves again.
    pub granted: Vec<Permit>,
}

/// A node that may be disrupted now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Permit {
    /// The node.
    pub node: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub since: Option<String>,
}

impl Permits {
    /// Whether `node` may be disrupted.
    pub fn has(&self, node: &str) -> bool {
        self.granted.iter().any(|it| it.node == node)
    }
}

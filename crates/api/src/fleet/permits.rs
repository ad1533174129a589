//! Disruption permits, as the status of a pool records them: which of its nodes may be disrupted now. What stands on
//! a Node itself is for its agent; what counts stands here, where no node can write.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The permits of one pool. Whoever changes them writes all of them, over the version that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Permits {
    /// Epoch of the leader that wrote this. Each new leader raises it before it grants a permit, and from then on no
    /// earlier leader can write.
    pub epoch: i64,
    /// Nodes with a permit. A node is recorded here before it is told, and until it serves again.
    pub granted: Vec<Permit>,
}

/// The disruption permit of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Permit {
    /// Name of the node.
    pub node: String,
    /// When the permit was granted.
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

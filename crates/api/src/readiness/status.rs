//! What the operator says of a rule: counts and the worst few, never one entry for each node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine_config_pool::Condition;

/// What the operator says of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RuleStatus {
    /// The generation of the rule that this is about.
    pub observed_generation: i64,
    /// Its nodes, counted.
    pub nodes: NodeCounts,
    /// Some nodes that it holds, longest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<Worst>,
    /// Valid: whether it can be followed. Guarded: whether limits hold something back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Nodes by how they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeCounts {
    /// All that the rule selects.
    pub total: u32,
    /// Those that it does not hold.
    pub ready: u32,
    /// Those that it holds: new, restarted, or with an extension that is not well.
    pub not_ready: u32,
    /// Those of them whose pods are being evicted.
    pub evicting: u32,
    /// Those that fell silent and are not tainted, because limits hold that back.
    pub held_back: u32,
}

/// A node that is held, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Worst {
    /// The node.
    pub node: String,
    /// The extension that holds it.
    pub extension: String,
    /// Why, for people.
    pub why: String,
}

/// Types of conditions.
pub mod condition {
    /// The rule can be followed; if not, the message names the field.
    pub const VALID: &str = "Valid";
    /// So much is wrong at once that taints for silence or evictions are held back.
    pub const GUARDED: &str = "Guarded";
}

//! What the operator says of a rule: counts and the worst few, never one entry for each node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::machine_config_pool::Condition;

// Lists are written empty, too: a merge patch leaves what it does not name.
/// Observed state of the rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RuleStatus {
    /// Generation of the rule that this status describes.
    pub observed_generation: i64,
    /// Number of nodes by state.
    pub nodes: NodeCounts,
    /// Some nodes that the rule holds, longest first.
    pub worst: Vec<Worst>,
    /// Conditions of the rule. Valid is whether it can be followed, Guarded whether limits hold something back, Suspended whether
    /// everything stays as it is.
    pub conditions: Vec<Condition>,
}

/// Nodes by how they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeCounts {
    /// Number of nodes that the rule selects.
    pub total: u32,
    /// Number of nodes that the rule does not hold.
    pub ready: u32,
    /// Number of nodes that the rule holds, because they are new, restarted, or have an extension that is not healthy.
    pub not_ready: u32,
    /// Number of held nodes whose pods are being evicted.
    pub evicting: u32,
    /// Number of nodes that fell silent and are not tainted, because limits hold the taint back.
    pub held_back: u32,
}

/// A node that is held, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Worst {
    /// Name of the node.
    pub node: String,
    /// Extension that holds the node.
    pub extension: String,
    /// Explanation for people.
    pub why: String,
}

/// Types of conditions.
pub mod condition {
    /// The rule can be followed; if not, the message names the field.
    pub const VALID: &str = "Valid";
    /// So much is wrong at once that taints for silence or evictions are held back.
    pub const GUARDED: &str = "Guarded";
    /// All that the rule did stays as it is.
    pub const SUSPENDED: &str = "Suspended";
}

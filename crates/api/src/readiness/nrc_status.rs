//! The status of a rule of node-readiness-controller, as it writes it: every node that the rule is about, as far as there is room.

use serde::{Deserialize, Serialize};

// Lists are written empty, and what is not there as null: a merge patch leaves what it does not name.
/// Its status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NrcStatus {
    /// The generation of the rule that this is about.
    pub observed_generation: i64,
    /// The nodes whose taint is as it should be.
    pub applied_nodes: Vec<String>,
    /// Those that could not be written.
    pub failed_nodes: Vec<NrcFailure>,
    /// What every node says.
    pub node_evaluations: Vec<NrcEvaluation>,
    /// What a dry rule would do.
    pub dry_run_results: Option<NrcDryRun>,
}

/// A node that could not be written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NrcFailure {
    /// Its name.
    pub node_name: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When.
    pub last_evaluation_time: String,
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NrcEvaluation {
    /// Its name.
    pub node_name: String,
    /// Of each condition.
    pub condition_results: Vec<NrcResult>,
    /// `Present` or `Absent`.
    pub taint_status: String,
    /// When that last became so.
    pub last_evaluation_time: String,
}

/// What a node says of a condition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NrcResult {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its status; `Unknown` if the node does not have it.
    pub current_status: String,
    /// The status that is asked for.
    pub required_status: String,
    /// What counts where the node does not have it.
    pub default_status: String,
}

/// What a dry rule would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NrcDryRun {
    /// The nodes that it is about.
    pub affected_nodes: u32,
    /// Those that it would taint.
    pub taints_to_add: u32,
    /// Those whose taint it would remove.
    pub taints_to_remove: u32,
    /// Those that lack a condition.
    pub risky_operations: u32,
    /// The same in a sentence.
    pub summary: String,
}

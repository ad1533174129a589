//! `WindowsPool`: how the Windows nodes of a cluster are changed, and the progress of that. There is one
//! object, [`crate::names::object::WINDOWS_POOL`]; without it the defaults hold.

use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::field::{Field, or_default};
use crate::fleet::machine_config_pool::Condition;
use crate::fleet::max_unavailable::MaxUnavailable;
use crate::fleet::permits::Permits;
use crate::windows::version::StatedVersion;

/// The kind of the object.
pub const KIND: &str = "WindowsPool";
/// Its name in requests.
pub const PLURAL: &str = "windowspools";
/// The version of its group.
pub const VERSION: &str = "v1alpha1";
/// How many instances are configured for the first time at once, unless the pool says otherwise.
pub const PARALLEL_INSTANCES: u32 = 20;

/// Desired state of the pool.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct WindowsPoolSpec {
    /// How nodes are upgraded. `InPlace` keeps the machine, Recreate replaces the Machines of a MachineSet.
    #[schemars(extend("default" = "InPlace"))]
    pub strategy: Field<Strategy>,
    /// How many nodes may be unavailable at once, for whatever reason. A number, or a percentage that is
    /// rounded down to at least 1.
    pub max_unavailable: Field<MaxUnavailable>,
    /// Whether the pool is paused. While it is, no further node starts to change.
    #[schemars(extend("default" = false))]
    pub paused: Field<bool>,
    /// Name of the `RolloutPolicy` that says when nodes may start to change. Without one they may at any time.
    #[schemars(length(min = 1, max = 253))]
    pub rollout_policy: Field<String>,
    /// How many new instances are configured at once.
    #[schemars(schema_with = "parallel_instances")]
    pub parallel_instances: Field<NonZeroU32>,
}

/// How a node gets a new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// On the machine that it is.
    #[default]
    InPlace,
    /// Machines of a MachineSet are deleted and made anew; all others go in place.
    Recreate,
}

/// Observed state of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct WindowsPoolStatus {
    /// Generation of the pool that this status describes.
    pub observed_generation: i64,
    /// Version that nodes are to run.
    #[schemars(with = "String")]
    pub version: StatedVersion,
    /// Number of nodes by state.
    pub nodes: WindowsNodeCounts,
    /// Nodes that were granted a change and have not finished it. If somebody else changes the desired version of a
    /// node, the operator puts it back to the version here, or on a node that is not here to the version that it runs.
    pub updating: Vec<UpdatingNode>,
    /// Conditions of the pool. Types are Upgradeable, Updating, Degraded, and Idle where another operator manages the nodes.
    pub conditions: Vec<Condition>,
    /// Disruption permits of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<Permits>,
}

/// Nodes by how they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct WindowsNodeCounts {
    /// Number of nodes that Evenkeel manages.
    pub total: u32,
    /// Number of nodes that run the desired version and services.
    pub updated: u32,
    /// Number of nodes that are being changed.
    pub updating: u32,
    /// Number of nodes that cannot go on, or run the desired version and are not ready.
    pub failing: u32,
}

/// A node that was granted a change.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UpdatingNode {
    /// Name of the node.
    pub node: String,
    /// Version that the node was granted.
    #[schemars(with = "String")]
    pub to: StatedVersion,
    /// Phase of the change, one of Granted, Draining, Supplying, Applying, Replacing, Removing and Failing.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "String")]
    pub phase: UpdatePhase,
    /// MachineSet, as `namespace/name`, that replaces the Machine of this node. The entry stays after the node is gone,
    /// until the new node serves.
    #[serde(
        default,
        rename = "machineSet",
        skip_serializing_if = "Option::is_none"
    )]
    pub machine_set: Option<String>,
    /// Whether the permit is for the removal of the node, because its instance is no longer listed. The node gets no
    /// version then, and the entry stays until the Node is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removal: bool,
}

/// How far a node is that was granted a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum UpdatePhase {
    /// It stands in the status, and the node is told next.
    #[default]
    Granted,
    /// Its pods leave.
    Draining,
    /// In an upgrade: its old services go, and new files come.
    Supplying,
    /// It was told, and is on its way.
    Applying,
    /// Its Machine goes, and its MachineSet makes a new one.
    Replacing,
    /// Its instance is listed no more, its pods have left, and it is made a bare machine.
    Removing,
    /// It cannot go on.
    Failing,
}

impl UpdatePhase {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "Granted",
            Self::Draining => "Draining",
            Self::Supplying => "Supplying",
            Self::Applying => "Applying",
            Self::Replacing => "Replacing",
            Self::Removing => "Removing",
            Self::Failing => "Failing",
        }
    }
}

impl WindowsPoolStatus {
    /// The condition of that type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.kind == kind)
    }

    /// What `node` was granted, if it is being changed.
    pub fn granted(&self, node: &str) -> Option<&UpdatingNode> {
        self.updating.iter().find(|it| it.node == node)
    }
}

/// Types of conditions.
pub mod condition {
    /// Whether nodes can go to the operator's version; if not, the message says why.
    pub const UPGRADEABLE: &str = "Upgradeable";
    /// Nodes are being changed.
    pub const UPDATING: &str = "Updating";
    /// Something is wrong.
    pub const DEGRADED: &str = "Degraded";
    /// Nothing is done for this pool, because another operator does it.
    pub const IDLE: &str = "Idle";

    /// Those that we write; others stay.
    pub const ALL: [&str; 4] = [UPGRADEABLE, UPDATING, DEGRADED, IDLE];
}

/// How many instances are configured at once.
fn parallel_instances(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "integer",
        "default": PARALLEL_INSTANCES,
        "minimum": 1,
        "maximum": 500,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_written_as_its_word_and_one_of_another_release_stops_no_reading() {
        let read = |phase: &str| {
            let text = format!(r#"{{"node":"a","to":"","phase":"{phase}"}}"#);
            serde_json::from_str::<UpdatingNode>(&text).unwrap().phase
        };
        for phase in [
            UpdatePhase::Granted,
            UpdatePhase::Draining,
            UpdatePhase::Supplying,
            UpdatePhase::Applying,
            UpdatePhase::Replacing,
            UpdatePhase::Removing,
            UpdatePhase::Failing,
        ] {
            assert_eq!(serde_json::json!(phase), phase.as_str());
            assert_eq!(read(phase.as_str()), phase);
        }
        assert_eq!(read("Dancing"), UpdatePhase::Granted);
    }
}

//! `WindowsPool`: how the Windows nodes of a cluster are changed, and how far that has come. There is one
//! object, [`crate::names::object::WINDOWS_POOL`]; without it the defaults hold.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::machine_config_pool::Condition;
use crate::permits::Permits;

/// The kind of the object.
pub const KIND: &str = "WindowsPool";
/// Its name in requests.
pub const PLURAL: &str = "windowspools";
/// The version of its group.
pub const VERSION: &str = "v1alpha1";
/// How many instances are configured for the first time at once, unless the pool says otherwise.
pub const PARALLEL_INSTANCES: u32 = 20;

/// What the pool's owner writes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct WindowsPoolSpec {
    /// How a node gets a new version: in place, or by a new Machine in the place of its own.
    pub strategy: Strategy,
    /// How many nodes may be unavailable at once, for whatever reason: a number, or a percentage that is
    /// rounded down (but never to none).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::number_or_percent")]
    pub max_unavailable: Option<serde_json::Value>,
    /// Whether no node may begin to change.
    pub paused: bool,
    /// How many instances are configured for the first time at once: they serve nobody yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "parallel_instances")]
    pub parallel_instances: Option<serde_json::Value>,
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

/// What the operator says of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct WindowsPoolStatus {
    /// The generation of the pool that this is about.
    pub observed_generation: i64,
    /// The version that nodes are to run.
    pub version: String,
    /// Its nodes, counted.
    pub nodes: WindowsNodeCounts,
    /// Nodes that were granted a change and have not come to its end. A desired version that somebody
    /// else has written is put back to what stands here, and on a node that is not here to what it runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub updating: Vec<UpdatingNode>,
    /// Upgradeable, Updating, Degraded; Idle where another operator leads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Nodes that may be disrupted now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<Permits>,
}

/// Nodes by how they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct WindowsNodeCounts {
    /// All that are ours.
    pub total: u32,
    /// Those that run what they are to run.
    pub updated: u32,
    /// Those on their way.
    pub updating: u32,
    /// Those that cannot go on, or are not ready at what they are to run.
    pub failing: u32,
}

/// A node that was granted a change.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UpdatingNode {
    /// The node.
    pub node: String,
    /// The version that it was granted.
    pub to: String,
    /// How far it is: Granted, Draining, Supplying, Applying, Replacing, Removing or Failing.
    #[serde(default)]
    pub phase: String,
    /// The MachineSet, as `namespace/name`, that makes a new Machine in the place of this node's. It stays here, when
    /// the node is gone, until the new one serves.
    #[serde(
        default,
        rename = "machineSet",
        skip_serializing_if = "Option::is_none"
    )]
    pub machine_set: Option<String>,
    /// Whether its permit is for its removal, because its instance is listed no more. Then it goes to no version, and
    /// stays here until its Node is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removal: bool,
}

impl WindowsPoolStatus {
    /// The condition of that type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.kind == kind)
    }

    /// What `node` was granted, if it is on its way.
    pub fn granted(&self, node: &str) -> Option<&UpdatingNode> {
        self.updating.iter().find(|it| it.node == node)
    }
}

/// Types of conditions.
pub mod condition {
    /// Whether nodes can go to the operator's version; if not, the message says what stands in the way.
    pub const UPGRADEABLE: &str = "Upgradeable";
    /// Nodes are on their way.
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

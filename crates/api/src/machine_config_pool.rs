//! `MachineConfigPool`: which nodes have one configuration in common, from which `MachineConfigs` it is
//! made, and how many of them may be down for it. The shape is OpenShift's; settings of ours are
//! annotations on it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::permits::Permits;
use crate::selector::Selector;

/// The kind of the object.
pub const KIND: &str = "MachineConfigPool";
/// Its name in requests.
pub const PLURAL: &str = "machineconfigpools";

/// What a pool's owner writes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// The nodes of the pool: none if this is absent, all if it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Selector>,
    /// The MachineConfigs that are merged for it, in the order of their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_config_selector: Option<Selector>,
    /// How many nodes may be unavailable at once: a number, or a percentage that is rounded down
    /// (but never to none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::number_or_percent")]
    pub max_unavailable: Option<serde_json::Value>,
    /// Whether no node may begin to change.
    #[serde(default)]
    pub paused: bool,
    /// What its nodes are to run. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
}

/// A rendered configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// The name of the rendered MachineConfig.
    #[serde(default)]
    pub name: String,
    /// The MachineConfigs that it was made from, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<Source>,
}

/// A MachineConfig that is part of a rendered one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Always `machineconfiguration.openshift.io/v1`.
    #[serde(default)]
    pub api_version: String,
    /// Always MachineConfig.
    #[serde(default)]
    pub kind: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// What the operator says of a pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// The generation of the pool that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// What all nodes run, since they last agreed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// All nodes of the pool.
    #[serde(default)]
    pub machine_count: i32,
    /// Those that run the configuration of the pool.
    #[serde(default)]
    pub updated_machine_count: i32,
    /// Those of them that are ready for pods.
    #[serde(default)]
    pub ready_machine_count: i32,
    /// Those that are not ready, or are down for a change.
    #[serde(default)]
    pub unavailable_machine_count: i32,
    /// Those that cannot go on.
    #[serde(default)]
    pub degraded_machine_count: i32,
    /// Updated, Updating, Degraded, `NodeDegraded`, `RenderDegraded`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Nodes that may be disrupted now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<Permits>,
}

/// One thing that is so, or is not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub last_transition_time: Option<String>,
    /// Why, in one word.
    #[serde(default)]
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    pub message: String,
}

impl PoolStatus {
    /// The condition of that type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.kind == kind)
    }
}

/// Types of conditions.
pub mod condition {
    /// All nodes run the pool's configuration.
    pub const UPDATED: &str = "Updated";
    /// Nodes are on their way to it.
    pub const UPDATING: &str = "Updating";
    /// Something is wrong; what, is in the other conditions.
    pub const DEGRADED: &str = "Degraded";
    /// Nodes cannot go on.
    pub const NODE_DEGRADED: &str = "NodeDegraded";
    /// The configuration cannot be made; the one before stays in use.
    pub const RENDER_DEGRADED: &str = "RenderDegraded";
    /// What earlier versions wrote where another operator has the pool; nobody writes it now, and it goes with the next status.
    pub const IDLE: &str = "Idle";
}

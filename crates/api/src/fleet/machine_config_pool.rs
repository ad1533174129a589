//! `MachineConfigPool`: which nodes have one configuration in common, from which `MachineConfigs` it is
//! made, and how many of them may be down for it. The shape is OpenShift's; settings of ours are
//! annotations on it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::permits::Permits;
use crate::selector::Selector;

/// The kind of the object.
pub const KIND: &str = "MachineConfigPool";
/// Its name in requests.
pub const PLURAL: &str = "machineconfigpools";

/// Desired state of the pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Nodes of the pool. Selects no node if absent, and all nodes if empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Selector>,
    /// MachineConfigs that are merged for the pool, in the order of their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_config_selector: Option<Selector>,
    /// How many nodes may be unavailable at once. A number, or a percentage that is rounded down
    /// to at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::number_or_percent")]
    pub max_unavailable: Option<serde_json::Value>,
    /// Whether the pool is paused. While it is, no further node starts to change.
    #[serde(default)]
    pub paused: bool,
    /// Rendered configuration that the nodes are to run. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
}

/// A rendered configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// Name of the rendered MachineConfig.
    #[serde(default)]
    pub name: String,
    /// MachineConfigs that it was rendered from, in order.
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

/// Observed state of the pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Generation of the pool that this status describes.
    #[serde(default)]
    pub observed_generation: i64,
    /// Rendered configuration that all nodes last had in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// Number of nodes in the pool.
    #[serde(default)]
    pub machine_count: i32,
    /// Number of nodes that run the configuration of the pool.
    #[serde(default)]
    pub updated_machine_count: i32,
    /// Number of updated nodes that are ready for pods.
    #[serde(default)]
    pub ready_machine_count: i32,
    /// Number of nodes that are not ready, or are down for a change.
    #[serde(default)]
    pub unavailable_machine_count: i32,
    /// Number of nodes that are Degraded.
    #[serde(default)]
    pub degraded_machine_count: i32,
    /// Conditions of the pool. Types are Updated, Updating, Degraded, `NodeDegraded` and `RenderDegraded`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Disruption permits of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<Permits>,
}

/// A condition of the object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub last_transition_time: Option<String>,
    /// Reason for the status, in one word.
    #[serde(default)]
    pub reason: String,
    /// Explanation for people.
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
    /// Nodes are being updated to it.
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

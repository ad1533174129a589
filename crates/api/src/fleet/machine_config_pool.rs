//! `MachineConfigPool`: which nodes have one configuration in common, from which `MachineConfigs` it is
//! made, and how many of them may be down for it. The shape is OpenShift's; settings of ours are
//! annotations on it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field::{Field, or_default};
use crate::fleet::max_unavailable::MaxUnavailable;
use crate::fleet::permits::Permits;
use crate::selector::Selector;

/// The kind of the object.
pub const KIND: &str = "MachineConfigPool";
/// Its name in requests.
pub const PLURAL: &str = "machineconfigpools";

/// Desired state of the pool.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolSpec {
    /// Nodes of the pool. Selects no node if absent, and all nodes if empty.
    pub node_selector: Field<Selector>,
    /// MachineConfigs that are merged for the pool, in the order of their names.
    pub machine_config_selector: Field<Selector>,
    /// How many nodes may be unavailable at once. A number, or a percentage that is rounded down
    /// to at least 1.
    pub max_unavailable: Field<MaxUnavailable>,
    /// Whether the pool is paused. While it is, no further node starts to change.
    #[schemars(extend("default" = false))]
    pub paused: Field<bool>,
    /// Rendered configuration that the nodes are to run. Written by the operator.
    pub configuration: Field<Configuration>,
}

/// A rendered configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Configuration {
    /// Name of the rendered MachineConfig.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// MachineConfigs that it was rendered from, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub source: Vec<MachineConfigReference>,
}

/// A MachineConfig that is part of a rendered one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MachineConfigReference {
    /// Always `machineconfiguration.openshift.io/v1`.
    pub api_version: String,
    /// Always MachineConfig.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Observed state of the pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolStatus {
    /// Generation of the pool that this status describes.
    pub observed_generation: i64,
    /// Rendered configuration that all nodes last had in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// Number of nodes in the pool.
    pub machine_count: i32,
    /// Number of nodes that run the configuration of the pool.
    pub updated_machine_count: i32,
    /// Number of updated nodes that are ready for pods.
    pub ready_machine_count: i32,
    /// Number of nodes that are not ready, or are down for a change.
    pub unavailable_machine_count: i32,
    /// Number of nodes that are Degraded.
    pub degraded_machine_count: i32,
    /// Conditions of the pool. Types are Updated, Updating, Degraded, `NodeDegraded` and `RenderDegraded`.
    pub conditions: Vec<Condition>,
    /// Disruption permits of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// Entries of the disruption policy make no sense; what they name reboots.
    pub const DISRUPTION_POLICY_INVALID: &str = "DisruptionPolicyInvalid";
    /// What earlier versions wrote where another operator has the pool; nobody writes it now, and it goes with the next status.
    pub const IDLE: &str = "Idle";
}

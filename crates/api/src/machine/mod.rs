//! One machine: a `MachineConfig` and the Ignition configuration in it.

pub mod disruption_policy;
pub mod fragment;
pub(crate) mod ignition;
pub mod machine_config;
pub mod node_state;

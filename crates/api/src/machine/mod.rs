//! One machine: a `MachineConfig` and the Ignition configuration in it.

pub mod fragment;
pub(crate) mod ignition;
pub mod machine_config;

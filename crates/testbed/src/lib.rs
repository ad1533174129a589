//! Real things to test on: a control plane, Windows instances, systemd nodes, a machine whose power
//! can be cut, a machine controller.
//!
//! Nothing of this is shipped, and nothing that is shipped depends on it. Whatever is started here
//! is torn down by its owner's `Drop`; what a panic, Ctrl-C or a kill leaves behind is cleared away
//! by the [`reaper`]. Nothing sleeps to wait: [`wait`] polls a condition and says what it last saw.

// On Windows a double of a service calls the Service Control Manager by itself.
#![cfg_attr(not(windows), forbid(unsafe_code))]

pub mod arguments;
pub mod chance;
mod error;
pub mod kubeconfig;
pub mod node_double;
pub mod promise;
pub mod stolen;
pub mod table;
pub mod wait;
pub mod world;

#[cfg(target_os = "linux")]
pub mod alerts;
#[cfg(target_os = "linux")]
pub mod api_proxy;
#[cfg(target_os = "linux")]
pub mod blackhole;
#[cfg(target_os = "linux")]
pub mod bundle_lint;
#[cfg(target_os = "linux")]
pub mod cache;
#[cfg(target_os = "linux")]
pub mod chart;
#[cfg(target_os = "linux")]
pub mod cluster;
#[cfg(target_os = "linux")]
pub mod control_plane;
#[cfg(target_os = "linux")]
pub mod egress_proxy;
#[cfg(target_os = "linux")]
mod go_module;
#[cfg(target_os = "linux")]
mod helm;
#[cfg(target_os = "linux")]
pub mod ignition;
#[cfg(target_os = "linux")]
pub mod machine_config_operator;
#[cfg(target_os = "linux")]
pub mod machine_double;
#[cfg(target_os = "linux")]
pub mod need;
#[cfg(target_os = "linux")]
pub mod network;
#[cfg(target_os = "linux")]
mod power_cut_machine;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
pub mod prometheus;
#[cfg(target_os = "linux")]
pub mod reaper;
#[cfg(target_os = "linux")]
pub mod request_proxy;
#[cfg(target_os = "linux")]
pub mod scratch;
#[cfg(target_os = "linux")]
mod ssh_key;
#[cfg(target_os = "linux")]
mod systemd_node;
#[cfg(target_os = "linux")]
pub mod windows_instance;
#[cfg(target_os = "linux")]
pub mod workspace;

#[cfg(windows)]
pub mod service_double;

pub use error::{Doing, Error, Result};
#[cfg(target_os = "linux")]
pub use power_cut_machine::{Outcome, PowerCutMachine, PowerCutOptions};
#[cfg(target_os = "linux")]
pub use systemd_node::SystemdNode;

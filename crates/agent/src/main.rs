//! `evenkeel-agent`: one node, kept in its declared state.
//!
//! Connects the desired state in the cluster to the host. It decides nothing (that is `evenkeel-plan`) and
//! touches nothing (that is `evenkeel-host`).

#![forbid(unsafe_code)]

mod drift_watcher;
#[cfg(target_os = "linux")]
mod linux;
mod machine;
mod metrics;
mod node_client;
mod node_event;
mod node_report;
mod own_node;
mod pending_events;
mod reconcile;
mod slow_steps;
mod trigger;
#[cfg(windows)]
mod windows;
mod worker;

use anyhow::Result;
use evenkeel_daemon::Program;

const PROGRAM: Program = Program {
    name: "evenkeel-agent",
    version: env!("CARGO_PKG_VERSION"),
};

#[cfg(target_os = "linux")]
fn main() -> Result<()> {
    evenkeel_daemon::panics::end_the_program();
    linux::main()
}

#[cfg(windows)]
fn main() -> Result<()> {
    evenkeel_daemon::panics::end_the_program();
    windows::main()
}

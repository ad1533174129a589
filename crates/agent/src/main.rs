//! `evenkeel-agent`: one node, kept in its declared state.
//!
//! Connects the desired state in the cluster to the host. It decides nothing (that is `evenkeel-plan`) and
//! touches nothing (that is `evenkeel-host`).

#[cfg(target_os = "linux")]
mod arguments;
#[cfg(target_os = "linux")]
mod linux;
mod metrics;
mod node_event;
mod node_report;
mod pending_events;
mod queue;
mod reconcile;
mod slow_steps;
#[cfg(windows)]
mod windows;

use anyhow::Result;

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

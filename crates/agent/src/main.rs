//! `evenkeel-agent`: one node, kept in its declared state.
//!
//! Connects the cluster's wishes to the host. It decides nothing (that is `evenkeel-plan`) and
//! touches nothing (that is `evenkeel-host`).

#[cfg(target_os = "linux")]
mod arguments;
#[cfg(target_os = "linux")]
mod linux;
mod metrics;
mod node_event;
mod pending_events;
mod queue;
mod reporter;
mod slow_steps;
mod turn;
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

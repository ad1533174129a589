//! `evenkeel-agent`: one node, kept in its declared state.
//!
//! Connects the cluster's wishes to the host. It decides nothing (that is `evenkeel-plan`) and
//! touches nothing (that is `evenkeel-host`).

mod arguments;
#[cfg(target_os = "linux")]
mod linux;

use anyhow::Result;
use clap::Parser;
use evenkeel_daemon::{Daemon, Program};

use crate::arguments::{Command, CommandLine};

const PROGRAM: Program = Program {
    name: "evenkeel-agent",
    version: env!("CARGO_PKG_VERSION"),
};

fn main() -> Result<()> {
    let line = CommandLine::parse();
    #[cfg(target_os = "linux")]
    evenkeel_host::memory::share_one_heap();
    // One worker does one thing at a time; what blocks has threads of its own.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run(line))
}

async fn run(line: CommandLine) -> Result<()> {
    let Command::Controller(controller) = line.command;
    let daemon = Daemon::start(PROGRAM, &line.daemon).await?;
    #[cfg(target_os = "linux")]
    let ended = daemon.run(async |daemon| linux::control(daemon, controller).await);
    #[cfg(not(target_os = "linux"))]
    let ended = daemon.run(async |_| Err(beyond_us(&controller)));
    Ok(ended.await?)
}

#[cfg(not(target_os = "linux"))]
fn beyond_us(controller: &arguments::ControllerArguments) -> evenkeel_daemon::Error {
    evenkeel_daemon::Error::work(format!(
        "node {} ({}) cannot be controlled by this version: it keeps Linux nodes only",
        controller.node_name,
        controller.root.display()
    ))
}

//! What each long-running program of ours does: logs, metrics, health, client, signals, leadership.
//!
//! It knows nothing of nodes, plans or hosts; an agent and an operator are the same to it.
//!
//! ```no_run
//! # #[derive(clap::Parser)]
//! # struct Arguments { #[command(flatten)] daemon: evenkeel_daemon::Arguments }
//! # async fn main_of_an_agent(arguments: Arguments) -> evenkeel_daemon::Result<()> {
//! use evenkeel_daemon::{Daemon, Program};
//!
//! let program = Program { name: "evenkeel-agent", version: env!("CARGO_PKG_VERSION") };
//! let daemon = Daemon::start(program, &arguments.daemon).await?;
//! let node = daemon.health().check("node");
//! daemon
//!     .run(async |daemon| {
//!         node.ready();
//!         daemon.stop().stopped().await;
//!         Ok(())
//!     })
//!     .await
//! # }
//! ```

#![forbid(unsafe_code)]

mod arguments;
mod client;
mod daemon;
mod error;
mod events;
mod health;
mod leadership;
mod log;
mod metrics;
pub mod panics;
mod program;
mod reachability;
mod server;
mod stop;

pub use arguments::{Arguments, Listen, LogFormat};
pub use client::{connect, direct, kubeconfig};
pub use daemon::Daemon;
pub use error::{Error, Result};
pub use events::{Event, Events, EventsOptions};
pub use health::{Check, Health, Heartbeat};
pub use leadership::{Leadership, LeaseName, Term, Timing};
pub use metrics::{Metrics, gauge_of};
pub use program::Program;
pub use stop::Stop;

//! A Linux node: one queue of what may have changed, and one worker that looks after it.

mod cluster;
mod drift;
mod drift_watcher;
mod events;
mod machine;
mod metrics;
mod plugin_registration;
mod search;
mod ssh_logins;
mod update_history;
mod witness;
mod worker;

use std::sync::Arc;

use clap::Parser;
use evenkeel_daemon::{Daemon, Error, Program, Result};
use tokio::sync::{mpsc, watch};

use self::cluster::Cluster;
use self::machine::Machine;
use self::metrics::AgentMetrics;
use self::worker::Worker;
use crate::arguments::{Command, CommandLine, ControllerArguments};
use crate::queue;
use crate::reporter::{self, Seen};
use crate::turn::Turn;

const PROGRAM: Program = Program {
    name: "evenkeel-agent",
    version: env!("CARGO_PKG_VERSION"),
};

/// The whole program.
pub(crate) fn main() -> anyhow::Result<()> {
    let line = CommandLine::parse();
    evenkeel_host::memory::share_one_heap();
    // One worker does one thing at a time; what blocks has threads of its own.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run(line))
}

async fn run(line: CommandLine) -> anyhow::Result<()> {
    let Command::Controller(controller) = line.command;
    let daemon = Daemon::start(PROGRAM, &line.daemon).await?;
    let ended = daemon.run(async |daemon| control(daemon, controller).await);
    Ok(ended.await?)
}

/// Keeps the node until the program is asked to stop.
pub(crate) async fn control(daemon: &Daemon, arguments: ControllerArguments) -> Result<()> {
    let machine = Machine::open(&arguments.root).map_err(|error| {
        Error::work(format!(
            "cannot open {}: {}",
            arguments.root.display(),
            error.with_causes()
        ))
    })?;
    let (keys, mut queue) = mpsc::unbounded_channel();
    let cluster = Cluster::new(daemon.client(), &arguments.node_name);
    let (shown, seen) = watch::channel(Seen::default());
    let node = cluster.watch_node(keys.clone(), shown);
    let ready = daemon.health().check("node");
    let heart = daemon.health().heartbeat("worker", arguments.stuck_after);
    let heart = Arc::new(heart);
    let machine = Arc::new(machine);
    let doorman = tokio::spawn(ssh_logins::watch(Arc::clone(&machine), keys.clone()));
    let registrar = arguments.register_kubelet_plugins.then(|| {
        let cluster = Cluster::new(daemon.client(), &arguments.node_name);
        let root = arguments.root.clone();
        tokio::spawn(plugin_registration::register(root, cluster, seen.clone()))
    });
    let reporter = reporter::report(
        daemon.client(),
        arguments.node_name.clone(),
        Arc::clone(&machine),
        seen,
    );
    let reporter = tokio::spawn(reporter);
    let numbers = AgentMetrics::shown_in(daemon.metrics());
    let events = daemon.events().clone();
    let signs = (ready, Arc::clone(&heart));
    let mut worker = Worker::new(cluster, machine, events, numbers, signs, keys);
    let mut turn = Turn::Rest;
    while !daemon.stop().is_asked() {
        heart.beat();
        let key = match turn {
            Turn::Again => queue.try_recv().ok(),
            Turn::Rest => queue::next(daemon, &mut queue, &heart, None).await,
            Turn::After(pause) => queue::next(daemon, &mut queue, &heart, Some(pause)).await,
        };
        if daemon.stop().is_asked() {
            break;
        }
        if let Some(key) = key {
            worker.hear(key);
        }
        while let Ok(key) = queue.try_recv() {
            worker.hear(key);
        }
        turn = worker.turn().await;
    }
    node.abort();
    doorman.abort();
    reporter.abort();
    if let Some(registrar) = registrar {
        registrar.abort();
    }
    worker.end().await;
    Ok(())
}

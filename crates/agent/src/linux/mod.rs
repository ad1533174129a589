//! A Linux node: one queue of what may have changed, and one worker that reconciles it.

mod cluster;
mod config_source;
mod drift;
mod drift_watcher;
mod events;
mod machine;
mod metrics;
mod own_node;
mod plugin_registration;
mod reported;
mod ssh_logins;
mod trigger;
mod update_history;
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
use crate::node_report::{self, NodeSnapshot};
use crate::queue;
use crate::reconcile::Requeue;

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
    let (triggers, mut queue) = mpsc::unbounded_channel();
    let cluster = Cluster::new(daemon.client(), &arguments.node_name);
    let (shown, seen) = watch::channel(NodeSnapshot::default());
    let node = cluster.watch_node(triggers.clone(), shown);
    let ready = daemon.health().check("node");
    let heart = daemon.health().heartbeat("worker", arguments.stuck_after);
    let heart = Arc::new(heart);
    let machine = Arc::new(machine);
    let logins = tokio::spawn(ssh_logins::watch(Arc::clone(&machine), triggers.clone()));
    let registration = arguments.register_kubelet_plugins.then(|| {
        let cluster = Cluster::new(daemon.client(), &arguments.node_name);
        let root = arguments.root.clone();
        tokio::spawn(plugin_registration::register(root, cluster, seen.clone()))
    });
    let reporter = node_report::report(
        daemon.client(),
        arguments.node_name.clone(),
        Arc::clone(&machine),
        seen,
    );
    let reporter = tokio::spawn(reporter);
    let metrics = AgentMetrics::shown_in(daemon.metrics());
    let events = daemon.events().clone();
    let telemetry = (ready, Arc::clone(&heart));
    let mut worker = Worker::new(cluster, machine, events, metrics, telemetry, triggers);
    let mut requeue = Requeue::OnChange;
    while !daemon.stop().is_asked() {
        heart.beat();
        let key = match requeue {
            Requeue::Now => queue.try_recv().ok(),
            Requeue::OnChange => queue::next(daemon, &mut queue, &heart, None).await,
            Requeue::After(pause) => queue::next(daemon, &mut queue, &heart, Some(pause)).await,
        };
        if daemon.stop().is_asked() {
            break;
        }
        if let Some(key) = key {
            worker.observe(key);
        }
        while let Ok(key) = queue.try_recv() {
            worker.observe(key);
        }
        requeue = worker.reconcile().await;
    }
    node.abort();
    logins.abort();
    reporter.abort();
    if let Some(registration) = registration {
        registration.abort();
    }
    worker.end().await;
    Ok(())
}

//! A Linux node: one queue of what may have changed, and one worker that reconciles it.

mod adoption;
mod arguments;
mod cluster;
mod config_source;
mod drift;
mod drift_watcher;
mod events;
mod kubelet;
mod machine;
mod metrics;
mod plugin_registration;
mod reported;
mod ssh_logins;
mod system;
mod trigger;
mod update_history;

use std::sync::Arc;

use clap::Parser;
use evenkeel_daemon::{Daemon, Error, Result};
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::arguments::{Command, CommandLine, ControllerArguments};
use self::kubelet::KubeletFinder;
use self::machine::Machine;
use self::metrics::AgentMetrics;
use self::plugin_registration::PluginRegistration;
use self::reported::LinuxReport;
use self::system::Linux;
use crate::PROGRAM;
use crate::node_client::NodeClient;
use crate::node_report::{self, NodeSnapshot};
use crate::own_node::OwnNode;
use crate::worker::{Worker, WorkerHealth};

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
    let machine = Machine::open(&arguments.root, arguments.bypass_driver).map_err(|error| {
        Error::work(format!(
            "cannot open {}: {}",
            arguments.root.display(),
            error.with_causes()
        ))
    })?;
    let machine = Arc::new(machine);
    let (triggers, queue) = mpsc::unbounded_channel();
    let own_node = NodeClient::new(daemon.client(), &arguments.node_name);
    let (shown, seen) = watch::channel(NodeSnapshot::default());
    let root = arguments.root.clone();
    let settings = arguments.kubelet.settings();
    let kubelet = Arc::new(KubeletFinder::new(Arc::clone(&machine), settings));
    let found = kubelet.found();
    let report = Arc::new(LinuxReport {
        machine: Arc::clone(&machine),
        kubelet,
        root: root.clone(),
        allowed: arguments.allow_exec_probe.clone(),
    });
    let name = arguments.node_name.clone();
    let mut background = vec![
        own_node.watch(triggers.clone(), shown, read),
        tokio::spawn(ssh_logins::watch(Arc::clone(&machine), triggers.clone())),
        tokio::spawn(node_report::report(
            daemon.client(),
            name,
            report,
            seen.clone(),
        )),
    ];
    if arguments.kubelet.register_kubelet_plugins {
        let forgotten_after = arguments.kubelet.forget_plugins_after;
        let registrar =
            PluginRegistration::new(root, own_node.clone(), seen, found, forgotten_after);
        let registration = registrar.run();
        background.push(tokio::spawn(registration));
    }
    let heart = daemon.health().heartbeat("worker", arguments.stuck_after);
    let health = WorkerHealth {
        ready: daemon.health().check("node"),
        heart: Arc::new(heart),
    };
    let system = Linux::new(AgentMetrics::shown_in(daemon.metrics()), machine.history());
    let events = daemon.events().clone();
    let worker = Worker::new(system, own_node, machine, events, triggers, health);
    worker.run(queue, daemon.stop()).await;
    background.iter().for_each(JoinHandle::abort);
    Ok(())
}

/// What the worker needs of the own Node: nothing else of it is ever held.
fn read(node: PartialObjectMeta<Node>) -> OwnNode {
    OwnNode {
        uid: node.metadata.uid.unwrap_or_default(),
        annotations: node.metadata.annotations.unwrap_or_default(),
        ..OwnNode::default()
    }
}

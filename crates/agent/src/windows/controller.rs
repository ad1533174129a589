//! Keeps a node: one queue of what may have changed, one worker that reconciles it, and a login that
//! is renewed before it ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_daemon::{Daemon, Events, EventsOptions, Result, Stop};
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::arguments::ControllerArguments;
use super::machine::Machine;
use super::metrics::AgentMetrics;
use super::reported::WindowsReport;
use super::roots::Roots;
use super::system::Windows;
use super::values::Scripts;
use super::{HostResult, bootstrap, cluster, login};
use crate::node_client::NodeClient;
use crate::node_report::{self, NodeSnapshot};
use crate::worker::{Worker, WorkerHealth};

/// How long the Node may take to be found.
const NODE: Duration = Duration::from_mins(10);

/// Keeps the node until the program is asked to stop.
pub(crate) async fn control(
    daemon: &Daemon,
    given: Option<&Path>,
    arguments: ControllerArguments,
) -> Result<()> {
    let machine = Arc::new(Machine::open());
    // What is in there works all the same; it is only less safe.
    if let Err(error) = machine.close_folders() {
        tracing::warn!("{}", error.with_causes());
    }
    let node = match machine.node_name().or_fail()? {
        Some(node) => node,
        None => bootstrap::own_node(&daemon.client(), None, NODE).await?,
    };
    let heart = daemon.health().heartbeat("worker", arguments.stuck_after);
    let health = WorkerHealth {
        ready: daemon.health().check("node"),
        heart: Arc::new(heart),
    };
    let metrics = AgentMetrics::shown_in(daemon.metrics());
    let report = Arc::new(WindowsReport::new(Arc::clone(&machine), metrics.clone()));
    // A login that somebody else gave us is theirs to renew.
    let is_own_login = given == Some(Machine::login_file().as_path());
    let (mut client, mut events) = (daemon.client(), daemon.events().clone());
    let (namespace, script_timeout) = (
        &arguments.scripts.namespace,
        arguments.scripts.script_timeout,
    );
    loop {
        let own_node = NodeClient::new(client.clone(), &node);
        let (triggers, queue) = mpsc::unbounded_channel();
        let (shown, seen) = watch::channel(NodeSnapshot::default());
        let reporter = node_report::report(client.clone(), node.clone(), Arc::clone(&report), seen);
        // Whoever works with a login ends with it, and the next one goes on.
        let end = Stop::default();
        let mut background = vec![
            own_node.watch(triggers.clone(), shown, cluster::read),
            cluster::watch_bundle(&client, namespace, triggers.clone()),
            tokio::spawn(reporter),
            tokio::spawn(stop_with(daemon.stop().clone(), end.clone())),
        ];
        if is_own_login {
            background.push(tokio::spawn(renew(
                client.clone(),
                node.clone(),
                end.clone(),
            )));
        }
        let system = Windows::new(
            metrics.clone(),
            namespace.clone(),
            Scripts::new(script_timeout, triggers.clone()),
            Roots::watched(&machine, triggers.clone()),
        );
        let machine = Arc::clone(&machine);
        let health = health.clone();
        let worker = Worker::new(system, own_node, machine, events, triggers, health);
        worker.run(queue, &end).await;
        background.iter().for_each(JoinHandle::abort);
        if daemon.stop().is_asked() {
            return Ok(());
        }
        client = login::client(daemon).await?;
        let (program, metrics) = (daemon.program(), daemon.metrics().clone());
        events = Events::start(client.clone(), program, metrics, EventsOptions::default());
    }
}

/// Stops the worker with the program.
async fn stop_with(program: Stop, worker: Stop) {
    program.stopped().await;
    worker.stop();
}

/// Renews the login when its time has come, and stops the worker that uses the old one.
async fn renew(client: Client, node: String, worker: Stop) {
    login::renewed(&client, &node).await;
    worker.stop();
}

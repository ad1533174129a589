//! Keeps a node: one queue of what may have changed, one worker that reconciles it, and a login that
//! is renewed before it ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_daemon::{Daemon, Events, EventsOptions, Result};
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::arguments::ControllerArguments;
use super::cluster::Cluster;
use super::machine::Machine;
use super::metrics::AgentMetrics;
use super::reported::WindowsReport;
use super::trigger::Trigger;
use super::worker::{Telemetry, Worker};
use super::{bootstrap, host_error, login};
use crate::node_report::{self, NodeSnapshot};
use crate::queue;
use crate::reconcile::Requeue;

/// How long the Node may take to be found.
const NODE: Duration = Duration::from_mins(10);

/// Why nobody looks after the node any more.
enum End {
    /// The program is asked to stop.
    Stopped,
    /// There is a new login.
    Renewed,
}

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
    let known = machine.node_name().map_err(|error| host_error(&error))?;
    let node = match known {
        Some(node) => node,
        None => bootstrap::own_node(&daemon.client(), NODE).await?,
    };
    let heart = daemon.health().heartbeat("worker", arguments.stuck_after);
    let telemetry = Telemetry {
        metrics: AgentMetrics::shown_in(daemon.metrics()),
        ready: daemon.health().check("node"),
        heart: Arc::new(heart),
    };
    let machine_report = Arc::new(WindowsReport::new(
        Arc::clone(&machine),
        telemetry.metrics.clone(),
    ));
    // A login that somebody else gave us is theirs to renew.
    let is_own_login = given == Some(Machine::login_file().as_path());
    let (mut client, mut events) = (daemon.client(), daemon.events().clone());
    loop {
        let cluster = Cluster::new(client.clone(), &arguments.place.namespace, &node);
        let (triggers, queue) = mpsc::unbounded_channel();
        let limit = arguments.place.script_timeout;
        let machine = Arc::clone(&machine);
        let worker = Worker::new(
            cluster.clone(),
            machine,
            events.clone(),
            telemetry.clone(),
            triggers.clone(),
            limit,
        );
        let (shown, seen) = watch::channel(NodeSnapshot::default());
        let machine_report = Arc::clone(&machine_report);
        let reporter = node_report::report(client.clone(), node.clone(), machine_report, seen);
        let background = [
            cluster.watch_node(triggers.clone(), shown),
            cluster.watch_bundle(triggers.clone()),
            tokio::spawn(reporter),
        ];
        let renewal =
            is_own_login.then(|| tokio::spawn(renew(client.clone(), node.clone(), triggers)));
        let end = look_after(daemon, worker, queue, &telemetry).await;
        background.iter().for_each(JoinHandle::abort);
        if let Some(renewal) = renewal {
            renewal.abort();
        }
        if let End::Stopped = end {
            return Ok(());
        }
        client = login::client(daemon).await?;
        let (program, metrics) = (daemon.program(), daemon.metrics().clone());
        events = Events::start(client.clone(), program, metrics, EventsOptions::default());
    }
}

/// Renews the login when its time has come, and says so.
async fn renew(client: Client, node: String, triggers: mpsc::UnboundedSender<Trigger>) {
    login::renewed(&client, &node).await;
    // Without a worker nobody wants to know.
    _ = triggers.send(Trigger::Renewed);
}

/// Reconciles again and again, until the program is asked to stop or there is a new login.
async fn look_after(
    daemon: &Daemon,
    mut worker: Worker,
    mut queue: mpsc::UnboundedReceiver<Trigger>,
    telemetry: &Telemetry,
) -> End {
    let mut requeue = Requeue::Now;
    let mut end = None;
    while end.is_none() {
        telemetry.heart.beat();
        let heart = &telemetry.heart;
        let mut key = match requeue {
            Requeue::Now => queue.try_recv().ok(),
            Requeue::OnChange => queue::next(daemon, &mut queue, heart, None).await,
            Requeue::After(pause) => queue::next(daemon, &mut queue, heart, Some(pause)).await,
        };
        while let Some(heard) = key {
            if let Trigger::Renewed = heard {
                end = Some(End::Renewed);
            }
            worker.observe(heard);
            key = queue.try_recv().ok();
        }
        if daemon.stop().is_asked() {
            end = Some(End::Stopped);
        }
        if end.is_none() {
            requeue = worker.reconcile().await;
        }
    }
    worker.end().await;
    end.unwrap_or(End::Stopped)
}

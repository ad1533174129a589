//! Keeps a node: one queue of what may have changed, one worker that looks after it, and a login that
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
use super::witness::Onlooker;
use super::worker::{Key, Signs, Worker};
use super::{bootstrap, host_error, login};
use crate::queue;
use crate::reporter::{self, Seen};
use crate::turn::Turn;

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
    let signs = Signs {
        numbers: AgentMetrics::shown_in(daemon.metrics()),
        ready: daemon.health().check("node"),
        heart: Arc::new(heart),
    };
    let onlooker = Arc::new(Onlooker::new(Arc::clone(&machine), signs.numbers.clone()));
    // A login that somebody else gave us is theirs to renew.
    let is_ours = given == Some(Machine::login_file().as_path());
    let (mut client, mut events) = (daemon.client(), daemon.events().clone());
    loop {
        let cluster = Cluster::new(client.clone(), &arguments.place.namespace, &node);
        let (keys, queue) = mpsc::unbounded_channel();
        let limit = arguments.place.script_timeout;
        let machine = Arc::clone(&machine);
        let worker = Worker::new(
            cluster.clone(),
            machine,
            events.clone(),
            signs.clone(),
            keys.clone(),
            limit,
        );
        let (shown, seen) = watch::channel(Seen::default());
        let onlooker = Arc::clone(&onlooker);
        let reporter = reporter::report(client.clone(), node.clone(), onlooker, seen);
        let beside = [
            cluster.watch_node(keys.clone(), shown),
            cluster.watch_bundle(keys.clone()),
            tokio::spawn(reporter),
        ];
        let renewal = is_ours.then(|| tokio::spawn(renew(client.clone(), node.clone(), keys)));
        let end = look_after(daemon, worker, queue, &signs).await;
        beside.iter().for_each(JoinHandle::abort);
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
async fn renew(client: Client, node: String, keys: mpsc::UnboundedSender<Key>) {
    login::renewed(&client, &node).await;
    // Without a worker nobody wants to know.
    _ = keys.send(Key::Renewed);
}

/// Turn after turn, until the program is asked to stop or there is a new login.
async fn look_after(
    daemon: &Daemon,
    mut worker: Worker,
    mut queue: mpsc::UnboundedReceiver<Key>,
    signs: &Signs,
) -> End {
    let mut turn = Turn::Again;
    let mut end = None;
    while end.is_none() {
        signs.heart.beat();
        let heart = &signs.heart;
        let mut key = match turn {
            Turn::Again => queue.try_recv().ok(),
            Turn::Rest => queue::next(daemon, &mut queue, heart, None).await,
            Turn::After(pause) => queue::next(daemon, &mut queue, heart, Some(pause)).await,
        };
        while let Some(heard) = key {
            if let Key::Renewed = heard {
                end = Some(End::Renewed);
            }
            worker.hear(heard);
            key = queue.try_recv().ok();
        }
        if daemon.stop().is_asked() {
            end = Some(End::Stopped);
        }
        if end.is_none() {
            turn = worker.turn().await;
        }
    }
    worker.end().await;
    end.unwrap_or(End::Stopped)
}

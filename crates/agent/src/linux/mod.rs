//! A Linux node: one queue of what may have changed, and one worker that looks after it.

mod cluster;
mod doorman;
mod drift;
mod lookout;
mod machine;
mod numbers;
mod search;
mod tidings;
mod worker;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_daemon::{Daemon, Error, Result};
use futures::future::{Either, select};
use tokio::sync::mpsc;

use self::cluster::Cluster;
use self::machine::Machine;
use self::numbers::Numbers;
use self::worker::{Key, Turn, Worker};
use crate::arguments::ControllerArguments;

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
    let node = cluster.watch_node(keys.clone());
    let ready = daemon.health().check("node");
    let machine = Arc::new(machine);
    let doorman = tokio::spawn(doorman::watch(Arc::clone(&machine), keys.clone()));
    let numbers = Numbers::shown_in(daemon.metrics());
    let events = daemon.events().clone();
    let mut worker = Worker::new(cluster, machine, events, numbers, ready, keys);
    let mut turn = Turn::Rest;
    while !daemon.stop().is_asked() {
        let key = match turn {
            Turn::Again => queue.try_recv().ok(),
            Turn::Rest => until_stopped(daemon, queue.recv(), None).await,
            Turn::After(pause) => until_stopped(daemon, queue.recv(), Some(pause)).await,
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
    worker.end().await;
    Ok(())
}

/// The next key, or nothing if there is none in time or the program shall stop.
async fn until_stopped(
    daemon: &Daemon,
    next: impl Future<Output = Option<Key>>,
    limit: Option<Duration>,
) -> Option<Key> {
    let limited = async {
        match limit {
            Some(limit) => tokio::time::timeout(limit, next).await.ok().flatten(),
            None => next.await,
        }
    };
    match select(pin!(limited), pin!(daemon.stop().stopped())).await {
        Either::Left((key, _)) => key,
        Either::Right(_) => None,
    }
}

//! A Windows node: the commands of its agent, and one worker that looks after it.

mod arguments;
mod bootstrap;
mod cleanup;
mod cluster;
mod login;
mod lookout;
mod machine;
mod questions;
mod service;
mod tidings;
mod values;
mod worker;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use evenkeel_daemon::{Daemon, Error, Listen, Program, Result, Stop};
use futures::future::{Either, select};
use tokio::sync::mpsc;

use self::arguments::{Command, CommandLine, ControllerArguments};
use self::cluster::Cluster;
use self::machine::Machine;
use self::worker::{Key, Turn, Worker};

const PROGRAM: Program = Program {
    name: "evenkeel-agent",
    version: env!("CARGO_PKG_VERSION"),
};
/// How long the Node may take to be found once the agent runs as a controller.
const NODE: Duration = Duration::from_mins(10);

/// The whole program.
pub(crate) fn main() -> anyhow::Result<()> {
    let line = CommandLine::parse();
    if let Command::Controller(controller) = &line.command
        && controller.windows_service
    {
        return service::run(line);
    }
    run(line, Stop::default())
}

/// Carries `line` out until it is done, or until `stop`.
fn run(line: CommandLine, stop: Stop) -> anyhow::Result<()> {
    // One worker does one thing at a time; what blocks has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(command(line, stop))?)
}

async fn command(line: CommandLine, stop: Stop) -> Result<()> {
    let one_shot = evenkeel_daemon::Arguments {
        listen: Listen::Off,
        ..line.daemon.clone()
    };
    match line.command {
        Command::Inspect => questions::inspect(),
        Command::Checksums { paths } => questions::checksums(&paths),
        Command::Trust(command) => questions::trust(&command),
        Command::Service(command) => questions::service(&command),
        Command::Bootstrap(arguments) => {
            let login = line.daemon.kubeconfig.clone().ok_or_else(|| {
                Error::work("bootstrap wants --kubeconfig FILE, a login that may read and ask for certificates".to_owned())
            })?;
            let daemon = Daemon::start(PROGRAM, &one_shot).await?;
            daemon
                .run(async |daemon| bootstrap::bootstrap(daemon, &login, arguments).await)
                .await
        }
        Command::Cleanup(arguments) => {
            let login = line.daemon.kubeconfig.clone();
            let daemon = Daemon::start(PROGRAM, &one_shot).await?;
            daemon
                .run(async |daemon| cleanup::cleanup(daemon, login.as_deref(), arguments).await)
                .await
        }
        Command::Controller(arguments) => {
            let daemon = Daemon::start(PROGRAM, &line.daemon).await?;
            let asked = daemon.stop().clone();
            tokio::spawn(async move {
                stop.stopped().await;
                asked.stop();
            });
            daemon
                .run(async |daemon| control(daemon, arguments).await)
                .await
        }
    }
}

/// Keeps the node until the program is asked to stop.
async fn control(daemon: &Daemon, arguments: ControllerArguments) -> Result<()> {
    let machine = Arc::new(Machine::open());
    let known = machine.node_name().map_err(|error| host_error(&error))?;
    let node = match known {
        Some(node) => node,
        None => bootstrap::own_node(&daemon.client(), NODE).await?,
    };
    let (keys, mut queue) = mpsc::unbounded_channel();
    let cluster = Cluster::new(daemon.client(), &arguments.place.namespace, &node);
    let watch = cluster.watch_node(keys.clone());
    let ready = daemon.health().check("node");
    let events = daemon.events().clone();
    let limit = arguments.place.script_timeout;
    let mut worker = Worker::new(cluster, machine, events, ready, keys, limit);
    let mut turn = Turn::Again;
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
    watch.abort();
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

/// An error of the machine as one of the program.
fn host_error(error: &evenkeel_host::Error) -> Error {
    Error::work(error.with_causes())
}

/// What was asked, as JSON on standard output.
fn answer(value: &serde_json::Value) -> Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{value}")
        .map_err(|error| Error::work(format!("cannot answer: {error}")))
}

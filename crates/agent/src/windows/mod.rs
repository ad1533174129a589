//! A Windows node: the commands of its agent, and one worker that reconciles it.

mod arguments;
mod bootstrap;
mod cleanup;
mod cluster;
mod controller;
mod drift;
mod drift_watcher;
mod events;
mod login;
mod logs;
mod machine;
mod metrics;
mod naming;
mod questions;
mod reported;
mod roots;
mod service;
mod services_source;
mod system;
mod take_over;
mod trigger;
mod values;

use std::time::Duration;

use clap::Parser;
use evenkeel_daemon::{Daemon, Error, Listen, Result, Stop};

use self::arguments::{Command, CommandLine};
use self::machine::Machine;
use crate::PROGRAM;
use crate::reconcile::blocking;

/// How long a thread for what blocks is kept: each is dear while it does nothing.
const IDLE_THREAD: Duration = Duration::from_secs(1);

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
        .thread_keep_alive(IDLE_THREAD)
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
        Command::Prepare {
            node_name_script,
            paths,
        } => questions::prepare(node_name_script.as_deref(), &paths),
        Command::NodeName(arguments) => naming::say_name(&arguments),
        Command::NodeIp => naming::say_address(line.daemon.kubeconfig.as_deref()),
        Command::Logs => logs::bundle(&mut std::io::stdout().lock()),
        Command::Checksums { paths } => questions::checksums(&paths),
        Command::Trust(command) => questions::trust(&command),
        Command::Service(command) => questions::service(&command),
        Command::Bootstrap(arguments) => {
            let login = line.daemon.kubeconfig.clone().ok_or_else(|| {
                Error::work("bootstrap needs --kubeconfig FILE: a login that may read and request certificates".to_owned())
            })?;
            let daemon = Daemon::start(PROGRAM, &one_shot).await?;
            daemon
                .run(async |daemon| bootstrap::bootstrap(daemon, &login, arguments).await)
                .await
        }
        Command::Login { namespace: _ } => {
            let login = line.daemon.kubeconfig.clone().ok_or_else(|| {
                Error::work(
                    "login needs --kubeconfig FILE: a login that may request certificates"
                        .to_owned(),
                )
            })?;
            let daemon = Daemon::start(PROGRAM, &one_shot).await?;
            daemon
                .run(async |daemon| login::replace(daemon, &login).await)
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
            let login = line.daemon.kubeconfig.clone();
            let daemon = Daemon::start(PROGRAM, &line.daemon).await?;
            let asked = daemon.stop().clone();
            tokio::spawn(async move {
                stop.stopped().await;
                asked.stop();
            });
            daemon
                .run(async |daemon| controller::control(daemon, login.as_deref(), arguments).await)
                .await
        }
    }
}

/// What the machine said, as what the program says.
trait HostResult<T> {
    /// The same, or an error with all its causes.
    fn or_fail(self) -> Result<T>;
}

impl<T> HostResult<T> for evenkeel_host::Result<T> {
    fn or_fail(self) -> Result<T> {
        self.map_err(|error| Error::work(error.with_causes()))
    }
}

/// Asks something of the machine, in a thread that may wait.
async fn on_machine<T: Send + 'static>(
    work: impl FnOnce(&Machine) -> evenkeel_host::Result<T> + Send + 'static,
) -> Result<T> {
    let done = blocking(move || work(&Machine::open())).await;
    done.map_err(|reason| Error::work(reason.text))?.or_fail()
}

/// What was asked, as JSON on standard output.
fn answer(value: &serde_json::Value) -> Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{value}")
        .map_err(|error| Error::work(format!("cannot write to standard output: {error}")))
}

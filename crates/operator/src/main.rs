//! `evenkeel-operator`: the fleet.
//!
//! Connects the cluster's objects to decisions of `evenkeel-plan` and carries them out through the
//! API server. It decides nothing itself, and never touches the machine it runs on.

#![forbid(unsafe_code)]

mod arguments;
mod conditions;
mod controllers;
mod fleet;
mod installation;
mod kinds;
mod objects;
mod readiness;
mod said;
mod shared;
mod store;
mod triggers;
mod windows;

use std::process::ExitCode;

use clap::Parser;
use evenkeel_api::names::program;
use evenkeel_daemon::{Daemon, LeaseName, Program, Result, Timing};

use crate::arguments::{Command, Operator, PayloadCommand, Run, Seal};
use crate::controllers::ControllerMetrics;
use crate::fleet::uninstall;
use crate::windows::payload;

/// Release and commit, as nodes are told it.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("EVENKEEL_COMMIT"));

const PROGRAM: Program = Program {
    name: program::OPERATOR,
    version: VERSION,
};

fn main() -> ExitCode {
    evenkeel_daemon::panics::end_the_program();
    let arguments = Operator::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(obey(&arguments));
            // A name server that says nothing holds a thread for a minute, and nobody waits for that any more.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(evenkeel_daemon::Error::work(error)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-operator: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

async fn obey(arguments: &Operator) -> Result<()> {
    match &arguments.command {
        Command::Run(command) => run(&arguments.daemon, command).await,
        Command::Uninstall(options) => uninstall::run(PROGRAM, &arguments.daemon, options).await,
        Command::Payload(arguments) => match &arguments.command {
            PayloadCommand::Seal(arguments) => seal(arguments),
        },
    }
}

async fn run(arguments: &evenkeel_daemon::Arguments, run: &Run) -> Result<()> {
    let drain = run.drain_settings()?;
    let daemon = Daemon::start(PROGRAM, arguments).await?;
    let metrics = ControllerMetrics::shown_in(daemon.metrics());
    let lease = LeaseName {
        namespace: run.namespace.clone(),
        name: PROGRAM.name.to_owned(),
    };
    let leadership = daemon.stand_for(lease, Timing::default());
    daemon
        .run(async |daemon| {
            let work = async |term| {
                Box::pin(controllers::run(daemon, &metrics, run, drain, term)).await;
            };
            leadership.run_while_leading(work).await;
            Ok(())
        })
        .await
}

/// Seals a payload, and opens it as `run` would.
fn seal(arguments: &Seal) -> Result<()> {
    let version = match &arguments.payload_version {
        Some(version) => version.clone(),
        None => VERSION.parse().map_err(evenkeel_daemon::Error::work)?,
    };
    let folder = &arguments.folder;
    payload::seal(folder, version).map_err(evenkeel_daemon::Error::work)?;
    let payload = payload::Payload::open(folder).map_err(evenkeel_daemon::Error::work)?;
    println!(
        "{}: sealed as {}, {} files",
        folder.display(),
        payload.version(),
        payload.count()
    );
    Ok(())
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

//! `evenkeel-operator`: the fleet.
//!
//! Connects the cluster's objects to decisions of `evenkeel-plan` and carries them out through the
//! API server. It decides nothing itself, and never touches the machine it runs on.

mod controllers;
mod drain_metrics;
mod nodes;
mod pods;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use evenkeel_api::names::program;
use evenkeel_daemon::{Daemon, LeaseName, Program, Result, Timing};
use evenkeel_plan::drain::Settings;

use crate::controllers::drain;
use crate::drain_metrics::DrainMetrics;

/// Decides which node may change when, and cares for instances.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Operator {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    daemon: evenkeel_daemon::Arguments,
}

#[derive(Subcommand)]
enum Command {
    /// Runs until it is told to stop; several may run, and one of them leads
    ///
    /// Drains a node when its agent asks for it with the annotation
    /// machineconfiguration.openshift.io/desiredDrain, one node of a pool at a time.
    Run(Run),
}

#[derive(clap::Args)]
struct Run {
    /// The namespace it runs in: its Lease is there
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "evenkeel"
    )]
    namespace: String,
    /// Cares only for nodes with these labels, for example pool=canary
    ///
    /// All others are as if they were not there: they get no answer, and count for no limit.
    #[arg(long, value_name = "SELECTOR")]
    node_selector: Option<String>,
    /// How long a drain may take before the node's reason and an Event name what holds it
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    drain_timeout: String,
    /// What happens then: wait (and go on trying) or proceed (with pods still on the node)
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    drain_on_timeout: String,
}

const PROGRAM: Program = Program {
    name: program::OPERATOR,
    version: env!("CARGO_PKG_VERSION"),
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Operator::parse();
    let Command::Run(command) = &arguments.command;
    match run(&arguments.daemon, command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-operator: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &evenkeel_daemon::Arguments, run: &Run) -> Result<()> {
    let settings = Settings::read(Some(&run.drain_timeout), Some(&run.drain_on_timeout))
        .map_err(evenkeel_daemon::Error::work)?;
    let options = drain::Options {
        nodes: run.node_selector.clone(),
        settings,
    };
    let daemon = Daemon::start(PROGRAM, arguments).await?;
    let metrics = DrainMetrics::shown_in(daemon.metrics());
    let lease = LeaseName {
        namespace: run.namespace.clone(),
        name: PROGRAM.name.to_owned(),
    };
    let leadership = daemon.stand_for(lease, Timing::default());
    daemon
        .run(async |daemon| {
            let work = async || drain::run(daemon, &metrics, &options).await;
            leadership.run_while_leading(work).await;
            Ok(())
        })
        .await
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

//! `evenkeel-operator`: the fleet.
//!
//! Connects the cluster's objects to decisions of `evenkeel-plan` and carries them out through the
//! API server. It decides nothing itself, and never touches the machine it runs on.

mod beside;
mod configs;
mod controllers;
mod drain_metrics;
mod nodes;
mod pods;
mod pool_metrics;
mod pools;
mod readiness_metrics;
mod rules;
mod store;
mod uninstall;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use evenkeel_api::names::program;
use evenkeel_daemon::{Daemon, LeaseName, Program, Result, Timing};
use evenkeel_plan::drain::Settings;
use evenkeel_plan::readiness::Limits;

use crate::controllers::Options;
use crate::drain_metrics::DrainMetrics;
use crate::pool_metrics::PoolMetrics;
use crate::readiness_metrics::ReadinessMetrics;

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
    /// Renders the MachineConfigs of every pool, rolls the result out to its nodes, never
    /// more at once than the pool allows, and drains a node when its agent asks for it with the
    /// annotation machineconfiguration.openshift.io/desiredDrain. Keeps pods away from nodes whose
    /// extensions are not all well, where a readiness rule asks for it.
    Run(Run),
    /// Takes everything of ours off the nodes, and ends; nodes and what runs on them stay
    ///
    /// Stops the operator and the agents first, then takes our taints, cordons and annotations off every
    /// Node, and our admission policies away. A person's cordon stays. May be run again at any time.
    Uninstall(uninstall::Options),
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
    /// Cares only for pools with these labels
    #[arg(long, value_name = "SELECTOR")]
    pool_selector: Option<String>,
    /// Cares only for readiness rules with these labels
    #[arg(long, value_name = "SELECTOR")]
    rule_selector: Option<String>,
    #[command(flatten)]
    limits: LimitArguments,
    /// How long a drain may take before the node's reason and an Event name what holds it
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    drain_timeout: String,
    /// What happens then: wait (and go on trying) or proceed (with pods still on the node)
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    drain_on_timeout: String,
}

/// How careful readiness is when much is wrong at once.
#[derive(clap::Args)]
struct LimitArguments {
    /// Where most of a zone falls silent at once: the time between two nodes that are tainted for it
    #[arg(long = "silence-pause", value_name = "DURATION", default_value = "1s", value_parser = evenkeel_api::duration::parse)]
    silence: Duration,
    /// The time between two nodes of a zone whose pods are evicted because they are not ready
    #[arg(long = "eviction-pause", value_name = "DURATION", default_value = "10s", value_parser = evenkeel_api::duration::parse)]
    eviction: Duration,
    /// The same where most of a zone is not ready; in a zone of 50 nodes or fewer there is none then
    #[arg(long = "slow-eviction-pause", value_name = "DURATION", default_value = "100s", value_parser = evenkeel_api::duration::parse)]
    slow_eviction: Duration,
}

const PROGRAM: Program = Program {
    name: program::OPERATOR,
    version: env!("CARGO_PKG_VERSION"),
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Operator::parse();
    let ended = match &arguments.command {
        Command::Run(command) => run(&arguments.daemon, command).await,
        Command::Uninstall(options) => uninstall::run(PROGRAM, &arguments.daemon, options).await,
    };
    match ended {
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
    let options = Options {
        nodes: run.node_selector.clone(),
        pools: run.pool_selector.clone(),
        rules: run.rule_selector.clone(),
        limits: Limits {
            silence_pause: run.limits.silence,
            eviction_pause: run.limits.eviction,
            slow_eviction_pause: run.limits.slow_eviction,
            ..Limits::default()
        },
        namespace: run.namespace.clone(),
        drain: settings,
    };
    let daemon = Daemon::start(PROGRAM, arguments).await?;
    let drains = DrainMetrics::shown_in(daemon.metrics());
    let pools = PoolMetrics::shown_in(daemon.metrics());
    let readiness = ReadinessMetrics::shown_in(daemon.metrics());
    let lease = LeaseName {
        namespace: run.namespace.clone(),
        name: PROGRAM.name.to_owned(),
    };
    let leadership = daemon.stand_for(lease, Timing::default());
    daemon
        .run(async |daemon| {
            let work = async || {
                Box::pin(controllers::run(
                    daemon, &drains, &pools, &readiness, &options,
                ))
                .await;
            };
            leadership.run_while_leading(work).await;
            Ok(())
        })
        .await
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

//! `evenkeel-operator`: the fleet.
//!
//! Connects the cluster's objects to decisions of `evenkeel-plan` and carries them out through the
//! API server. It decides nothing itself, and never touches the machine it runs on.

mod around;
mod coexistence;
mod coexistence_metrics;
mod conditions;
mod configs;
mod configuring;
mod controllers;
mod drain_metrics;
mod installation;
mod instances;
mod kinds;
mod nodes;
mod operator_condition;
mod payload;
mod permits;
mod pods;
mod pool_metrics;
mod pools;
mod proxy;
mod proxy_metrics;
mod readiness_metrics;
mod rules;
mod service_maps;
mod signing_request;
mod ssh;
mod store;
mod trusted_ca;
mod uninstall;
mod windows;
mod windows_metrics;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use evenkeel_api::names::program;
use evenkeel_api::version::Version;
use evenkeel_daemon::{Daemon, LeaseName, Program, Result, Timing};
use evenkeel_plan::fleet::coexistence::Half;
use evenkeel_plan::fleet::drain::Settings;
use evenkeel_plan::readiness::Limits;
use evenkeel_plan::windows::proxy::Variable;
use evenkeel_plan::windows::upgrade::gate::{self, Kubernetes};

use crate::controllers::instances::InstanceOptions;
use crate::controllers::proxy::Given;
use crate::controllers::{Numbers, Options};

/// Decides which node may change when, and cares for instances.
#[derive(Parser)]
#[command(version = VERSION, arg_required_else_help = true)]
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
    /// extensions are not all well, where a readiness rule asks for it. With a payload, keeps the services
    /// ConfigMap of Windows nodes, and what each of them is told to run.
    Run(Box<Run>),
    /// Takes everything of ours off the nodes, and ends; nodes and what runs on them stay
    ///
    /// Stops the operator and the agents first, then takes our taints, cordons and annotations off every
    /// Node, and our admission policies away. A person's cordon stays. May be run again at any time.
    Uninstall(uninstall::Options),
    /// Makes the folder of files that Windows instances get
    Payload(PayloadArguments),
}

#[derive(clap::Args)]
struct PayloadArguments {
    #[command(subcommand)]
    command: PayloadCommand,
}

#[derive(Subcommand)]
enum PayloadCommand {
    /// Writes the manifest of a payload, with the checksum of every file in it
    ///
    /// The operator uses no payload that is not what was sealed. After any change in the folder, run this
    /// again. `evenkeel check --payload DIR` says whether a payload is what was sealed.
    Seal(Seal),
}

#[derive(clap::Args)]
struct Seal {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The version that instances with this payload run, if not that of this program
    #[arg(long, value_name = "VERSION")]
    payload_version: Option<Version>,
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
    /// The pod it runs in: where no other node can take it, a drain leaves it and its other copies on their node
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pod_name: Option<String>,
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
    /// The sealed folder of files that Windows instances get; without it nothing is done for them
    #[arg(long, value_name = "DIR")]
    payload: Option<PathBuf>,
    /// Reads and writes the WindowsPool of this name
    #[arg(long, value_name = "NAME", default_value = windows::DEFAULT_POOL)]
    windows_pool: String,
    /// Tells OLM whether a newer version may be installed, in the operator condition of this name
    #[arg(long, env = "OPERATOR_CONDITION_NAME", value_name = "NAME")]
    operator_condition: Option<String>,
    /// Upgrades Windows nodes on no cluster that is older than this Kubernetes
    #[arg(long, value_name = "VERSION", default_value_t = gate::MINIMUM, value_parser = kubernetes)]
    minimum_kubernetes: Kubernetes,
    /// Takes over from OpenShift's own operator, once its leader is gone: machine-config, windows, or both
    ///
    /// Without it that half of the work is left to OpenShift's operator wherever that is installed, also while its Lease has
    /// lapsed.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    take_over: Vec<Half>,
    #[command(flatten)]
    instances: InstanceArguments,
    #[command(flatten)]
    proxy: ProxyArguments,
    #[command(flatten)]
    limits: LimitArguments,
    /// How long a drain may take before the node's reason and an Event name what holds it
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    drain_timeout: String,
    /// What happens then: wait (and go on trying) or proceed (with pods still on the node)
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    drain_on_timeout: String,
}

fn kubernetes(text: &str) -> std::result::Result<Kubernetes, String> {
    Kubernetes::read(text).ok_or_else(|| "write for example 1.33".to_owned())
}

/// A duration in which something can be done.
fn some_time(text: &str) -> std::result::Result<Duration, String> {
    let read = evenkeel_api::duration::parse(text)?;
    if read < Duration::from_secs(1) {
        return Err(format!(
            "{text} is not even a second: write for example 30m"
        ));
    }
    Ok(read)
}

/// How instances are cared for.
#[derive(clap::Args)]
struct InstanceArguments {
    /// The user to log in as on Windows Machines
    #[arg(long, value_name = "USER", default_value = "Administrator")]
    machine_user: String,
    /// Cares only for Windows Machines with these labels
    #[arg(long, value_name = "SELECTOR")]
    machine_selector: Option<String>,
    /// How long all work on one instance may take before it is tried anew: what hangs or trickles takes nobody's turn
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = some_time)]
    instance_timeout: Duration,
    /// How long an instance that left the list is looked for, before its Node is deleted all the same
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = evenkeel_api::duration::parse)]
    leave_timeout: Duration,
}

/// The proxy of Windows nodes, where neither the variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` nor the cluster's Proxy
/// name one. There may be passwords in it: give it in the environment.
#[derive(clap::Args)]
struct ProxyArguments {
    /// The proxy of Windows nodes for http, if nobody else names one
    #[arg(
        long = "http-proxy",
        env = "EVENKEEL_HTTP_PROXY",
        hide_env_values = true,
        value_name = "URL"
    )]
    http: Option<String>,
    /// The proxy of Windows nodes for https, if nobody else names one
    #[arg(
        long = "https-proxy",
        env = "EVENKEEL_HTTPS_PROXY",
        hide_env_values = true,
        value_name = "URL"
    )]
    https: Option<String>,
    /// Whom Windows nodes reach without that proxy
    #[arg(
        long = "no-proxy",
        env = "EVENKEEL_NO_PROXY",
        hide_env_values = true,
        value_name = "LIST"
    )]
    except: Option<String>,
}

impl ProxyArguments {
    /// What is said of the proxy, by these and by the environment.
    fn given(&self) -> Given {
        let chart = [
            (Variable::HttpProxy, &self.http),
            (Variable::HttpsProxy, &self.https),
            (Variable::NoProxy, &self.except),
        ];
        let chart = chart.into_iter();
        let environment = Variable::ALL.into_iter().filter_map(|it| {
            let value = std::env::var_os(it.name())?;
            Some((it, value.to_string_lossy().into_owned()))
        });
        Given {
            environment: environment.collect(),
            chart: chart
                .filter_map(|(name, value)| Some((name, value.clone()?)))
                .collect(),
        }
    }
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
    let settings = Settings::read(Some(&run.drain_timeout), Some(&run.drain_on_timeout))
        .map_err(evenkeel_daemon::Error::work)?;
    let options = Options {
        nodes: run.node_selector.clone(),
        pools: run.pool_selector.clone(),
        rules: run.rule_selector.clone(),
        machines: run.instances.machine_selector.clone(),
        limits: Limits {
            silence_pause: run.limits.silence,
            eviction_pause: run.limits.eviction,
            slow_eviction_pause: run.limits.slow_eviction,
            ..Limits::default()
        },
        namespace: run.namespace.clone(),
        pod: run.pod_name.clone().filter(|it| !it.is_empty()),
        drain: settings,
        payload: run.payload.clone(),
        windows_pool: run.windows_pool.clone(),
        operator_condition: run.operator_condition.clone().filter(|it| !it.is_empty()),
        minimum_kubernetes: Some(run.minimum_kubernetes),
        take_over: run.take_over.iter().copied().collect(),
        instances: InstanceOptions {
            machine_user: run.instances.machine_user.clone(),
            work_within: run.instances.instance_timeout,
            leave_within: run.instances.leave_timeout,
        },
        proxy: run.proxy.given(),
    };
    let daemon = Daemon::start(PROGRAM, arguments).await?;
    let numbers = Numbers::shown_in(daemon.metrics());
    let lease = LeaseName {
        namespace: run.namespace.clone(),
        name: PROGRAM.name.to_owned(),
    };
    let leadership = daemon.stand_for(lease, Timing::default());
    daemon
        .run(async |daemon| {
            let work = async |term| {
                Box::pin(controllers::run(daemon, &numbers, &options, term)).await;
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

//! What the operator's command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use evenkeel_api::version::Version;
use evenkeel_daemon::Result;
use evenkeel_plan::fleet::coexistence::Half;
use evenkeel_plan::fleet::drain::DrainSettings;
use evenkeel_plan::readiness::Limits;
use evenkeel_plan::windows::proxy::Variable;
use evenkeel_plan::windows::upgrade::gate::{self, Kubernetes};

use crate::VERSION;
use crate::controllers::Options;
use crate::fleet::uninstall;
use crate::windows::instances::controller::InstanceOptions;
use crate::windows::pool;
use crate::windows::proxy::Given;

/// Decides which node may change when, and cares for instances.
#[derive(Parser)]
#[command(version = VERSION, arg_required_else_help = true)]
pub(crate) struct Operator {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) daemon: evenkeel_daemon::Arguments,
}

#[derive(Subcommand)]
pub(crate) enum Command {
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
pub(crate) struct PayloadArguments {
    #[command(subcommand)]
    pub(crate) command: PayloadCommand,
}

#[derive(Subcommand)]
pub(crate) enum PayloadCommand {
    /// Writes the manifest of a payload, with the checksum of every file in it
    ///
    /// The operator uses no payload that is not what was sealed. After any change in the folder, run this
    /// again. `evenkeel check --payload DIR` says whether a payload is what was sealed.
    Seal(Seal),
}

#[derive(clap::Args)]
pub(crate) struct Seal {
    /// The folder
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// The version that instances with this payload run, if not that of this program
    #[arg(long, value_name = "VERSION")]
    pub(crate) payload_version: Option<Version>,
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// The namespace it runs in: its Lease is there
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "evenkeel"
    )]
    pub(crate) namespace: String,
    /// The pod it runs in: where no other node can take it, a drain leaves it and its other copies on their node
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,
    /// Cares only for nodes with these labels, for example pool=canary
    ///
    /// All others are as if they were not there: they get no answer, and count for no limit.
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) node_selector: Option<String>,
    /// Cares only for pools with these labels
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) pool_selector: Option<String>,
    /// Cares only for readiness rules with these labels
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) rule_selector: Option<String>,
    /// The sealed folder of files that Windows instances get; without it nothing is done for them
    #[arg(long, value_name = "DIR")]
    pub(crate) payload: Option<PathBuf>,
    /// Reads and writes the WindowsPool of this name
    #[arg(long, value_name = "NAME", default_value = pool::DEFAULT_POOL)]
    pub(crate) windows_pool: String,
    /// Tells OLM whether a newer version may be installed, in the operator condition of this name
    #[arg(long, env = "OPERATOR_CONDITION_NAME", value_name = "NAME")]
    pub(crate) operator_condition: Option<String>,
    /// Upgrades Windows nodes on no cluster that is older than this Kubernetes
    #[arg(long, value_name = "VERSION", default_value_t = gate::MINIMUM, value_parser = kubernetes)]
    pub(crate) minimum_kubernetes: Kubernetes,
    /// Takes over from OpenShift's own operator, once its leader is gone: machine-config, windows, or both
    ///
    /// Without it that half of the work is left to OpenShift's operator wherever that is installed, also while its Lease has
    /// lapsed.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) take_over: Vec<Half>,
    #[command(flatten)]
    pub(crate) instances: InstanceArguments,
    #[command(flatten)]
    pub(crate) proxy: ProxyArguments,
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    /// How long a drain may take before the node's reason and an Event name what holds it
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub(crate) drain_timeout: String,
    /// What happens then: wait (and go on trying) or proceed (with pods still on the node)
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    pub(crate) drain_on_timeout: String,
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
pub(crate) struct InstanceArguments {
    /// The user to log in as on Windows Machines
    #[arg(long, value_name = "USER", default_value = "Administrator")]
    pub(crate) machine_user: String,
    /// Cares only for Windows Machines with these labels
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) machine_selector: Option<String>,
    /// How long all work on one instance may take before it is tried anew: what hangs or trickles takes nobody's turn
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = some_time)]
    pub(crate) instance_timeout: Duration,
    /// How long an instance that left the list is looked for, before its Node is deleted all the same
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = evenkeel_api::duration::parse)]
    pub(crate) leave_timeout: Duration,
}

/// The proxy of Windows nodes, where neither the variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` nor the cluster's Proxy
/// name one. There may be passwords in it: give it in the environment.
#[derive(clap::Args)]
pub(crate) struct ProxyArguments {
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
    pub(crate) except: Option<String>,
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
pub(crate) struct LimitArguments {
    /// Where most of a zone falls silent at once: the time between two nodes that are tainted for it
    #[arg(long = "silence-pause", value_name = "DURATION", default_value = "1s", value_parser = evenkeel_api::duration::parse)]
    pub(crate) silence: Duration,
    /// The time between two nodes of a zone whose pods are evicted because they are not ready
    #[arg(long = "eviction-pause", value_name = "DURATION", default_value = "10s", value_parser = evenkeel_api::duration::parse)]
    pub(crate) eviction: Duration,
    /// The same where most of a zone is not ready; in a zone of 50 nodes or fewer there is none then
    #[arg(long = "slow-eviction-pause", value_name = "DURATION", default_value = "100s", value_parser = evenkeel_api::duration::parse)]
    pub(crate) slow_eviction: Duration,
}

impl Run {
    /// What all of it comes to.
    pub(crate) fn options(&self) -> Result<Options> {
        let settings = DrainSettings::read(Some(&self.drain_timeout), Some(&self.drain_on_timeout))
            .map_err(evenkeel_daemon::Error::work)?;
        Ok(Options {
            nodes: self.node_selector.clone(),
            pools: self.pool_selector.clone(),
            rules: self.rule_selector.clone(),
            machines: self.instances.machine_selector.clone(),
            limits: Limits {
                silence_pause: self.limits.silence,
                eviction_pause: self.limits.eviction,
                slow_eviction_pause: self.limits.slow_eviction,
                ..Limits::default()
            },
            namespace: self.namespace.clone(),
            pod: self.pod_name.clone().filter(|it| !it.is_empty()),
            drain: settings,
            payload: self.payload.clone(),
            windows_pool: self.windows_pool.clone(),
            operator_condition: self.operator_condition.clone().filter(|it| !it.is_empty()),
            minimum_kubernetes: Some(self.minimum_kubernetes),
            take_over: self.take_over.iter().copied().collect(),
            instances: InstanceOptions {
                machine_user: self.instances.machine_user.clone(),
                work_within: self.instances.instance_timeout,
                leave_within: self.instances.leave_timeout,
            },
            proxy: self.proxy.given(),
        })
    }
}

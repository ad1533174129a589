//! What the operator's command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use evenkeel_api::windows::version::Version;
use evenkeel_daemon::Result;
use evenkeel_plan::fleet::coexistence::Half;
use evenkeel_plan::fleet::drain::DrainSettings;
use evenkeel_plan::readiness::Limits;
use evenkeel_plan::windows::proxy::Variable;
use evenkeel_plan::windows::upgrade::gate::{self, Kubernetes};

use crate::VERSION;
use crate::fleet::uninstall;
use crate::windows::pool;
use crate::windows::proxy::GivenProxy;

/// The Evenkeel operator: rolls out node configurations, drains nodes and manages Windows instances.
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
    /// Run the operator; of several that run, one leads
    ///
    /// Renders the MachineConfigs of every pool and rolls the result out to its nodes, within the
    /// maxUnavailable of the pool. Drains a node when its agent asks for it with the annotation
    /// machineconfiguration.openshift.io/desiredDrain. Taints nodes whose extensions are not all healthy,
    /// where a readiness rule selects them. With a payload, manages the services ConfigMap and the
    /// desired version of Windows nodes.
    Run(Box<Run>),
    /// Remove Evenkeel from the nodes; nodes and their pods keep running
    ///
    /// Stops the operator and the agents, then removes the taints, cordons and annotations of Evenkeel from
    /// every Node, and its admission policies. The cordon of a person stays. Can be run again at any time.
    Uninstall(uninstall::Options),
    /// Prepare the payload: the folder of files for Windows instances
    Payload(PayloadArguments),
}

#[derive(clap::Args)]
pub(crate) struct PayloadArguments {
    #[command(subcommand)]
    pub(crate) command: PayloadCommand,
}

#[derive(Subcommand)]
pub(crate) enum PayloadCommand {
    /// Write the manifest of a payload, with the checksum of every file
    ///
    /// The operator refuses a payload that differs from its manifest. Run this again after every change in
    /// the folder. `evenkeel check --payload DIR` checks a payload against its manifest.
    Seal(Seal),
}

#[derive(clap::Args)]
pub(crate) struct Seal {
    /// Folder of the payload
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Version that instances with this payload run, if not the version of this program
    #[arg(long, value_name = "VERSION")]
    pub(crate) payload_version: Option<Version>,
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// Namespace of the operator and its Lease
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "evenkeel"
    )]
    pub(crate) namespace: String,
    /// Pod of the operator: a drain leaves the operator's pods on their node where no other node can take them
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,
    /// Manage only nodes with these labels, for example pool=canary
    ///
    /// The operator ignores all other nodes: it answers no request of theirs, and they count for no limit.
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) node_selector: Option<String>,
    /// Manage only pools with these labels
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) pool_selector: Option<String>,
    /// Apply only readiness rules with these labels
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) rule_selector: Option<String>,
    /// Also follow the readiness rules of node-readiness-controller, where its kind is installed and it does not run itself
    ///
    /// While somebody holds the Lease of its leader, its rules are left to it.
    #[arg(long)]
    pub(crate) nrc_rules: bool,
    /// Folder of the sealed payload for Windows instances; without it the operator manages no Windows nodes
    #[arg(long, value_name = "DIR")]
    pub(crate) payload: Option<PathBuf>,
    /// Name of the WindowsPool
    #[arg(long, value_name = "NAME", default_value = pool::DEFAULT_POOL)]
    pub(crate) windows_pool: String,
    /// Name of the operator condition that tells OLM whether a newer version may be installed
    #[arg(long, env = "OPERATOR_CONDITION_NAME", value_name = "NAME")]
    pub(crate) operator_condition: Option<String>,
    /// Oldest version of Kubernetes on which Windows nodes are upgraded
    #[arg(long, value_name = "VERSION", default_value_t = gate::MINIMUM, value_parser = kubernetes)]
    pub(crate) minimum_kubernetes: Kubernetes,
    /// Take over from an operator of OpenShift once its leader is gone: machine-config, windows, or both
    ///
    /// Without it Evenkeel leaves that half of the work to OpenShift's operator wherever that is installed, also while its
    /// Lease has expired.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) take_over: Vec<Half>,
    #[command(flatten)]
    pub(crate) instances: InstanceArguments,
    #[command(flatten)]
    pub(crate) proxy: ProxyArguments,
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    /// Time after which the node's reason and an Event name the pods that block a drain
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub(crate) drain_timeout: String,
    /// What to do after that time: wait (keep trying) or proceed (with pods still on the node)
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    pub(crate) drain_on_timeout: String,
    /// Time after which a drain no longer waits for terminating pods on a node that is not ready; 0s: never
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) drain_skip_wait_for_delete: String,
}

fn kubernetes(text: &str) -> std::result::Result<Kubernetes, String> {
    Kubernetes::read(text).ok_or_else(|| "write for example 1.33".to_owned())
}

/// A duration in which something can be done.
fn some_time(text: &str) -> std::result::Result<Duration, String> {
    let read = evenkeel_api::duration::parse(text)?;
    if read < Duration::from_secs(1) {
        return Err(format!(
            "{text} is shorter than a second: write for example 30m"
        ));
    }
    Ok(read)
}

/// How instances are managed.
#[derive(clap::Args)]
pub(crate) struct InstanceArguments {
    /// User for SSH logins on Windows Machines
    #[arg(long, value_name = "USER", default_value = "Administrator")]
    pub(crate) machine_user: String,
    /// Manage only Windows Machines with these labels
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) machine_selector: Option<String>,
    /// Time limit for one attempt to work on an instance; after it the operator tries again later
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = some_time)]
    pub(crate) instance_timeout: Duration,
    /// Time to try to reach a removed instance before its Node is deleted without cleanup
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = evenkeel_api::duration::parse)]
    pub(crate) leave_timeout: Duration,
}

/// The proxy of Windows nodes, where neither the variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` nor the cluster's Proxy
/// name one. There may be passwords in it: give it in the environment.
#[derive(clap::Args)]
pub(crate) struct ProxyArguments {
    /// Proxy of Windows nodes for http, if neither the environment nor the cluster's Proxy names one
    #[arg(
        long = "http-proxy",
        env = "EVENKEEL_HTTP_PROXY",
        hide_env_values = true,
        value_name = "URL"
    )]
    http: Option<String>,
    /// Proxy of Windows nodes for https, if neither the environment nor the cluster's Proxy names one
    #[arg(
        long = "https-proxy",
        env = "EVENKEEL_HTTPS_PROXY",
        hide_env_values = true,
        value_name = "URL"
    )]
    https: Option<String>,
    /// Hosts that Windows nodes reach without that proxy
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
    pub(crate) fn given(&self) -> GivenProxy {
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
        GivenProxy {
            environment: environment.collect(),
            chart: chart
                .filter_map(|(name, value)| Some((name, value.clone()?)))
                .collect(),
        }
    }
}

/// Limits of readiness when many nodes fail at once.
#[derive(clap::Args)]
pub(crate) struct LimitArguments {
    /// Time between two taints for silence in a zone where most nodes fall silent at once
    #[arg(long = "silence-pause", value_name = "DURATION", default_value = "1s", value_parser = evenkeel_api::duration::parse)]
    pub(crate) silence: Duration,
    /// Time between evictions from two nodes of a zone that are not ready
    #[arg(long = "eviction-pause", value_name = "DURATION", default_value = "10s", value_parser = evenkeel_api::duration::parse)]
    pub(crate) eviction: Duration,
    /// The same in a zone where most nodes are not ready; a zone of 50 nodes or fewer has no evictions then
    #[arg(long = "slow-eviction-pause", value_name = "DURATION", default_value = "100s", value_parser = evenkeel_api::duration::parse)]
    pub(crate) slow_eviction: Duration,
}

impl LimitArguments {
    /// How careful readiness is when much is wrong at once.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            silence_pause: self.silence,
            eviction_pause: self.eviction,
            slow_eviction_pause: self.slow_eviction,
            ..Limits::default()
        }
    }
}

impl Run {
    /// How long a drain may take, and what then, where the pool does not say.
    pub(crate) fn drain_settings(&self) -> Result<DrainSettings> {
        DrainSettings::read(
            Some(&self.drain_timeout),
            Some(&self.drain_on_timeout),
            Some(&self.drain_skip_wait_for_delete),
        )
        .map_err(evenkeel_daemon::Error::work)
    }

    /// Whether every node of a pool that we care for is one that we care for.
    pub(crate) fn sees_all_nodes(&self) -> bool {
        self.node_selector.is_none() || self.pool_selector.is_some()
    }
}

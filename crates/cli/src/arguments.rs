//! What people type.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use evenkeel_plan::machine::disruption::Disruption;

/// Keep machines in their declared state, and see what a change would do before you make it.
///
/// Exit codes: 0 nothing to do, 1 error, 2 changes, drift or findings.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what would change on a machine or in a pool, and what that disrupts. Changes nothing.
    Plan(PlanArguments),
    /// Bring the machine to a configuration. If a step fails, all changes are rolled back.
    Apply(ApplyArguments),
    /// Say what a machine was provisioned from, before its first configuration. Touches nothing on it.
    ///
    /// Disks, file systems, users, groups, fips, the kernel type and extensions cannot change on a running machine. A first
    /// configuration that has any of them is refused, unless the machine was provisioned with the same: then it is
    /// adopted. A node of OpenShift says itself what that was, and the agent adopts it without this command. For any other
    /// machine (Ignition, cloud-init, an installer) give the configuration that says it, as an Ignition config or a
    /// `MachineConfig`; its files and units are not read.
    ///
    /// Run it again to correct it; after the first configuration it is refused.
    ///
    /// Exit codes: 0 done, 1 error, 2 with --dry-run: it would be adopted.
    #[command(
        after_help = "Examples:\n  sudo evenkeel adopt -f provision.ign\n  kubectl get machineconfig rendered-worker-1 -o yaml | sudo evenkeel adopt -f -"
    )]
    Adopt(AdoptArguments),
    /// List every difference between the machine and a configuration.
    Verify(VerifyArguments),
    /// Report drift as it happens, or repair it (--heal). Stop with Ctrl-C.
    Watch(WatchArguments),
    /// Merge configurations into one rendered `MachineConfig`.
    Render(RenderArguments),
    /// Validate any file that Evenkeel reads.
    ///
    /// Exit codes: 0 valid, 1 unreadable, 2 invalid.
    Check(CheckArguments),
    /// Show the progress of every pool, and what each node waits for.
    ///
    /// Exit codes: 0 everything is up to date and healthy, 1 error, 2 something is not.
    Status(StatusArguments),
    /// Explain the state of a node and what happens next, with the evidence for each extension.
    ///
    /// A node that is not ready is watched until the cause is clear, at most for the longest expiry of its Leases.
    ///
    /// Exit codes: 0 the node takes pods, 1 error, 2 the node takes no pods.
    Explain(ExplainArguments),
    /// Try out readiness rules before you create them.
    Readiness(ReadinessArguments),
    /// Watch, pause or resume the rollout of a pool.
    Rollout(RolloutArguments),
    /// Pause or resume upgrades of Windows nodes. `evenkeel status` shows their progress.
    Upgrade(UpgradeArguments),
    /// Manage Windows instances. `evenkeel status instances` lists them.
    Instances(InstancesArguments),
    /// Collect objects, Events, logs and the journal in one file, without secrets.
    ///
    /// Exit codes: 0 the bundle is complete, 1 error, 2 parts are missing (about.json in the bundle lists them).
    SupportBundle(BundleArguments),
    /// Run a one-minute demo on a temporary directory tree. Needs no root.
    Demo,
    /// Print a completion script for a shell.
    Completions {
        /// Shell to print the script for.
        shell: clap_complete::Shell,
    },
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Output formats of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum PlanFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
    /// A comment on a pull request.
    Markdown,
}

impl PlanFormat {
    /// The same as other commands have; none for a comment.
    pub(crate) fn plain(self) -> Option<Format> {
        match self {
            Self::Text => Some(Format::Text),
            Self::Json => Some(Format::Json),
            Self::Yaml => Some(Format::Yaml),
            Self::Markdown => None,
        }
    }
}

/// Reads a disruption by the word that plans say.
fn disruption() -> impl TypedValueParser<Value = Disruption> {
    let words = Disruption::ALL.map(Disruption::as_str);
    PossibleValuesParser::new(words).map(|word| {
        let mut all = Disruption::ALL.into_iter();
        // Only their words pass.
        all.find(|it| it.as_str() == word).unwrap_or_default()
    })
}

/// The cluster to use, and the login.
#[derive(Debug, Args)]
pub(crate) struct ClusterArguments {
    /// Path of the kubeconfig. Default: the variable KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) context: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Show the progress of Windows instances instead of pools and nodes.
    #[arg(value_enum)]
    pub(crate) of: Option<StatusOf>,
    /// Namespace that Evenkeel is installed in.
    #[arg(long, short = 'n', value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StatusOf {
    /// Windows instances.
    Instances,
}

#[derive(Debug, Args)]
pub(crate) struct InstancesArguments {
    #[command(subcommand)]
    pub(crate) command: InstancesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InstancesCommand {
    /// Trust the next host key of an instance, for example after you recreated its machine.
    ///
    /// The operator pins the first host key of an instance and refuses any other. This command removes the pinned key.
    Trust {
        /// Address of the instance, as `evenkeel status instances` shows it.
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// Namespace that Evenkeel is installed in.
        #[arg(long, short = 'n', value_name = "NAME", default_value = "evenkeel")]
        namespace: String,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// Name of the node.
    pub(crate) node: String,
    /// How long to watch evidence for renewals; 0s checks once.
    #[arg(long, value_name = "DURATION", value_parser = evenkeel_api::duration::parse)]
    pub(crate) wait: Option<std::time::Duration>,
    /// Namespace that Evenkeel is installed in; the services ConfigMap of a Windows node is there.
    #[arg(long, short = 'n', value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ReadinessArguments {
    #[command(subcommand)]
    pub(crate) command: ReadinessCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReadinessCommand {
    /// List the nodes that a rule would taint now, and why. Writes nothing.
    ///
    /// The rule is read from a file and does not have to exist in the cluster. Leases are watched for the longest of their
    /// expiries. Agents run probes only for rules that exist in the cluster: here a probe counts as healthy, and the output
    /// names it.
    ///
    /// Exit codes: 0 the rule would taint no node, 1 error, 2 it would taint nodes.
    #[command(
        after_help = "Example:\n  evenkeel readiness dry-run -f examples/readiness-rule.yaml"
    )]
    DryRun {
        /// File or directory with the rule, or - for standard input.
        #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// How long to watch evidence for renewals; 0s checks once.
        #[arg(long, value_name = "DURATION", value_parser = evenkeel_api::duration::parse)]
        wait: Option<std::time::Duration>,
        #[command(flatten)]
        cluster: ClusterArguments,
        #[command(flatten)]
        output: Output,
    },
    /// Turn rules of node-readiness-controller into rules of Evenkeel, and say what differs.
    ///
    /// Prints the rules as YAML, or as JSON with -o json, and what differs on standard error. Reads no cluster and writes nothing.
    #[command(
        after_help = "Example:\n  kubectl get nodereadinessrules.readiness.node.x-k8s.io -o yaml | evenkeel readiness import -f - > rules.yaml"
    )]
    Import {
        /// File or directory with the rules, or - for standard input.
        #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RolloutArguments {
    #[command(subcommand)]
    pub(crate) command: RolloutCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Watch a rollout until the pool is updated or the rollout stops.
    ///
    /// Ctrl-C ends the watch, not the rollout.
    ///
    /// Exit codes: 0 all nodes are updated, 1 error, 2 the rollout stopped or you pressed Ctrl-C.
    Watch {
        /// Name of the pool.
        pool: String,
        #[command(flatten)]
        cluster: ClusterArguments,
        #[command(flatten)]
        output: Output,
    },
    /// Pause a pool: no further node starts to update. Nodes that already started finish.
    Pause {
        /// Name of the pool.
        pool: String,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Resume a paused pool.
    Resume {
        /// Name of the pool.
        pool: String,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// List the next maintenance windows of a pool, and whether its nodes may start now.
    ///
    /// Exit codes: 0 the pool's `RolloutPolicy` is valid, or it names none, 1 error, 2 something is wrong with it.
    Windows {
        /// Name of the pool; windows for the Windows nodes.
        pool: String,
        #[command(flatten)]
        cluster: ClusterArguments,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArguments {
    #[command(subcommand)]
    pub(crate) command: UpgradeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeCommand {
    /// Pause Windows nodes: no further node is upgraded or removed. Nodes that already started finish.
    Pause {
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Resume paused Windows nodes.
    Resume {
        #[command(flatten)]
        cluster: ClusterArguments,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BundleArguments {
    /// File to write. Default: evenkeel-support-TIME.tar.gz in the current directory.
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// Namespace that Evenkeel is installed in.
    #[arg(long, short = 'n', value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    /// Take the journal from the directory tree in DIR instead of this machine.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigurationArguments {
    /// Configuration: a `MachineConfig` or Ignition config in YAML or JSON, a directory of them, or
    /// `-` for standard input. Several are merged in the order of their names.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RootArguments {
    /// Work on the directory tree in DIR instead of this machine. No service is reloaded or restarted.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Output format.
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    pub(crate) configuration: ConfigurationArguments,
    /// Compare with this configuration instead of a machine: two machine configurations, or two
    /// services `ConfigMaps`.
    #[arg(long, value_name = "OLD", conflicts_with = "root")]
    pub(crate) from: Vec<PathBuf>,
    /// Show what new or changed `MachineConfigs` would do to this pool of the cluster: which nodes, which
    /// disruption, in which order.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["root", "from"])]
    pub(crate) pool: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) tree: RootArguments,
    /// Fail (exit code 1) if the change disrupts the machine, or any node of the pool, more than this. The plan is
    /// printed all the same.
    #[arg(long, value_name = "DISRUPTION", value_parser = disruption())]
    pub(crate) max_disruption: Option<Disruption>,
    /// Output format.
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub(crate) format: PlanFormat,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArguments {
    #[command(flatten)]
    pub(crate) configuration: ConfigurationArguments,
    #[command(flatten)]
    pub(crate) tree: RootArguments,
    /// Show the plan and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Reboot this machine at the end if the plan needs it. Without this flag, the output asks you to reboot.
    #[arg(long, conflicts_with_all = ["root", "dry_run"])]
    pub(crate) reboot: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct AdoptArguments {
    /// Configuration that the machine was provisioned from: an Ignition config or a `MachineConfig` in YAML or JSON, or `-`
    /// for standard input. Default: what the machine keeps of it, on a node of OpenShift.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tree: RootArguments,
    /// Show what would be adopted, and remember nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    #[command(flatten)]
    pub(crate) configuration: ConfigurationArguments,
    #[command(flatten)]
    pub(crate) tree: RootArguments,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    pub(crate) configuration: ConfigurationArguments,
    #[command(flatten)]
    pub(crate) tree: RootArguments,
    /// Repair drift at once instead of only reporting it.
    #[arg(long)]
    pub(crate) heal: bool,
    /// Output format. JSON is one document per line.
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct RenderArguments {
    #[command(flatten)]
    pub(crate) configuration: ConfigurationArguments,
    /// Name of the pool that the configuration is for.
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: String,
    /// Output format. Text is YAML.
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Files or directories to validate, or `-` for standard input.
    #[arg(required_unless_present = "payload", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Also validate the payload of Windows instances in DIR: every file must be the one that was sealed.
    #[arg(long, value_name = "DIR")]
    pub(crate) payload: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

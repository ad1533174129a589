//! What people type.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Keeps a machine in its declared state, and shows what a change would do before it is made.
///
/// Exit codes: 0 nothing to do, 2 there are changes (or drift, or findings), 1 it failed.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows what would change, as diffs, and what that disrupts. Touches nothing.
    Plan(PlanArguments),
    /// Brings the machine to a configuration, journaled: it ends there, or where it was.
    Apply(ApplyArguments),
    /// Lists every difference between the machine and a configuration.
    Verify(VerifyArguments),
    /// Reports drift as it happens, or repairs it. Ends with Ctrl-C.
    Watch(WatchArguments),
    /// Merges configurations into the one rendered `MachineConfig` they stand for.
    Render(RenderArguments),
    /// Validates any file that Evenkeel reads: 0 valid, 2 invalid, 1 unreadable.
    Check(CheckArguments),
    /// Shows every pool with its progress, and every node with what it waits for.
    ///
    /// Exit codes: 0 all nodes are as they should be, 2 some are not, 1 it failed.
    Status(StatusArguments),
    /// Says why a node is as it is, and what happens next: every extension with what tells of it.
    ///
    /// A node that is not ready is looked at until it is clear what it waits for, at most for the longest expiry of
    /// its Leases. Exit codes: 0 pods may come to it, 2 they may not, 1 it failed.
    Explain(ExplainArguments),
    /// Tries readiness rules out before they are made.
    Readiness(ReadinessArguments),
    /// Looks on at the roll-out of a pool, pauses it, or lets it go on.
    Rollout(RolloutArguments),
    /// Pauses upgrades of Windows nodes, or lets them go on; `evenkeel status` shows how far they are.
    Upgrade(UpgradeArguments),
    /// Cares for Windows instances; `evenkeel status instances` shows them.
    Instances(InstancesArguments),
    /// Collects objects, Events, logs and the journal into one file, without secrets.
    ///
    /// Exit codes: 0 all of it is there, 2 some is missing (the file says what), 1 it failed.
    SupportBundle(BundleArguments),
    /// Shows all of it in one minute on a scratch tree; needs no root.
    Demo,
    /// Prints a completion script for a shell.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Which cluster, and as whom.
#[derive(Debug, Args)]
pub(crate) struct ClusterArguments {
    /// How to reach the cluster; without it the file of the variable KUBECONFIG, or ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Another context of the kubeconfig than the current one.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) context: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Shows Windows instances instead of pools and nodes, each with how far it is.
    #[arg(value_enum)]
    pub(crate) of: Option<StatusOf>,
    /// The namespace that Evenkeel is installed in, where instances are listed.
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
    /// Trusts whichever host key an instance shows next: for a machine that was made anew.
    ///
    /// The operator pins the host key that an instance shows the first time, and refuses another one later.
    Trust {
        /// The instance, as it is listed.
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// The namespace that Evenkeel is installed in.
        #[arg(long, short = 'n', value_name = "NAME", default_value = "evenkeel")]
        namespace: String,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// The node.
    pub(crate) node: String,
    /// How long to look for what is not renewed any more; 0s looks once.
    #[arg(long, value_name = "DURATION", value_parser = evenkeel_api::duration::parse)]
    pub(crate) wait: Option<std::time::Duration>,
    /// The namespace that Evenkeel is installed in, where a Windows node's services are.
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
    /// Lists which nodes of the cluster a rule would taint now, and why. Writes nothing.
    ///
    /// The rule is read from a file, and need not be in the cluster. Leases are looked at for as long as the longest of them
    /// may go without a renewal. A probe cannot be tried before the rule is there: it counts as well, and is named.
    ///
    /// Exit codes: 0 it would taint nobody, 2 it would, 1 it failed.
    #[command(
        after_help = "Example:\n  evenkeel readiness dry-run -f examples/readiness-rule.yaml"
    )]
    DryRun {
        /// The rule: a file, a folder, or - for standard input.
        #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// How long to look for what is not renewed any more; 0s looks once.
        #[arg(long, value_name = "DURATION", value_parser = evenkeel_api::duration::parse)]
        wait: Option<std::time::Duration>,
        #[command(flatten)]
        cluster: ClusterArguments,
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
    /// Looks on until all nodes are updated (0), or the roll-out has stopped (2). Ctrl-C ends it.
    Watch {
        /// The pool.
        pool: String,
        #[command(flatten)]
        cluster: ClusterArguments,
        #[command(flatten)]
        output: Output,
    },
    /// Lets no other node begin; those on their way arrive.
    Pause {
        /// The pool.
        pool: String,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Lets a paused pool go on.
    Resume {
        /// The pool.
        pool: String,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArguments {
    #[command(subcommand)]
    pub(crate) command: UpgradeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeCommand {
    /// Lets no other Windows node begin; those on their way arrive.
    Pause {
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Lets them go on.
    Resume {
        #[command(flatten)]
        cluster: ClusterArguments,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BundleArguments {
    /// The file to write; without it evenkeel-support-TIME.tar.gz in this folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// The namespace that Evenkeel is installed in.
    #[arg(long, short = 'n', value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    /// Takes the journal of the tree in this folder instead of this machine's.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
}

#[derive(Debug, Args)]
pub(crate) struct Configuration {
    /// The configuration: `MachineConfigs` or Ignition configs in YAML or JSON, a folder of them, or
    /// `-` for standard input. Several are merged in the order of their names.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Works on the tree in this folder instead of this machine; its services are not told anything.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Output {
    /// How to print the result.
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
    pub(crate) configuration: Configuration,
    /// Compares with another configuration instead of a machine: two machine configurations, or two
    /// services `ConfigMaps`.
    #[arg(long, value_name = "OLD", conflicts_with = "root")]
    pub(crate) from: Vec<PathBuf>,
    /// Shows what new or changed `MachineConfigs` would do to this pool of a cluster: which nodes, which
    /// disruption, in which order.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["root", "from"])]
    pub(crate) pool: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArguments {
    #[command(flatten)]
    pub(crate) configuration: Configuration,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Shows the plan and touches nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Reboots this machine at the end if the plan needs it; otherwise it only asks for it.
    #[arg(long, conflicts_with_all = ["root", "dry_run"])]
    pub(crate) reboot: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    #[command(flatten)]
    pub(crate) configuration: Configuration,
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    pub(crate) configuration: Configuration,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Puts back what drifts.
    #[arg(long)]
    pub(crate) heal: bool,
    /// How to print what happens; JSON is one document a line.
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
    pub(crate) configuration: Configuration,
    /// The pool that the configuration is for.
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: String,
    /// How to print it; text is YAML.
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
    /// The files, folders, or `-` for standard input.
    #[arg(required_unless_present = "payload", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Also a payload of Windows instances: whether every file in the folder is the one that was sealed.
    #[arg(long, value_name = "DIR")]
    pub(crate) payload: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

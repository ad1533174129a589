//! What the agent's command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Keeps one node in its declared state.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) daemon: evenkeel_daemon::Arguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Brings this node to the configuration that its Node names, and keeps it there
    ///
    /// Reads the annotation desiredConfig of the Node, if evenkeel.dev/desired-config vouches for it, and the
    /// MachineConfig of that name; writes currentConfig, state and reason back. Reports drift within a second, or repairs it where the
    /// annotation evenkeel.dev/drift says "heal". Reboots the machine when a change needs it, after
    /// the operator has moved its pods. Runs until it is stopped.
    Controller(ControllerArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ControllerArguments {
    /// The Node that this machine is in the cluster
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: String,
    /// Where the machine's root is: in a container, where it is mounted
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Register the kubelet's plugins as extensions that this node must have
    ///
    /// For every socket in the folder where the kubelet looks for its plugins, the annotation
    /// evenkeel.dev/system-extensions of the Node has an entry that probes it; it goes with its socket.
    /// Entries of others stay as they are.
    #[arg(long)]
    pub(crate) register_kubelet_plugins: bool,
    /// How long one thing may take before /healthz says that the agent is stuck: at least 10s
    ///
    /// Everything it waits for has a shorter limit of its own, also the slowest pull of an image.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = stuck_after)]
    pub(crate) stuck_after: Duration,
}

fn stuck_after(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(10);
    match evenkeel_api::duration::parse(text)? {
        short if short < LEAST => Err(format!("{text} is too short: write at least 10s")),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn a_node_needs_a_name_and_its_root_is_the_machines_own() {
        CommandLine::command().debug_assert();
        let line = CommandLine::parse_from(["agent", "controller", "--node-name", "n1"]);
        let Command::Controller(controller) = line.command;
        assert_eq!(controller.node_name, "n1");
        assert_eq!(controller.root, PathBuf::from("/"));
        assert_eq!(controller.stuck_after, Duration::from_hours(1));
        for wrong in ["", "9s", "soon"] {
            let line = ["agent", "controller", "--node-name", "n1", "--stuck-after"];
            let refused = CommandLine::try_parse_from(line.into_iter().chain([wrong]));
            assert!(refused.is_err(), "{wrong:?}");
        }
    }
}

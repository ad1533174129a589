//! What the agent's command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::worker::stuck_after;

/// Keep one node in its declared state
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
    /// Bring this node to the configuration that its Node names, and keep it there
    ///
    /// Reads the annotation desiredConfig of the Node, if evenkeel.dev/desired-config vouches for it, and the
    /// MachineConfig of that name. Writes the annotations currentConfig, state and reason. Reports drift within a second, or
    /// heals it where the annotation evenkeel.dev/drift says "heal". Reboots the machine when a change needs it, after
    /// the operator has drained the node. Runs until it is stopped.
    Controller(ControllerArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ControllerArguments {
    /// Name of the Node of this machine
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: String,
    /// Root folder of the machine; in a container, the folder where it is mounted
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Register the kubelet's plugins as extensions that this node must have
    ///
    /// Adds an entry to the annotation evenkeel.dev/system-extensions of the Node for every socket in the
    /// kubelet's plugin folder, with a probe of that socket, and removes it when the socket is gone. Other entries
    /// are left alone.
    #[arg(long)]
    pub(crate) register_kubelet_plugins: bool,
    /// How long one operation may take before /healthz reports that the agent is stuck: at least 10s
    ///
    /// Every operation has a shorter limit of its own, even the slowest image pull.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = stuck_after)]
    pub(crate) stuck_after: Duration,
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

//! What the agent's command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use evenkeel_plan::readiness::{KubeletSettings, folder_setting, unit_setting};

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
    #[command(flatten)]
    pub(crate) kubelet: KubeletArguments,
    /// Program that exec probes of readiness rules may run, by its whole path; may be repeated
    ///
    /// Without it none is run. Whoever may write rules, or the annotation evenkeel.dev/system-extensions of this Node, chooses the
    /// arguments, and the program runs as root: allow only programs that do no harm with any arguments.
    #[arg(long, value_name = "PATH", value_parser = program)]
    pub(crate) allow_exec_probe: Vec<String>,
    /// Stage OS images although another program drives the updates of this machine, such as Zincati
    ///
    /// Without it a configuration with another OS image is refused while that program runs. With it both may stage images, and
    /// the last one wins: stop the other one's updates first.
    #[arg(long)]
    pub(crate) bypass_driver: bool,
    /// How long one operation may take before /healthz reports that the agent is stuck: at least 10s
    ///
    /// Every operation has a shorter limit of its own, even the slowest image pull.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = stuck_after)]
    pub(crate) stuck_after: Duration,
}

/// What the agent is told of the machine's kubelet.
#[derive(Debug, Args)]
pub(crate) struct KubeletArguments {
    /// Systemd unit that runs the kubelet; if empty, the agent detects it
    ///
    /// Each start of the unit is a restart of the kubelet: evidence from before it no longer counts. The agent detects the first
    /// of these units that runs: kubelet, k3s-agent, k3s, rke2-agent, rke2-server, k0sworker, k0scontroller,
    /// snap.microk8s.daemon-kubelite.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, value_parser = unit)]
    kubelet_unit: Setting,
    /// Folder of the kubelet on the machine; if empty, the default of its unit
    ///
    /// The default is /var/lib/kubelet; with k0s, /var/lib/k0s/kubelet; with `MicroK8s`, /var/snap/microk8s/common/var/lib/kubelet.
    #[arg(long, value_name = "FOLDER", default_value = "", hide_default_value = true, value_parser = folder)]
    kubelet_dir: Setting,
    /// Register the kubelet's plugins as extensions that this node must have
    ///
    /// Adds an entry to the annotation evenkeel.dev/system-extensions of the Node for every socket in `plugins_registry` and
    /// device-plugins of the kubelet's folder, with a probe of that socket. Other entries are left alone.
    #[arg(long)]
    pub(crate) register_kubelet_plugins: bool,
    /// How long the socket of a registered plugin may be gone before its entry is removed
    ///
    /// Until then the node is not ready. A plugin that restarts takes its socket with it, and a kubelet that restarts removes
    /// the sockets of all device plugins.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = evenkeel_api::duration::parse)]
    pub(crate) forget_plugins_after: Duration,
}

impl KubeletArguments {
    pub(crate) fn settings(&self) -> KubeletSettings {
        KubeletSettings {
            unit: self.kubelet_unit.0.clone(),
            folder: self.kubelet_dir.0.clone(),
        }
    }
}

/// What may be set, or found out.
#[derive(Debug, Clone)]
struct Setting(Option<String>);

fn program(text: &str) -> Result<String, String> {
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    let below = text.strip_prefix('/');
    if !below.is_some_and(|path| path.split('/').all(is_name)) {
        return Err("write the whole path of a program, such as /usr/local/bin/check".to_owned());
    }
    Ok(text.to_owned())
}

fn unit(text: &str) -> Result<Setting, String> {
    unit_setting(text).map(Setting)
}

fn folder(text: &str) -> Result<Setting, String> {
    folder_setting(text).map(Setting)
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
        assert_eq!(controller.kubelet.settings(), KubeletSettings::default());
        assert_eq!(
            controller.kubelet.forget_plugins_after,
            Duration::from_mins(2)
        );
        let line = ["agent", "controller", "--node-name", "n1"];
        let kubelet = ["--kubelet-unit=k3s", "--kubelet-dir=/data/kubelet"];
        let line = CommandLine::parse_from(line.into_iter().chain(kubelet));
        let Command::Controller(controller) = line.command;
        let expected = KubeletSettings {
            unit: Some("k3s.service".to_owned()),
            folder: Some("/data/kubelet".to_owned()),
        };
        assert_eq!(controller.kubelet.settings(), expected);
        let line = ["agent", "controller", "--node-name", "n1"];
        let allowed = ["--allow-exec-probe=/bin/a", "--allow-exec-probe=/bin/b"];
        let line = CommandLine::parse_from(line.into_iter().chain(allowed));
        let Command::Controller(controller) = line.command;
        assert_eq!(controller.allow_exec_probe, ["/bin/a", "/bin/b"]);
        for wrong in ["", "check", "/", "/bin/../x", "/bin//x"] {
            let line = ["agent", "controller", "--node-name", "n1"];
            let allowed = format!("--allow-exec-probe={wrong}");
            let refused = CommandLine::try_parse_from(line.into_iter().chain([&*allowed]));
            assert!(refused.is_err(), "{wrong:?}");
        }
        for wrong in ["", "9s", "soon"] {
            let line = ["agent", "controller", "--node-name", "n1", "--stuck-after"];
            let refused = CommandLine::try_parse_from(line.into_iter().chain([wrong]));
            assert!(refused.is_err(), "{wrong:?}");
        }
    }
}

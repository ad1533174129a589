//! What the agent's command line says on Windows.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use evenkeel_api::version::Version;

/// Keeps one Windows node in its declared state.
#[derive(Debug, Clone, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) daemon: evenkeel_daemon::Arguments,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Makes this machine a node: sets the variables and starts the bootstrap services of a version
    ///
    /// Then waits for the Node, gets a login of its own for it, and cordons it. --kubeconfig is a login
    /// that may read and ask for certificates.
    Bootstrap(BootstrapArguments),
    /// Brings this node to the services that its Node names, and keeps it there
    ///
    /// Reads the annotations desired-version and desired-services of the Node and the ConfigMap of that
    /// version; writes version and current-services back. Puts back what drifts. Reboots the machine
    /// when environment variables change, after the operator has moved its pods.
    Controller(ControllerArguments),
    /// Takes away what is ours: services, variables, certificates, and last the Node
    Cleanup(CleanupArguments),
    /// Gets the agent of this node a new login, where the old one has ended
    ///
    /// The operator runs this. --kubeconfig is a login that may ask for certificates. A running agent goes on
    /// with the new one within half a minute.
    Login {
        /// The operator's namespace
        #[arg(long, value_name = "NAME", default_value = "evenkeel")]
        namespace: String,
    },
    /// Says what this machine is, as JSON
    Inspect,
    /// Closes C:\k to all but SYSTEM and administrators, and says what this machine is and which files it has, as JSON
    Prepare {
        /// The files whose SHA-256 is wanted
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Says the SHA-256 of files, as JSON; null for one that is not there
    Checksums {
        /// The files
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Bundles the agent's logs, and what this machine is, as a .tar.gz on standard output
    Logs,
    /// The machine's trusted roots
    #[command(subcommand)]
    Trust(TrustCommand),
    /// The agent's own service
    #[command(subcommand)]
    Service(ServiceCommand),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BootstrapArguments {
    /// The version whose services ConfigMap counts, such as 1.2.3-abc1234
    #[arg(long, value_name = "VERSION")]
    pub(crate) desired_version: Version,
    /// SHA-256 of the services that count: others are waited out, for two minutes. Without it, whatever the
    /// ConfigMap says
    #[arg(long, value_name = "SHA256")]
    pub(crate) desired_services: Option<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArguments,
    /// How long the Node may take to appear, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) node_timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArguments {
    /// The operator's namespace, where services ConfigMaps are
    #[arg(long, value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    /// How long a PowerShell script may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) script_timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ControllerArguments {
    #[command(flatten)]
    pub(crate) place: PlaceArguments,
    /// How long one thing may take before /healthz says that the agent is stuck: at least 10s
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = stuck_after)]
    pub(crate) stuck_after: Duration,
    /// Run as a service, under the Service Control Manager
    #[arg(long)]
    pub(crate) windows_service: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CleanupArguments {
    /// The operator's namespace, where services ConfigMaps are
    #[arg(long, value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    /// Only services go: the next version decides about the rest
    #[arg(long)]
    pub(crate) upgrade: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum TrustCommand {
    /// All of them, as JSON
    List,
    /// Makes the certificates of a PEM file be ours, and no others
    Sync {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Installs this program as the service evenkeel-agent, and starts it
    Install(PlaceArguments),
    /// Stops and removes the service
    Remove,
}

fn stuck_after(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(10);
    match evenkeel_api::duration::parse(text)? {
        short if short < LEAST => Err(format!("{text} is too short: write at least 10s")),
        duration => Ok(duration),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: u64 = text
        .parse()
        .map_err(|_| "write a whole number of seconds".to_owned())?;
    Ok(Duration::from_secs(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_explains_itself_and_a_version_is_one() {
        CommandLine::command().debug_assert();
        let line =
            CommandLine::parse_from(["agent", "bootstrap", "--desired-version", "1.2.3-abc1234"]);
        let Command::Bootstrap(bootstrap) = line.command else {
            panic!("{line:?}")
        };
        assert_eq!(bootstrap.place.namespace, "evenkeel");
        let error = CommandLine::try_parse_from(["agent", "bootstrap", "--desired-version", "1.2"]);
        assert!(error.unwrap_err().to_string().contains("1.2.3-abc1234"));
    }
}

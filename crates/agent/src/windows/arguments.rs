//! What the agent's command line says on Windows.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use evenkeel_api::windows::version::Version;
use evenkeel_plan::windows::node_name::{METADATA, Platform};

use crate::worker::stuck_after;

/// Keep one Windows node in its declared state
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
    /// Make this machine a node: set the variables and start the bootstrap services of a version
    ///
    /// Then waits for the Node, gets a login of its own for it, and cordons it. --kubeconfig is a login
    /// that may read and request certificates.
    Bootstrap(BootstrapArguments),
    /// Bring this node to the services that its Node names, and keep it there
    ///
    /// Reads the annotations desired-version and desired-services of the Node and the ConfigMap of that
    /// version. Writes the annotations version and current-services. Heals drift. Reboots the machine
    /// when environment variables change, after the operator has drained the node.
    Controller(ControllerArguments),
    /// Remove what Evenkeel manages on this machine: services, variables and certificates
    Cleanup(CleanupArguments),
    /// Get a new login for the agent of this node after the old one has expired
    ///
    /// The operator runs this. --kubeconfig is a login that may request certificates. A running agent uses the
    /// new login within half a minute.
    Login {
        /// Namespace of the operator
        #[arg(long, value_name = "NAME", default_value = "evenkeel")]
        namespace: String,
    },
    /// Print facts about this machine as JSON
    Inspect,
    /// Restrict C:\k to SYSTEM and administrators, and print facts about this machine and checksums of files as JSON
    Prepare {
        /// PowerShell script that prints what the Node of this machine is called
        #[arg(long, value_name = "PATH")]
        node_name_script: Option<String>,
        /// Files to print the SHA-256 of
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Print what the Node of this machine is called
    ///
    /// For scripts of a payload. On a cloud, that is what the cloud calls the machine.
    NodeName(NodeNameArguments),
    /// Print the address of this machine from which it reaches the API server
    ///
    /// For scripts of a payload. The API server is that of --kubeconfig.
    NodeIp,
    /// Print the SHA-256 of files as JSON; null for a file that does not exist
    Checksums {
        /// Files to print the SHA-256 of
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Write the agent's logs and facts about this machine to standard output as a .tar.gz
    Logs,
    /// List or change the trusted root certificates of this machine
    #[command(subcommand)]
    Trust(TrustCommand),
    /// Install or remove the agent's own service
    #[command(subcommand)]
    Service(ServiceCommand),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BootstrapArguments {
    /// Version of the services ConfigMap, such as 1.2.3-abc1234
    #[arg(long, value_name = "VERSION")]
    pub(crate) desired_version: Version,
    /// SHA-256 that the services must have; waits up to two minutes for a ConfigMap with it. Default: any
    /// services are accepted
    #[arg(long, value_name = "SHA256")]
    pub(crate) desired_services: Option<String>,
    #[command(flatten)]
    pub(crate) scripts: ScriptArguments,
    /// How long to wait for the Node, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) node_timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct NodeNameArguments {
    /// Where this machine runs: plain, vsphere, aws, azure or gcp
    #[arg(long, value_name = "PLATFORM", default_value_t = Platform::Plain)]
    pub(crate) platform: Platform,
    /// Where the cloud answers
    #[arg(long, value_name = "URL", default_value = METADATA)]
    pub(crate) metadata: String,
    /// How long to ask the cloud until it answers, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) within: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ScriptArguments {
    /// Namespace of the operator and of the services ConfigMaps
    #[arg(long, value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    /// How long a PowerShell script may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) script_timeout: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ControllerArguments {
    #[command(flatten)]
    pub(crate) scripts: ScriptArguments,
    /// How long one operation may take before /healthz reports that the agent is stuck: at least 10s
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = stuck_after)]
    pub(crate) stuck_after: Duration,
    /// Run as a service of the Service Control Manager
    #[arg(long)]
    pub(crate) windows_service: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CleanupArguments {
    /// Namespace of the operator and of the services ConfigMaps
    #[arg(long, value_name = "NAME", default_value = "evenkeel")]
    pub(crate) namespace: String,
    /// Remove services only, because another version of the payload follows
    #[arg(long)]
    pub(crate) upgrade: bool,
    /// Take this machine over from OpenShift's Windows Machine Config Operator: get a login as the agent of this Node, which
    /// must have an address of this machine, then remove that operator's services too. --kubeconfig is a login that may
    /// request certificates
    #[arg(long, value_name = "NODE", requires = "upgrade")]
    pub(crate) take_over: Option<String>,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum TrustCommand {
    /// Print all trusted root certificates as JSON
    List,
    /// Import the certificates of a PEM file, and remove managed ones that are not in it
    Sync {
        /// PEM file with at least one certificate
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Install this program as the service evenkeel-agent, and start it
    Install(ScriptArguments),
    /// Stop and remove the service
    Remove,
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
        assert_eq!(bootstrap.scripts.namespace, "evenkeel");
        let error = CommandLine::try_parse_from(["agent", "bootstrap", "--desired-version", "1.2"]);
        assert!(error.unwrap_err().to_string().contains("1.2.3-abc1234"));
    }
}

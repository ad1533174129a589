//! The options that every long-running program of ours has; flatten them into its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// How a program logs, is observed, and reaches the cluster.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Log level: error, warn, info, debug, trace or off; also per module
    ///
    /// For example `info,evenkeel_agent=debug`.
    #[arg(
        long,
        env = "EVENKEEL_LOG",
        value_parser = log_level,
        value_name = "LEVEL",
        default_value = "info",
        help_heading = "Daemon",
        global = true
    )]
    pub log_level: Targets,
    /// Log format: lines for people, or one JSON object per line
    ///
    /// Logs go to standard error, with time in UTC.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value_t,
        help_heading = "Daemon",
        global = true
    )]
    pub log_format: LogFormat,
    /// Log to this file instead of standard error, and keep four older files of 8 MiB next to it
    #[arg(long, value_name = "FILE", help_heading = "Daemon", global = true)]
    pub log_file: Option<PathBuf>,
    /// Address to serve /healthz, /readyz and /metrics on over HTTP, or `off`
    ///
    /// An address with a port, for example 0.0.0.0:9180 for probes of the kubelet. With --metrics-listen, /metrics is
    /// not served here.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value_t,
        help_heading = "Daemon",
        global = true
    )]
    pub listen: Listen,
    /// Address to serve /metrics on over HTTPS, instead of at --listen
    ///
    /// An address with a port, for example 0.0.0.0:9443.
    #[arg(long, value_name = "ADDRESS", help_heading = "Daemon", global = true)]
    pub metrics_listen: Option<SocketAddr>,
    /// Serve /metrics only to clients that are allowed to get it
    ///
    /// A client sends a token of the cluster (Authorization: Bearer TOKEN). The API server says whose token it is, and
    /// whether its user may get the path /metrics, as the role evenkeel-metrics-reader allows.
    #[arg(
        long,
        requires = "metrics_listen",
        help_heading = "Daemon",
        global = true
    )]
    pub metrics_auth: bool,
    /// Directory with tls.crt and tls.key for --metrics-listen, such as a mounted Secret
    ///
    /// It is read again when it changes. Without it, the program makes a self-signed certificate at every start.
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "metrics_listen",
        help_heading = "Daemon",
        global = true
    )]
    pub metrics_certificate: Option<PathBuf>,
    /// Path of the kubeconfig
    ///
    /// Default: the service account of the pod; outside of a pod the variable KUBECONFIG, then
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Daemon", global = true)]
    pub kubeconfig: Option<PathBuf>,
}

/// `info,evenkeel_agent=debug`. Stricter than the log's own reading, which takes a misspelt level for
/// the name of a module and then logs nothing else. Nothing at all is info.
fn log_level(text: &str) -> Result<Targets, String> {
    let level = |word: &str| match word.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!(
            "unknown log level {word:?}: use error, warn, info, debug, trace or off, or MODULE=LEVEL"
        )),
    };
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for part in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        targets = match part.split_once('=') {
            Some((module, word)) => targets.with_target(module.trim(), level(word.trim())?),
            None => targets.with_default(level(part)?),
        };
    }
    Ok(targets)
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line, for a log collector.
    Json,
}

/// Where health and metrics are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At this address; port 0 is any free one.
    At(SocketAddr),
}

impl Default for Listen {
    fn default() -> Self {
        Self::At(([127, 0, 0, 1], 9180).into())
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => out.write_str("off"),
            Self::At(address) => address.fmt(out),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| {
            "not an address with a port: use for example 127.0.0.1:9180 or [::1]:9180, or off"
                .to_owned()
        })
    }
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            log_level: Targets::new().with_default(tracing::Level::INFO),
            log_format: LogFormat::default(),
            log_file: None,
            listen: Listen::default(),
            metrics_listen: None,
            metrics_auth: false,
            metrics_certificate: None,
            kubeconfig: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        daemon: Arguments,
    }

    #[test]
    fn without_options_it_logs_info_as_text_and_listens_on_this_machine_only() {
        let daemon = Program::parse_from(["program"]).daemon;
        assert_eq!(daemon.log_format, LogFormat::Text);
        assert_eq!(daemon.listen.to_string(), "127.0.0.1:9180");
        assert_eq!(daemon.kubeconfig, None);
        assert_eq!(daemon.log_level.to_string(), "info");
        assert_eq!(Arguments::default().log_level, daemon.log_level);
    }

    #[test]
    fn listening_can_be_turned_off_and_rubbish_is_refused_with_an_example() {
        let daemon = Program::parse_from(["program", "--listen", "off"]).daemon;
        assert_eq!(daemon.listen, Listen::Off);
        let error = Program::try_parse_from(["program", "--listen", "9180"]).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:9180"), "{error}");
    }

    #[test]
    fn a_token_is_never_asked_for_over_plain_http() {
        let error = Program::try_parse_from(["program", "--metrics-auth"]).unwrap_err();
        assert!(error.to_string().contains("--metrics-listen"), "{error}");
        let secure = ["program", "--metrics-auth", "--metrics-listen=[::1]:9443"];
        assert!(Program::parse_from(secure).daemon.metrics_auth);
    }

    #[test]
    fn a_misspelt_level_is_refused_instead_of_silencing_the_program() {
        for (text, read) in [
            ("", "info"),
            ("INFO", "info"),
            ("off", "off"),
            (
                " warn , evenkeel_agent = debug,",
                "evenkeel_agent=debug,warn",
            ),
            ("evenkeel_agent=debug", "evenkeel_agent=debug,info"),
        ] {
            let targets = log_level(text).map(|targets| targets.to_string());
            assert_eq!(targets.as_deref(), Ok(read), "{text:?}");
        }
        for text in ["loud", "a=b=c", "evenkeel_agent="] {
            let error = log_level(text).unwrap_err();
            assert!(error.contains("use error, warn, info"), "{text}: {error}");
        }
    }

    #[test]
    fn help_explains_every_option() {
        Program::command().debug_assert();
        let help = Program::command().render_long_help().to_string();
        for said in ["EVENKEEL_LOG", "/readyz", "UTC", "service account", "off"] {
            assert!(help.contains(said), "{said} is not in:\n{help}");
        }
    }
}

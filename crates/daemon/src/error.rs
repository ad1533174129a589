//! What can go wrong with a daemon itself: what failed, on what, and what to do about it.

use std::path::PathBuf;
use std::time::Duration;

/// What most of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a daemon could not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file of `--kubeconfig` is not one, or cannot be read.
    #[error("cannot use the kubeconfig {}: check that the file of --kubeconfig exists, is readable and names a cluster, a user and a current context", .path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// There is no way to the API server.
    #[error(
        "no API server is configured: run in a pod with a service account, give --kubeconfig FILE, or set the variable KUBECONFIG"
    )]
    NoCluster(#[source] kube::config::KubeconfigError),
    /// The login was understood and cannot be used.
    #[error(
        "cannot create a client for {server}: check the certificates and the address in the kubeconfig"
    )]
    Client {
        /// The address of the API server.
        server: String,
        /// What is wrong with the login.
        source: Box<kube::Error>,
    },
    /// The name or version of the program cannot be sent to the API server.
    #[error("{0:?} cannot be a User-Agent: use printable ASCII characters")]
    UserAgent(String),
    /// Health and metrics cannot be served.
    #[error(
        "cannot listen on {address} for health and metrics: give a free address with --listen, or --listen off"
    )]
    Listen {
        /// The address of `--listen`.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Metrics cannot be served.
    #[error("cannot listen on {address} for metrics: give a free address with --metrics-listen")]
    ListenForMetrics {
        /// The address of `--metrics-listen`.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificate of the metrics cannot be used.
    #[error(
        "cannot use the certificate for metrics ({place}): the directory of --metrics-certificate needs a tls.crt and a tls.key in PEM that belong together"
    )]
    Certificate {
        /// Where it is.
        place: String,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The log cannot be written.
    #[error("cannot write the log file {}: give another one with --log-file", .path.display())]
    LogFile {
        /// The file of `--log-file`.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system does not deliver the signals to stop.
    #[error("cannot listen for SIGTERM and Ctrl-C")]
    Signals(#[source] std::io::Error),
    /// The work did not end in time after it was asked to.
    #[error("work did not stop within {0:?}: it was abandoned, and continues at the next start")]
    StopTimeout(Duration),
    /// The program's own work failed.
    #[error(transparent)]
    Work(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// The error of a program's own work.
    pub fn work(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Work(source.into())
    }

    /// One word for logs, Events and metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Kubeconfig { .. } | Self::NoCluster(_) => "NoCluster",
            Self::Client { .. } | Self::UserAgent(_) => "NoClient",
            Self::Listen { .. } | Self::ListenForMetrics { .. } => "CannotListen",
            Self::Certificate { .. } => "NoCertificate",
            Self::LogFile { .. } => "NoLog",
            Self::Signals(_) => "NoSignals",
            Self::StopTimeout(_) => "StopTimeout",
            Self::Work(_) => "WorkFailed",
        }
    }
}

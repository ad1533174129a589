//! What can go wrong on the way to an instance, and what to do then.

use std::time::Duration;

use evenkeel_api::names::object;
use evenkeel_plan::excerpt::excerpt;
use evenkeel_plan::windows::instances::{FailureKind, InstanceFailure};

/// Why an instance was not reached, or did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Key(String),
    #[error("cannot connect to port 22: {0}: is the instance on, and its OpenSSH server running?")]
    Unreachable(String),
    #[error("no answer for {}s while {doing}: is there an SSH server at this address?", limit.as_secs())]
    Silent {
        doing: &'static str,
        limit: Duration,
    },
    #[error(
        "the instance refused the login of {user} with the key of Secret {}: add its public key ({public}) to the authorised keys of {user}, or correct the user",
        object::CLOUD_PRIVATE_KEY
    )]
    Refused { user: String, public: String },
    #[error(
        "the host key has changed from {was} to {is}: another machine may answer at this address. If the machine was recreated, run `evenkeel instances trust {address}`"
    )]
    HostKeyChanged {
        address: String,
        was: String,
        is: String,
    },
    #[error("it is not a Windows machine, or has no folder C:\\Windows: remove it from the list")]
    NotWindows,
    #[error("the disk is full: C: needs {needed} MiB and has {free} MiB free: make room")]
    DiskFull { needed: u64, free: u64 },
    #[error("{path} on the instance: {why}")]
    File { path: String, why: String },
    #[error("script {script} on the instance does not say what its Node is called: {why}")]
    NodeName { script: String, why: String },
    #[error("payload file {path} on the operator: {why}")]
    Payload { path: String, why: String },
    #[error("`{command}` ended with {code}: {words}")]
    Command {
        command: String,
        code: String,
        words: String,
    },
    #[error("`{command}` gave an unexpected answer: {answer}")]
    Answer { command: String, answer: String },
    #[error("the connection broke: {0}")]
    Broken(String),
}

impl Error {
    /// The reason of its Event, and its label in metrics.
    pub(crate) fn category(&self) -> FailureKind {
        match self {
            Self::Key(_) => FailureKind::InvalidSshKey,
            Self::Unreachable(_) => FailureKind::InstanceUnreachable,
            Self::Silent { .. } => FailureKind::InstanceSilent,
            Self::Refused { .. } => FailureKind::LoginRefused,
            Self::HostKeyChanged { .. } => FailureKind::HostKeyChanged,
            Self::NotWindows => FailureKind::NotWindows,
            Self::DiskFull { .. } => FailureKind::DiskFull,
            Self::File { .. } => FailureKind::CopyFailed,
            Self::NodeName { .. } => FailureKind::InvalidNodeName,
            Self::Payload { .. } => FailureKind::PayloadIncomplete,
            Self::Command { .. } | Self::Answer { .. } => FailureKind::AgentFailed,
            Self::Broken(_) => FailureKind::ConnectionBroken,
        }
    }
}

/// Machines write parts of it.
impl From<Error> for InstanceFailure {
    fn from(error: Error) -> Self {
        Self::new(error.category(), excerpt(&error.to_string()))
    }
}

impl From<russh::Error> for Error {
    fn from(error: russh::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

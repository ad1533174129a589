//! What can go wrong on a machine: what failed, and on what.

use std::io;

use evenkeel_plan::machine::problem::Refused;
use evenkeel_plan::machine::provision::Managed;
use evenkeel_plan::machine::record::Unreadable;

/// An error of a host. Its source is not in its text; whoever prints it prints the chain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system said no.
    #[error("cannot {doing} {path}")]
    Path {
        /// What was tried: `write`, `rename`.
        doing: &'static str,
        /// On what.
        path: String,
        /// What it said.
        source: io::Error,
    },
    /// The service manager said no.
    #[error("cannot {doing}")]
    Services {
        /// What was tried: `reload crio.service`.
        doing: String,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What manages the operating system said no.
    #[error("cannot {doing}")]
    Os {
        /// What was tried: `stage quay.io/os:2`.
        doing: String,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The configuration is not one this machine can go to.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The machine cannot be adopted any more.
    #[error(transparent)]
    Managed(#[from] Managed),
    /// The journal is not readable.
    #[error("{path}")]
    Journal {
        /// Where it is.
        path: String,
        /// Why not.
        source: Unreadable,
    },
    /// Contents that should be in the store are not there, or not the right ones.
    #[error(
        "contents {hash} are missing or damaged in the store {path}: apply the configuration again from its file"
    )]
    Lost {
        /// The store.
        path: String,
        /// Which contents.
        hash: String,
    },
    /// Another program of ours is at work on this machine.
    #[error(
        "another evenkeel process is working on this machine (it holds {path}): wait until it ends"
    )]
    Busy {
        /// The lock.
        path: String,
    },
    /// The machine lets us watch no more folders.
    #[error(
        "cannot watch {path}: the kernel limit {limit} is reached: raise it, for example with `sysctl -w {limit}={enough}`"
    )]
    WatchLimit {
        /// What was to be watched.
        path: String,
        /// The kernel's name of the limit.
        limit: &'static str,
        /// A value that will do on most machines.
        enough: u32,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody wanted it to end.
    #[error("stopped on request")]
    Stopped,
    /// A step failed, and everything before it was undone.
    #[error("{step} failed; all changes were undone")]
    Undone {
        /// What failed.
        step: String,
        /// Why.
        source: Box<Error>,
    },
    /// All steps are done, but the journal could not be closed; the next start does that.
    #[error("all changes are applied, but the record could not be written: run it again")]
    Unfinished {
        /// Why.
        source: Box<Error>,
    },
    /// A step failed, and so did undoing it; the journal is kept and the next start goes on.
    #[error(
        "{step} failed while changes were being undone: fix the cause and run it again to undo the rest"
    )]
    Stuck {
        /// What failed to be undone.
        step: String,
        /// Why.
        source: Box<Error>,
    },
}

/// What a host returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The Event reason and metric label of this error.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Path { .. } => "PathFailed",
            Self::Services { .. } => "ServiceManagerFailed",
            Self::Os { .. } => "OsFailed",
            Self::Refused(refused) => refused.category(),
            Self::Managed(managed) => managed.category(),
            Self::Journal {
                source: Unreadable::Newer(_),
                ..
            } => "NewerRecord",
            Self::Journal { .. } => "JournalUnreadable",
            Self::Lost { .. } => "ContentsLost",
            Self::Busy { .. } => "Busy",
            Self::WatchLimit { .. } => "WatchLimitReached",
            Self::Stopped => "Stopped",
            Self::Undone { .. } => "UpdateUndone",
            Self::Unfinished { .. } => "UpdateUnfinished",
            Self::Stuck { .. } => "UndoFailed",
        }
    }

    /// The error with its causes, as one sentence, for findings and reports that keep no source.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            text.push_str(": ");
            text.push_str(&source.to_string());
            next = source.source();
        }
        text
    }

    /// An error of what manages the operating system.
    pub fn os(
        doing: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Os {
            doing: doing.into(),
            source: source.into(),
        }
    }

    /// An error of the operating system on a path.
    pub fn path(
        doing: &'static str,
        path: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Path {
            doing,
            path: path.into(),
            source: source.into(),
        }
    }
}

//! What went wrong with a machine, in one word and in a sentence.

use evenkeel_api::notice::Notice;
use serde::{Deserialize, Serialize};

/// What is wrong with a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceFailure {
    /// What kind of failure it is.
    pub category: FailureKind,
    /// For people.
    pub message: String,
}

impl InstanceFailure {
    /// A failure of this kind.
    pub fn new(category: FailureKind, message: impl Into<String>) -> Self {
        Self {
            category,
            message: message.into(),
        }
    }

    /// The work on it has panicked. It is tried again, as after any problem.
    pub fn crashed() -> Self {
        let message = "internal error in instances (please report): see the operator's log";
        Self::new(FailureKind::Crashed, message)
    }

    /// What people hear of it, after who failed at what.
    pub fn notice(&self, begin: &str) -> Notice {
        let message = format!("{begin}{}", self.message);
        Notice::warning(self.category.as_str().to_owned(), message)
    }
}

/// Declares the kinds; each is written down and shown by its name.
macro_rules! kinds {
    ($($(#[$meta:meta])* $kind:ident,)*) => {
        /// A kind of failure: the reason of its Event, and its label in metrics.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum FailureKind {
            $($(#[$meta])* $kind,)*
            /// What whoever reads the payload and the configuration of workers calls it.
            Other(String),
        }

        impl FailureKind {
            /// In one word.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for FailureKind {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $(stringify!($kind) => Self::$kind,)*
                    _ => Self::Other(word),
                }
            }
        }
    };
}

kinds! {
    /// Its name has no address.
    AddressUnknown,
    /// The agent on it failed, or gave an unexpected answer.
    AgentFailed,
    /// The API server did not do what was asked.
    ApiFailed,
    /// The API server does not accept the bootstrap login.
    BootstrapLoginRefused,
    /// The connection broke.
    ConnectionBroken,
    /// A file could not be copied to it.
    CopyFailed,
    /// The work on it panicked.
    Crashed,
    /// It has no room.
    DiskFull,
    /// Its payload folder belongs to somebody else.
    ForeignFolder,
    /// Another machine may answer at its address.
    HostKeyChanged,
    /// It accepts a connection and says nothing.
    InstanceSilent,
    /// The work on it took too long.
    InstanceSlow,
    /// Nobody accepts a connection at its address.
    InstanceUnreachable,
    /// Its entry in the list cannot be read.
    InvalidInstance,
    /// It claims a name that no Node can have.
    InvalidNodeName,
    /// The payload cannot be used.
    InvalidPayload,
    /// The operator has no usable SSH key.
    InvalidSshKey,
    /// It does not accept the operator's key.
    LoginRefused,
    /// Its Machine has no address.
    NoAddress,
    /// Its Node is gone.
    NodeGone,
    /// It claims the name of another node.
    NodeNameTaken,
    /// The operator has not read yet what it needs.
    NotKnownYet,
    /// It is a node of OpenShift's operator, and nobody says to take it over.
    NotTakenOver,
    /// Its node is not told of the version yet.
    NotToldYet,
    /// It does not run Windows.
    NotWindows,
    /// A file of the payload is missing.
    PayloadIncomplete,
    /// It is listed twice.
    SameInstance,
    /// It is a node of OpenShift's operator, and lacks what taking it over needs.
    TakeOverRefused,
}

impl FailureKind {
    /// Whether nobody can say after it that the machine still is what it was.
    pub fn loses_the_machine(&self) -> bool {
        matches!(
            self,
            Self::InstanceUnreachable
                | Self::InstanceSilent
                | Self::HostKeyChanged
                | Self::LoginRefused
                | Self::ConnectionBroken
        )
    }
}

impl From<FailureKind> for String {
    fn from(kind: FailureKind) -> Self {
        kind.as_str().to_owned()
    }
}

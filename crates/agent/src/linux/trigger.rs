//! What may change on a Linux node, as the worker's queue holds it.

use evenkeel_host::linux::Login;

/// What may change on a Linux node.
#[derive(Debug)]
pub(crate) enum Change {
    /// The version of a MachineConfig, or that there is none.
    Config {
        name: String,
        version: Option<String>,
    },
    /// The force file may have come.
    ForceFile,
    /// Somebody logged in over SSH.
    Login(Login),
}

/// Something that may have changed.
pub(crate) type Trigger = crate::trigger::Trigger<Change>;

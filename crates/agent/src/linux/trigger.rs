//! What may have changed, as the worker's queue holds it.

use evenkeel_host::Error;
use evenkeel_host::linux::Login;
use evenkeel_host::watch::Event;

use super::own_node::OwnNode;

/// Something that may have changed.
#[derive(Debug)]
pub(crate) enum Trigger {
    /// The own Node, or that it is gone.
    Node(Option<OwnNode>),
    /// The version of a MachineConfig, or that there is none.
    Config {
        name: String,
        version: Option<String>,
    },
    /// Something on the machine.
    Machine(MachineChange),
    /// Somebody logged in over SSH.
    Login(Login),
}

/// What happened on the machine.
#[derive(Debug)]
pub(crate) enum MachineChange {
    /// A path drifted, or is right again.
    Path {
        /// What became of it.
        event: Box<Event>,
        /// How it differs, as it stood there.
        difference: String,
    },
    /// The force file may have come.
    ForceFile,
    /// Nobody watches any more.
    Ended(Error),
}

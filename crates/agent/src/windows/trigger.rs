//! What may have changed, as the worker's queue holds it.

use std::collections::BTreeMap;

use evenkeel_host::Error;
use evenkeel_host::watch::Event;
use evenkeel_plan::windows::trust::Published;

use super::own_node::OwnNode;

/// Something that may have changed.
#[derive(Debug)]
pub(crate) enum Trigger {
    /// The own Node, or that it is gone.
    Node(Option<OwnNode>),
    /// The data of a services ConfigMap, or that there is none.
    Services {
        name: String,
        data: Option<BTreeMap<String, String>>,
    },
    /// Something on the machine.
    Machine(MachineChange),
    /// A script for the services with this hash has ended.
    Script {
        hash: String,
        path: String,
        printed: Result<String, String>,
    },
    /// What the cluster says of its trust bundle.
    Bundle(Published),
    /// The machine's trusted roots may have changed.
    Roots,
    /// There is a new login: this worker ends, and the next one goes on.
    Renewed,
}

/// What happened on the machine.
#[derive(Debug)]
pub(crate) enum MachineChange {
    /// Something drifted, or is right again.
    Event(Box<Event>),
    /// Everything was looked at once.
    Looked,
    /// Nobody watches any more.
    Ended(Error),
}

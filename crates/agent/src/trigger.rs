//! What may have changed, as the worker's queue holds it.

use evenkeel_host::Error;
use evenkeel_host::watch::Event;

use crate::own_node::OwnNode;

/// Something that may have changed; `Change` is what only one system has.
#[derive(Debug)]
pub(crate) enum Trigger<Change> {
    /// The own Node, or that it is gone.
    Node(Option<OwnNode>),
    /// Something on the machine drifted, or is right again.
    Drift {
        /// What became of it.
        event: Box<Event>,
        /// How it differs, as it stood there.
        difference: String,
    },
    /// Nobody watches the machine any more.
    WatchEnded(Error),
    /// Something else.
    System(Change),
}

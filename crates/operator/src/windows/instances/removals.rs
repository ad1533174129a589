//! Instances that are listed no more: who they are, as the instances controller knows, and what the removal of each Node
//! waits for, as the controller of the Windows pool knows.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

/// What is known of them.
#[derive(Default)]
pub(crate) struct Removals {
    /// Their Nodes; nothing while nobody knows who is listed.
    leaving: watch::Sender<Option<BTreeMap<String, Option<String>>>>,
    /// By Node.
    waiting: watch::Sender<BTreeMap<String, String>>,
}

impl Removals {
    /// Takes note of who is listed no more, if anybody knows.
    pub(crate) fn know(&self, leaving: Option<BTreeMap<String, Option<String>>>) {
        self.leaving.send_if_modified(|known| {
            let differs = *known != leaving;
            *known = leaving;
            differs
        });
    }

    /// Tells when others are listed.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<BTreeMap<String, Option<String>>>> {
        self.leaving.subscribe()
    }

    /// Whether an instance is to be taken out.
    pub(crate) fn has(&self, instance: &str) -> bool {
        let leaving = self.leaving.borrow();
        leaving.as_ref().is_some_and(|it| it.contains_key(instance))
    }

    /// The Nodes that are to be removed, if anybody knows.
    pub(crate) fn nodes(&self) -> Option<BTreeSet<String>> {
        let leaving = self.leaving.borrow();
        let nodes = leaving.as_ref()?.values();
        Some(nodes.flatten().cloned().collect())
    }

    /// Takes note of what the removal of Nodes waits for.
    pub(crate) fn wait(&self, waiting: BTreeMap<String, String>) {
        self.waiting.send_if_modified(|known| {
            let differs = *known != waiting;
            *known = waiting;
            differs
        });
    }

    /// Tells when that is something else.
    pub(crate) fn waiting(&self) -> watch::Receiver<BTreeMap<String, String>> {
        self.waiting.subscribe()
    }

    /// What the removal of a Node waits for.
    pub(crate) fn waits_for(&self, node: &str) -> Option<String> {
        self.waiting.borrow().get(node).cloned()
    }
}

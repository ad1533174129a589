//! Machines that are being configured, or taken out, at this very time: who may have a first certificate. The instances
//! controller says it, the certificates controller asks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_plan::windows::certificates::Identity;
use jiff::Timestamp;
use tokio::sync::watch;

/// What is known of them. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Configuring {
    shared: Rc<ConfiguringState>,
}

#[derive(Default)]
struct ConfiguringState {
    claimants: RefCell<BTreeMap<String, Claimant>>,
    bootstrapper: RefCell<Option<Identity>>,
    /// When the logins end that agents were given, by node.
    logins: RefCell<BTreeMap<String, Timestamp>>,
    changes: watch::Sender<()>,
}

/// One machine that is to be, or was, a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claimant {
    /// The machine.
    instance: String,
    /// Whether it is to become a node.
    joins: bool,
    /// The login that its agent was given for this claim.
    credential: Option<String>,
}

impl Configuring {
    /// Tells when anything has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Who the kubelets of new machines are.
    pub(crate) fn bootstrapper(&self) -> Option<Identity> {
        self.shared.bootstrapper.borrow().clone()
    }

    /// Whether the machine that is to be `node` is being configured.
    pub(crate) fn joins(&self, node: &str) -> bool {
        let claimants = self.shared.claimants.borrow();
        claimants.get(node).is_some_and(|it| it.joins)
    }

    /// The login that the agent on the machine of `node` was given.
    pub(crate) fn credential(&self, node: &str) -> Option<String> {
        self.shared.claimants.borrow().get(node)?.credential.clone()
    }

    /// Says who the kubelets of new machines are.
    pub(crate) fn know_bootstrapper(&self, identity: Identity) {
        let known = self.shared.bootstrapper.replace(Some(identity.clone()));
        if known != Some(identity) {
            self.shared.changes.send_replace(());
        }
    }

    /// When the login of the agent of `node` ends, if it was given one since we watch.
    pub(crate) fn login_ends(&self, node: &str) -> Option<Timestamp> {
        self.shared.logins.borrow().get(node).copied()
    }

    /// Says until when the agent of `node` was given a login.
    pub(crate) fn know_login(&self, node: &str, ends: Timestamp) {
        let mut logins = self.shared.logins.borrow_mut();
        let known = logins.entry(node.to_owned()).or_insert(ends);
        *known = ends.max(*known);
    }

    /// Says that a machine claims to be `node`, with a login of its agent, until what is returned is
    /// dropped. It may become a node if it `joins`. None if another machine claims that node.
    pub(crate) fn begin(
        &self,
        instance: &str,
        node: &str,
        joins: bool,
        credential: Option<String>,
    ) -> Option<NodeClaim> {
        let claimant = Claimant {
            instance: instance.to_owned(),
            joins,
            credential,
        };
        let mut claimants = self.shared.claimants.borrow_mut();
        if claimants
            .get(node)
            .is_some_and(|it| it.instance != instance)
        {
            return None;
        }
        claimants.insert(node.to_owned(), claimant.clone());
        drop(claimants);
        self.shared.changes.send_replace(());
        Some(NodeClaim {
            of: self.clone(),
            node: node.to_owned(),
            claimant,
        })
    }
}

/// A machine's claim to be a node, which ends with this.
pub(crate) struct NodeClaim {
    of: Configuring,
    node: String,
    claimant: Claimant,
}

impl Drop for NodeClaim {
    fn drop(&mut self) {
        let mut claimants = self.of.shared.claimants.borrow_mut();
        if claimants.get(&self.node) == Some(&self.claimant) {
            claimants.remove(&self.node);
        }
    }
}

//! How Windows nodes come from one version to another: whether that may be at all, in which way, and what is
//! next for a node that is next to update. Which one is, within the one budget of the pool, is decided in
//! [`crate::windows::windows_pool`], over all nodes at once.

pub mod gate;
pub mod in_place;
pub mod recreate;
pub mod taken_over;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::windows::windows_pool::{Strategy, UpdatingNode};
use jiff::Timestamp;

use self::recreate::Machines;
use crate::fleet::node::Node;
use crate::windows::windows_pool::trouble::PoolFailure;

/// What a node is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// A machine that somebody lists.
    Listed,
    /// A Machine, which somebody else's controller makes and removes.
    Machine {
        /// Its name.
        name: String,
        /// The MachineSet that replaces it.
        set: Option<String>,
    },
}

/// Everything that counts for upgrades besides the nodes themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpgradeContext {
    /// What each node is made of, by its name. Nobody can lay hands on one that is missing here.
    pub backing: BTreeMap<String, Backing>,
    /// Machines, and the `MachineSets` that make them.
    pub machines: Machines,
    /// What went wrong on the machine of a node, by the node's name.
    pub troubles: BTreeMap<String, String>,
    /// Why no node may be upgraded at all.
    pub closed: Option<PoolFailure>,
    /// Nodes whose instances are listed no more; none if nobody has looked yet.
    pub removals: Option<BTreeSet<String>>,
    /// Whether the owner says that nodes of OpenShift's operator are taken over.
    pub takes_over: bool,
    /// Nodes of that operator whose machines have all that taking them over needs.
    pub surveyed: BTreeSet<String>,
    /// Now.
    pub now: Timestamp,
}

impl UpgradeContext {
    /// The Machine of a node that is made anew to get another version, and its MachineSet.
    pub fn renewed(&self, strategy: Strategy, node: &str) -> Option<(&str, &str)> {
        match way(strategy, self.backing.get(node)?) {
            UpgradePath::Recreate { machine, set } => Some((machine, set)),
            UpgradePath::InPlace => None,
        }
    }

    /// Whether a node is removed that serves, or has served. While nobody knows who is, the pool's status says who was: one
    /// that begins neither goes on nor back.
    pub fn is_removed(&self, node: &Node, entry: Option<&UpdatingNode>) -> bool {
        let is_meant = match &self.removals {
            Some(removals) => removals.contains(&node.name),
            None => entry.is_some_and(|it| it.removal),
        };
        is_meant && node.has_served()
    }

    /// Whether the Machine of a node is on its way out, by whomever.
    pub fn is_going(&self, node: &str) -> bool {
        self.machines.of_node(node).is_some_and(|it| it.is_going)
    }
}

/// In which way a node gets another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradePath<'a> {
    /// On the machine that it is.
    InPlace,
    /// Its Machine is deleted, and its MachineSet makes a new one.
    Recreate {
        /// The Machine.
        machine: &'a str,
        /// Its MachineSet.
        set: &'a str,
    },
}

/// In which way a node that is made of `backing` gets another version. What no MachineSet makes anew goes in
/// place, whatever the strategy.
pub fn way(strategy: Strategy, backing: &Backing) -> UpgradePath<'_> {
    match (strategy, backing) {
        (
            Strategy::Recreate,
            Backing::Machine {
                name,
                set: Some(set),
            },
        ) => UpgradePath::Recreate { machine: name, set },
        _ => UpgradePath::InPlace,
    }
}

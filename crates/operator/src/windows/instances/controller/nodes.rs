//! The Windows nodes of the cluster, as the work on instances looks at them.

use std::collections::BTreeMap;

use evenkeel_api::windows::version::Version;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::windows::instances::{Clearance, WindowsNode};
use evenkeel_plan::windows::upgrade::in_place;
use evenkeel_plan::windows::windows_pool::{self, removal};

use super::InstancesController;

impl InstancesController<'_> {
    /// All Windows nodes; those that were granted `version` may be upgraded now.
    pub(super) fn nodes(&self, version: Option<&Version>) -> Vec<WindowsNode> {
        let store = self.shared.nodes.store();
        store.look(|all| self.nodes_of(all, version))
    }

    fn nodes_of(
        &self,
        all: &BTreeMap<String, NodeFacts>,
        version: Option<&Version>,
    ) -> Vec<WindowsNode> {
        let pool = self.shared.windows.seen();
        // Where no pool says who was granted what, it is read off the nodes.
        let nodes: Vec<_> = all.values().map(|it| &it.node).collect();
        let as_written = windows_pool::as_written(None, &nodes);
        let is_granted = |name: &str| {
            pool.as_ref().is_none_or(|it| {
                let granted = it.status.granted(name);
                granted.is_some_and(|it| version.is_some_and(|version| it.to == *version))
            })
        };
        let one = |seen: &NodeFacts| {
            let mut node = WindowsNode::of(seen)?;
            if let Some(version) = version
                && is_granted(&node.name)
            {
                node.upgrade = in_place::hands_on(&seen.node, version);
            }
            let entry = match &pool {
                Some(pool) => pool.status.granted(&node.name),
                None => as_written.iter().find(|it| it.node == node.name),
            };
            node.clearance = if removal::is_cleared(entry, &seen.node) {
                Clearance::Cleared
            } else {
                Clearance::Waits(self.fleet.removals.waits_for(&node.name))
            };
            Some(node)
        };
        all.values().filter_map(one).collect()
    }
}

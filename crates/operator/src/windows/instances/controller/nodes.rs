//! The Windows nodes of the cluster, as the work on instances looks at them.

use std::collections::BTreeMap;

use evenkeel_api::names::cordon;
use evenkeel_plan::windows::instances::{Clearance, WindowsNode};
use evenkeel_plan::windows::upgrade::in_place;
use evenkeel_plan::windows::windows_pool::{self, removal};

use super::Controller;
use crate::fleet::nodes::Seen;

impl Controller<'_> {
    /// All Windows nodes; those that were granted `version` may be upgraded now.
    pub(super) fn nodes(&self, version: Option<&str>) -> Vec<WindowsNode> {
        let store = self.shared.nodes.store();
        store.look(|all| self.nodes_of(all, version))
    }

    fn nodes_of(&self, all: &BTreeMap<String, Seen>, version: Option<&str>) -> Vec<WindowsNode> {
        let pool = self.shared.windows.seen();
        // Where no pool says who was granted what, it is read off the nodes.
        let nodes: Vec<_> = all.values().map(|it| &it.node).collect();
        let as_written = windows_pool::as_written(None, &nodes);
        let is_granted = |name: &str| {
            pool.as_ref().is_none_or(|it| {
                let granted = it.status.granted(name);
                granted.is_some_and(|it| Some(it.to.as_str()) == version)
            })
        };
        let one = |seen: &Seen| {
            let mut node = windows_node(seen)?;
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

/// A Windows node; nothing for any other.
pub(crate) fn windows_node(seen: &Seen) -> Option<WindowsNode> {
    let windows = seen.node.windows.as_ref()?;
    let instance = seen.instance.as_deref().and_then(|it| it.rsplit_once('@'));
    let addresses = seen.addresses.iter().map(ToString::to_string);
    Some(WindowsNode {
        name: seen.node.name.clone(),
        instance: instance.map(|(_, instance)| instance.to_owned()),
        addresses: addresses.collect(),
        desired: (
            windows.desired_version.clone(),
            windows.desired_services.clone(),
        ),
        current: (windows.version.clone(), windows.current_services.clone()),
        lacks_files: windows
            .missing_files
            .as_ref()
            .is_some_and(|it| !it.is_empty()),
        is_held: seen.node.unschedulable && seen.node.cordoned_by.as_deref() == Some(cordon::AGENT),
        is_ready: seen.node.ready,
        upgrade: None,
        clearance: Clearance::default(),
    })
}

//! What nodes are told to run: who was granted what, what is put back on a node to which somebody else has
//! written, and in which words that is said.

use evenkeel_api::notice::Notice;
use evenkeel_api::windows::version::StatedVersion;
use evenkeel_api::windows::windows_pool::{UpdatePhase, UpdatingNode};

use super::release::Grant;
use super::{WindowsNodeRollout, WindowsNodeState, removal};
use crate::fleet::node::{Node, NodePatch};
use crate::machine::phase::Drain;
use crate::windows::upgrade::gate;
use crate::windows::upgrade::in_place::{InPlaceStep, Supplied};

/// What was granted, read off the nodes, where no pool says so: whoever is told the target and does not run
/// it yet, and whose pods were asked to leave because it is removed.
pub fn as_written(target: Option<&Grant>, nodes: &[&Node]) -> Vec<UpdatingNode> {
    let phase_of = |node: &Node| {
        let target = target?;
        let windows = node.windows.as_deref()?;
        if !windows.runs(&target.version) {
            let request = Drain::for_upgrade(&target.version);
            let is_asked = node.desired_drain.as_ref() == Some(&request);
            return is_asked.then(|| InPlaceStep::of(node, &target.version).phase());
        }
        let is_behind = windows.current_services.as_ref() != Some(&target.hash);
        (is_told(node, Some(target)) && is_behind).then_some(UpdatePhase::Applying)
    };
    let granted = nodes.iter().filter_map(|node| {
        let is_removed = removal::is_asked(node);
        let phase = if is_removed {
            removal::RemovalStep::of(node).phase()
        } else {
            phase_of(node)?
        };
        let to = target.filter(|_| !is_removed);
        Some(UpdatingNode {
            phase,
            node: node.name.clone(),
            to: to.map(|it| it.version.clone().into()).unwrap_or_default(),
            machine_set: None,
            removal: is_removed,
        })
    });
    granted.collect()
}

/// What is said when `change` takes back what somebody else wrote on a node; nothing for what it is told
/// in its turn.
pub fn put_back(node: &Node, change: &NodePatch) -> Option<Notice> {
    let windows = node.windows.as_deref()?;
    let after = change.made_to(node).windows?;
    let runs = (&windows.version, &windows.current_services);
    let was_told = (&windows.desired_version, &windows.desired_services);
    let is_told = (&after.desired_version, &after.desired_services);
    // Up to now it was told what it runs: this is its turn. On its way under one version it may have been told
    // an earlier hash, by us.
    let is_turn = was_told == runs && is_told != runs;
    let is_later = is_told != runs && was_told.0 == is_told.0 && was_told.1.is_some();
    // An upgrade that is followed by another one before its end.
    let is_next = Supplied::on(node).is_some_and(|it| after.is_told(&it.grant.version))
        && was_told.0.as_ref().is_some_and(|it| it.version().is_ok());
    if is_turn || is_later || is_next || was_told == is_told {
        return None;
    }
    let shown = |version: &Option<StatedVersion>, hash: &Option<String>| {
        let version = gate::shown(version.as_ref());
        let hash = hash.as_deref().unwrap_or("no services");
        format!("{version} ({})", hash.get(..12).unwrap_or(hash))
    };
    Some(Notice::warning(
        "DesiredVersionPutBack",
        format!(
            "somebody set the desired version and services to {}: restored {}, as granted",
            shown(was_told.0, was_told.1),
            shown(is_told.0, is_told.1)
        ),
    ))
}

/// What is to stand on a node, if anybody knows.
pub(super) fn wanted(
    target: Option<&Grant>,
    entry: Option<&UpdatingNode>,
    rollout: &WindowsNodeRollout<'_>,
) -> Option<Grant> {
    let windows = rollout.node.windows.as_deref()?;
    let own = || {
        // In the middle of an upgrade it has the files of what it was told, and none of what it ran.
        if let Some(supplied) = Supplied::on(rollout.node)
            && !windows.runs(&supplied.grant.version)
        {
            return Some(supplied.grant);
        }
        Some(Grant {
            version: windows.version.as_ref()?.version().ok()?.clone(),
            hash: windows.current_services.clone()?,
        })
    };
    if rollout.state == WindowsNodeState::New {
        // Only what was told before: the first word is that of whoever configures it.
        let was_told = windows.desired_version.is_some() || windows.desired_services.is_some();
        return target.filter(|_| was_told).cloned();
    }
    if matches!(rollout.state, WindowsNodeState::Removal(_)) {
        // It goes nowhere any more: not on, and from what it was told in its turn not back.
        return own().filter(|_| !is_told(rollout.node, target));
    }
    let Some(entry) = entry.filter(|it| !it.removal) else {
        return own();
    };
    // An upgrade tells it the new version when its files are there, and not before.
    let was_told = windows.version.as_ref() == Some(&entry.to)
        || matches!(entry.phase, UpdatePhase::Applying | UpdatePhase::Failing);
    if !was_told {
        return own();
    }
    // Nobody knows the hash of a version that is not the target any more: what is there stays.
    target.filter(|it| entry.to == it.version).cloned()
}

pub(super) fn is_told(node: &Node, target: Option<&Grant>) -> bool {
    target.is_some_and(|target| target.told(node).is_empty())
}

//! What the pool's status says was granted, and how far each of those nodes is.

use std::collections::BTreeMap;

use evenkeel_api::windows::windows_pool::{UpdatePhase, UpdatingNode};

use super::grant::is_told;
use super::{Grant, WindowsNodeRollout, WindowsNodeState, WindowsPool, removal, runs};
use crate::fleet::node::{DrainRequest, Node};
use crate::windows::upgrade::UpgradeContext;
use crate::windows::upgrade::in_place::InPlaceStep;

/// What the status is to say was granted: what it says already and is not at its end, and who is next.
pub(super) fn updating(
    pool: &WindowsPool,
    target: Option<&Grant>,
    granted: &BTreeMap<&str, &UpdatingNode>,
    rollouts: &[WindowsNodeRollout<'_>],
    context: &UpgradeContext,
    away: &[UpdatingNode],
) -> Vec<UpdatingNode> {
    let mut all = away.to_vec();
    for entry in &mut all {
        entry.phase = UpdatePhase::Replacing;
    }
    for WindowsNodeRollout { node, state } in rollouts {
        let known = granted.get(node.name.as_str()).copied();
        let renewed = context.renewed(pool.strategy, &node.name);
        let is_going = context.is_going(&node.name);
        let is_gone = context.machines.of_node(&node.name).is_none();
        match (known, state, target) {
            (_, WindowsNodeState::Removal(removal), _) => all.extend(removal::entry(removal, node)),
            (Some(_), WindowsNodeState::Updated | WindowsNodeState::New, _) => {}
            // Also in the place of what it was granted earlier, and has not come to.
            (known, WindowsNodeState::Next, Some(target))
                if known.is_none_or(|it| it.to != target.version) =>
            {
                all.push(UpdatingNode {
                    node: node.name.clone(),
                    to: target.version.clone().into(),
                    phase: UpdatePhase::Granted,
                    machine_set: renewed
                        .filter(|_| !runs(node, &target.version))
                        .map(|(_, set)| set.to_owned()),
                    removal: false,
                });
            }
            // It is listed again; while its pods are kept away it holds its permit by that.
            (Some(known), ..) if known.removal => {}
            // Whatever the pool's strategy is by now: a Machine that goes is made anew, and no other.
            (Some(known), ..)
                if known.machine_set.is_some() && (is_going || is_gone || renewed.is_some()) =>
            {
                let phase = if is_going || is_gone {
                    UpdatePhase::Replacing
                } else {
                    UpdatePhase::Granted
                };
                all.push(UpdatingNode {
                    phase,
                    ..known.clone()
                });
            }
            (Some(known), state, target) => all.push(UpdatingNode {
                phase: phase_now(known, state, node, target),
                machine_set: None,
                ..known.clone()
            }),
            (None, ..) => {}
        }
    }
    all.sort_by(|one, other| one.node.cmp(&other.node));
    all
}

/// How far a node is that was granted something.
fn phase_now(
    known: &UpdatingNode,
    state: &WindowsNodeState,
    node: &Node,
    target: Option<&Grant>,
) -> UpdatePhase {
    let Some(target) = target.filter(|it| known.to == it.version) else {
        return known.phase;
    };
    let fails = matches!(state, WindowsNodeState::Failing(_));
    if runs(node, &target.version) {
        return if fails && is_told(node, Some(target)) {
            UpdatePhase::Failing
        } else {
            phase_of(node, Some(target))
        };
    }
    match InPlaceStep::of(node, &target.version) {
        InPlaceStep::Apply if fails => UpdatePhase::Failing,
        // Once told it is not untold, also if somebody takes the note off that its files are there.
        _ if matches!(known.phase, UpdatePhase::Applying | UpdatePhase::Failing) => {
            UpdatePhase::Applying
        }
        step => step.phase(),
    }
}

fn phase_of(node: &Node, target: Option<&Grant>) -> UpdatePhase {
    let is_draining = matches!(node.request(), DrainRequest::Drain(_));
    if !is_told(node, target) {
        UpdatePhase::Granted
    } else if is_draining {
        UpdatePhase::Draining
    } else {
        UpdatePhase::Applying
    }
}

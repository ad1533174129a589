//! Nodes that are removed, because their instance is listed no more. One that serves needs a permit of the pool first,
//! and its pods leave before anybody lays hands on its machine. What its permit is for stands in the pool's status, and
//! how far its pods are on the Node, so that whoever comes next goes on, or lets pods in again if it is listed again.

use std::fmt;

use evenkeel_api::names::annotation;
use evenkeel_api::notice::Notice;
use evenkeel_api::windows::windows_pool::{UpdatePhase, UpdatingNode};

use super::WindowsNodeState;
use crate::fleet::budget::{DisruptionPermit, WaitReason};
use crate::fleet::node::{DrainRequest, Node, NodePatch};
use crate::machine::phase::Drain;

/// What is next for a node that has a permit to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalStep {
    /// Its pods are asked to leave.
    Ask,
    /// They leave.
    AwaitDrain,
    /// They have left: it is removed.
    Remove,
}

impl RemovalStep {
    /// What is next for `node`.
    pub fn of(node: &Node) -> Self {
        if !is_asked(node) {
            return Self::Ask;
        }
        match node.request() {
            DrainRequest::None if node.claims_permit() && node.unschedulable => Self::Remove,
            // It was answered, and somebody took the permit off the Node since, or let pods in.
            DrainRequest::None => Self::Ask,
            _ => Self::AwaitDrain,
        }
    }

    /// How the pool's status calls it.
    pub fn phase(self) -> UpdatePhase {
        match self {
            Self::Ask => UpdatePhase::Granted,
            Self::AwaitDrain => UpdatePhase::Draining,
            Self::Remove => UpdatePhase::Removing,
        }
    }
}

/// Where a node is on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// It gets its permit now.
    Next,
    /// It has no permit yet, and serves on.
    Waits(WaitReason),
    /// It has its permit.
    Granted(RemovalStep),
}

impl Removal {
    /// Where a node is that asked for a permit.
    pub(super) fn answered(permit: DisruptionPermit) -> Self {
        match permit {
            DisruptionPermit::Granted => Self::Next,
            DisruptionPermit::Waits(why) => Self::Waits(why),
        }
    }

    /// What the removal of `node` waits for; nothing if it waits for nobody.
    pub fn waits_for(&self, node: &Node) -> Option<String> {
        let words = match self {
            Self::Waits(why) => because(why),
            Self::Next | Self::Granted(RemovalStep::Ask) => "its drain starts next".to_owned(),
            Self::Granted(RemovalStep::AwaitDrain) => match node.overdue() {
                Some(overdue) => overdue.to_owned(),
                _ if node.claims_permit() => "its pods must leave first".to_owned(),
                _ => "its drain has not started: maxUnavailable is reached, no maintenance window is open, or the WindowsPool is paused".to_owned(),
            },
            Self::Granted(RemovalStep::Remove) => return None,
        };
        Some(format!("waiting: {words}"))
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("next to be removed"),
            Self::Waits(why) => write!(f, "waiting to be removed: {}", because(why)),
            Self::Granted(_) => f.write_str("being removed"),
        }
    }
}

fn because(why: &WaitReason) -> String {
    match why {
        WaitReason::Paused => "the WindowsPool is paused: resume it with `evenkeel upgrade resume`".to_owned(),
        WaitReason::Unclear => "maxUnavailable of the WindowsPool is not valid: write a number of at least 1, or a percentage such as \"10%\"".to_owned(),
        WaitReason::Full { limit, down } => match down.as_slice() {
            [one] => format!("node {one} is unavailable and maxUnavailable is {limit}"),
            all => format!("nodes {} are unavailable and maxUnavailable is {limit}", all.join(", ")),
        },
        other => other.to_string(),
    }
}

/// Whether pods of a node were asked to leave because it is removed, and were not let in since.
pub fn is_asked(node: &Node) -> bool {
    node.desired_drain.as_deref() == Some(Drain::FOR_REMOVAL)
}

/// Whether hands may be laid on the machine of `node`, of which the pool's status says `entry`: it has a permit for that,
/// and its pods have left.
pub fn is_cleared(entry: Option<&UpdatingNode>, node: &Node) -> bool {
    entry.is_some_and(|it| it.removal) && RemovalStep::of(node) == RemovalStep::Remove
}

/// Where a node is that is removed; nothing if it has no permit yet. A permit that it has for something else counts:
/// it is down, or about to be.
pub(super) fn state(entry: Option<&UpdatingNode>, node: &Node) -> Option<WindowsNodeState> {
    entry.map(|_| WindowsNodeState::Removal(Removal::Granted(RemovalStep::of(node))))
}

/// What the pool's status is to say of a node that is removed; nothing while it has no permit.
pub(super) fn entry(removal: &Removal, node: &Node) -> Option<UpdatingNode> {
    let phase = match removal {
        Removal::Waits(_) => return None,
        Removal::Next => UpdatePhase::Granted,
        Removal::Granted(step) => step.phase(),
    };
    Some(UpdatingNode {
        node: node.name.clone(),
        phase,
        removal: true,
        ..UpdatingNode::default()
    })
}

/// Asks the pods of `node` to leave, if the pool's status has its permit and that was not asked.
pub(super) fn ask(entry: Option<&UpdatingNode>, node: &Node) -> NodePatch {
    if !entry.is_some_and(|it| it.removal) || RemovalStep::of(node) != RemovalStep::Ask {
        return NodePatch::default();
    }
    NodePatch::default()
        .with(annotation::DESIRED_DRAIN, Drain::FOR_REMOVAL)
        .without(annotation::LAST_APPLIED_DRAIN)
}

/// Lets pods back on a `node` that is not removed after all. One that is not ready waits: nobody could use it.
pub(super) fn cancel(node: &Node) -> NodePatch {
    if is_asked(node) && node.ready {
        NodePatch::default().with(annotation::DESIRED_DRAIN, Drain::REMOVAL_CANCELLED)
    } else {
        NodePatch::default()
    }
}

/// What `change` means for people: a removal begins, or is cancelled.
pub fn notice(change: &NodePatch) -> Option<Notice> {
    let asked = change
        .annotations
        .get(annotation::DESIRED_DRAIN)?
        .as_deref();
    if asked == Some(Drain::FOR_REMOVAL) {
        Some(Notice::normal(
            "RemovalBegins",
            "its instance is not listed any more: draining the node, then removing it",
        ))
    } else if asked == Some(Drain::REMOVAL_CANCELLED) {
        Some(Notice::normal(
            "RemovalCancelled",
            "its instance is listed again: the node stays and takes pods again",
        ))
    } else {
        None
    }
}

//! An independent check of what is decided for a pool: it reads Nodes and patches with its own eyes, and shares no code
//! with the planners. Whatever they decide must pass: budget, order and ownership.

use std::collections::BTreeSet;

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::{annotation, autoscaler, taint};
use evenkeel_plan::fleet::autoscaler_marks::Mark;
use evenkeel_plan::fleet::node::{Node, NodePatch};

/// What a rollout may write on a Node; everything else there is somebody else's. With another configuration the reason
/// of the one before goes.
const OF_A_ROLLOUT: [&str; 4] = [
    annotation::DESIRED_CONFIG,
    annotation::VOUCHER,
    annotation::DRIFT,
    annotation::REASON,
];
/// What a drain may write on a Node.
const OF_A_DRAIN: [&str; 10] = [
    annotation::LAST_APPLIED_DRAIN,
    annotation::CORDONED_BY,
    annotation::DRAIN_GRANTED,
    annotation::DRAIN_OWN_PODS,
    annotation::DRAIN_OVERDUE,
    annotation::REASON,
    annotation::AUTOSCALER_ANNOTATIONS,
    autoscaler::SCALE_DOWN_DISABLED,
    autoscaler::DO_NOT_DISRUPT,
    autoscaler::DO_NOT_REPAIR,
];

/// A pool, as its owner sees it.
pub(crate) struct Rules<'a> {
    pub(crate) target: &'a str,
    pub(crate) limit: usize,
    pub(crate) paused: bool,
    /// Whether no window is open.
    pub(crate) closed: bool,
}

/// Which controller decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Rollout,
    Drain,
}

/// What is wrong with `writes` on `nodes`, one after the other, if anything is.
pub(crate) fn faults(
    rules: &Rules<'_>,
    nodes: &[Node],
    writes: &[(String, NodePatch)],
    by: By,
) -> Vec<String> {
    let mut faults = Vec::new();
    // What agents have said counts as it was when this was decided; what is taken adds up, write by write.
    let decided_on = nodes;
    let mut nodes = nodes.to_vec();
    for (name, patch) in writes {
        let Some(at) = nodes.iter().position(|it| it.name == *name) else {
            faults.push(format!("{name} is not a node of the pool"));
            continue;
        };
        let before = nodes.clone();
        let after = patched(&nodes[at], patch);
        faults.extend(ownership(&before[at], patch, by).map(|it| format!("{name}: {it}")));
        let begins = by == By::Rollout && is_told(rules, &after) && !is_told(rules, &before[at]);
        if begins && after.current_config.as_deref() != Some(rules.target) {
            faults.extend(order(rules, decided_on, at).map(|it| format!("{name}: {it}")));
        }
        let is_granted = after.drain_granted.is_some() && before[at].drain_granted.is_none();
        if rules.closed && is_granted {
            faults.push(format!("{name}: gets a permit while no window is open"));
        }
        nodes[at] = after;
        let (was, is) = (taken(rules, &before, by), taken(rules, &nodes, by));
        // One that is down already is not taken down by being told what to run; but no more of these than the limit are
        // told, with all that have a permit.
        let is = if nodes[at].ready {
            is
        } else {
            is.intersection(&permitted_or_down(&nodes))
                .cloned()
                .collect()
        };
        if is.len() > rules.limit && is.len() > was.intersection(&is).count() {
            faults.push(format!(
                "{name}: {is:?} are down or on their way, and {} may be",
                rules.limit
            ));
        }
    }
    faults
}

/// The node with what is written on it, as the API server would have it.
fn patched(node: &Node, patch: &NodePatch) -> Node {
    let mut node = node.clone();
    if let Some(unschedulable) = patch.unschedulable {
        node.unschedulable = unschedulable;
    }
    for (name, value) in &patch.annotations {
        if let Some(at) = autoscaler::ALL.iter().position(|it| it == name) {
            node.autoscalers.found[at] = Mark::read(value.as_deref());
        }
        let field = match *name {
            annotation::DESIRED_CONFIG => &mut node.desired_config,
            annotation::VOUCHER => &mut node.voucher,
            annotation::DRAIN_GRANTED => &mut node.drain_granted,
            annotation::AUTOSCALER_ANNOTATIONS => &mut node.autoscalers.ours,
            annotation::CORDONED_BY => &mut node.cordoned_by,
            annotation::LAST_APPLIED_DRAIN => &mut node.last_applied_drain,
            annotation::REASON => &mut node.reason,
            _ => continue,
        };
        field.clone_from(value);
    }
    if patch.annotations.contains_key(annotation::DRAIN_GRANTED) {
        node.has_permit = node.drain_granted.is_some();
    }
    node
}

fn is_told(rules: &Rules<'_>, node: &Node) -> bool {
    node.desired_config.as_deref() == Some(rules.target)
}

/// Whether it is degraded with what it was told last: a reason that the operator took off is of something else.
fn is_degraded(node: &Node) -> bool {
    node.state == Some(NodeState::Degraded) && node.reason.as_deref() != Some("")
}

/// Who takes from the budget.
fn taken(rules: &Rules<'_>, nodes: &[Node], by: By) -> BTreeSet<String> {
    let takes = |node: &&Node| {
        let is_moving = node.current_config != node.desired_config;
        let fails = is_degraded(node);
        node.has_permit
            || node.drain_granted.is_some()
            || by == By::Rollout && is_told(rules, node) && (is_moving || fails)
    };
    let down = nodes.iter().filter(takes);
    down.map(|node| node.name.clone()).collect()
}

/// Who has a permit or is down.
fn permitted_or_down(nodes: &[Node]) -> BTreeSet<String> {
    let is_it = |node: &&Node| node.has_permit || node.drain_granted.is_some() || !node.ready;
    let found = nodes.iter().filter(is_it);
    found.map(|node| node.name.clone()).collect()
}

/// Nobody writes what is somebody else's.
fn ownership(node: &Node, patch: &NodePatch, by: By) -> Option<String> {
    let allowed: &[&str] = match by {
        By::Rollout => &OF_A_ROLLOUT,
        By::Drain => &OF_A_DRAIN,
    };
    let foreign = patch.annotations.keys().find(|it| !allowed.contains(*it));
    if let Some(foreign) = foreign {
        return Some(format!("{by:?} writes {foreign}"));
    }
    let taint = match by {
        By::Rollout => taint::FIRST_CONFIG,
        By::Drain => taint::DRAINING,
    };
    if let Some(foreign) = patch.taints.keys().find(|it| **it != taint) {
        return Some(format!("{by:?} taints with {foreign}"));
    }
    let reason = patch.annotations.get(annotation::REASON);
    let tells = patch.annotations.contains_key(annotation::DESIRED_CONFIG);
    if by == By::Rollout && reason.is_some_and(|it| !tells || it.as_deref() != Some("")) {
        return Some("a rollout gives a reason".to_owned());
    }
    match (by, patch.unschedulable) {
        (By::Rollout, Some(_)) => Some("a rollout cordons".to_owned()),
        (By::Drain, Some(false)) if node.cordoned_by.as_deref() != Some("drain") => {
            Some("somebody else's cordon is taken off".to_owned())
        }
        _ => None,
    }
}

/// Nobody begins in a paused pool, while somebody fails, while it is degraded itself, or, if it is ready, before the zones
/// before its own.
fn order(rules: &Rules<'_>, nodes: &[Node], at: usize) -> Option<String> {
    let node = &nodes[at];
    if rules.paused {
        return Some("begins in a paused pool".to_owned());
    }
    if rules.closed && node.drain_granted.is_none() {
        return Some("begins while no window is open".to_owned());
    }
    let failing = nodes
        .iter()
        .find(|it| is_told(rules, it) && is_degraded(it));
    if let Some(failing) = failing {
        return Some(format!("begins while {} fails", failing.name));
    }
    let was_moving = node.current_config != node.desired_config;
    if is_degraded(node) && !was_moving {
        return Some("begins although it is degraded".to_owned());
    }
    if node.has_permit || was_moving || !node.ready {
        return None;
    }
    let waits = |other: &&Node| {
        other.zone() < node.zone()
            && other.ready
            && other.current_config.as_deref() != Some(rules.target)
            && !is_degraded(other)
    };
    let earlier = nodes.iter().find(waits)?;
    Some(format!(
        "begins before {} in zone {}",
        earlier.name,
        earlier.zone()
    ))
}

//! Rolling a pool out: who gets the pool's configuration next, who waits and for what, and when to stop.
//!
//! A node that gets it uses the pool's disruption budget until it runs it; whether it then may go down is
//! asked again, of the same [`BudgetUsage`], when its agent asks for a drain.

mod report;

use std::fmt;

use evenkeel_api::names::{annotation, taint};

use crate::excerpt::excerpt;
use crate::fleet::budget::{BudgetUsage, DisruptionPermit, WaitReason, holds_permit};
use crate::fleet::first_config;
use crate::fleet::maintenance::Closed;
use crate::fleet::node::{Node, NodePatch};
use crate::fleet::pool::Pool;
use crate::listing::listed;

pub(crate) use report::told;
pub use report::{PoolCounts, PoolProgress, status, with_policy_problems};

/// How many names are given in a sentence.
const NAMES: usize = 5;

/// Where a node is on its way to the pool's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutState {
    /// It runs it.
    Updated,
    /// It was told to, and is on its way.
    Moving,
    /// It was told to, and cannot; the reason is its agent's.
    Failing(String),
    /// It is the next to update.
    Next,
    /// It updates later.
    Waits(WaitReason),
    /// Others of its zone, or of zones before, come first.
    WaitsForZone(String),
    /// It is degraded on what it has, and would refuse anything new; the reason is its agent's.
    Held(String),
    /// Nobody else begins while nodes fail.
    Stopped,
    /// The pool has no configuration yet.
    NoTarget,
}

impl fmt::Display for RolloutState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Updated => f.write_str("updated"),
            Self::Moving => f.write_str("updating"),
            Self::Failing(why) => write!(f, "failing: {why}"),
            Self::Next => f.write_str("next to update"),
            Self::Waits(why) => write!(f, "waiting: {why}"),
            Self::WaitsForZone(zone) if zone.is_empty() => {
                f.write_str("waiting for nodes without a zone")
            }
            Self::WaitsForZone(zone) => write!(f, "waiting for zone {zone}"),
            Self::Held(why) => write!(f, "degraded at its current configuration: {why}"),
            Self::Stopped => f.write_str("waiting: the rollout has stopped"),
            Self::NoTarget => f.write_str("waiting: the pool has no configuration yet"),
        }
    }
}

/// A node and its state in the rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRollout<'a> {
    /// The node.
    pub node: &'a Node,
    /// Where it is.
    pub state: RolloutState,
}

/// What is to be done for a pool, and the state of its rollout.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rollout<'a> {
    /// All nodes, in the order in which they go.
    pub rollouts: Vec<NodeRollout<'a>>,
    /// What is to be written on nodes now.
    pub writes: Vec<(&'a Node, NodePatch)>,
    /// Why nobody begins although the pool is not paused.
    pub stopped: Option<String>,
    /// How many may be down at once.
    pub limit: usize,
}

/// Whether `node` was told to run something that it does not run.
pub fn is_moving(node: &Node) -> bool {
    node.desired_config.is_some() && node.desired_config != node.current_config
}

/// Decides for one pool, from all of its nodes.
///
/// Nodes go zone by zone, the oldest first. One that is not ready goes before them all: it takes nothing from the budget, and
/// what it waits for may be just this configuration. A node fails when it is degraded with the pool's
/// configuration as its desired one: then nobody else begins. One that is on its way to something else, or was
/// told something else by hand, is told anew; where the budget is used up, it stays at what it has.
pub fn plan<'a>(pool: &Pool, nodes: &[&'a Node]) -> Rollout<'a> {
    // A zone is a label among many: it is looked for once for each node.
    let mut by_zone: Vec<(&'a str, &'a Node)> = nodes.iter().map(|it| (it.zone(), *it)).collect();
    by_zone.sort_by(|(zone, node), (other_zone, other)| {
        let key = |node: &'a Node| (node.created, node.name.as_str());
        zone.cmp(other_zone)
            .then_with(|| key(node).cmp(&key(other)))
    });
    let ordered: Vec<&'a Node> = by_zone.iter().map(|(_, node)| *node).collect();
    let Some(target) = pool.target.as_deref() else {
        let rollout = |node: &&'a Node| NodeRollout {
            node,
            state: RolloutState::NoTarget,
        };
        let rollouts: Vec<_> = ordered.iter().map(rollout).collect();
        return Rollout {
            writes: writes(pool, "", &rollouts),
            rollouts,
            limit: pool.budget.max_unavailable.of(nodes.len()),
            ..Rollout::default()
        };
    };
    let state_of = |node: &Node| state(pool, target, node);
    let failing: Vec<(&str, String)> = ordered
        .iter()
        .filter_map(|node| match state_of(node) {
            Some(RolloutState::Failing(why)) => Some((node.name.as_str(), why)),
            _ => None,
        })
        .collect();
    let told = |node: &Node| is_told(pool, target, node);
    let holds =
        |node: &Node| holds_permit(node) || (told(node) && (is_moving(node) || node.is_degraded()));
    // Who was told and has no permit asks for one, and does not get it as long as others are down.
    let waits = |node: &&&Node| holds(node) && !holds_permit(node) && node.ready;
    let waiting = ordered.iter().filter(waits).count();
    let mut usage =
        BudgetUsage::of(pool.budget, &ordered, holds).behind_nodes_that_are_down(waiting);
    let open = open_zone(&by_zone, &state_of);
    let stopped = (!failing.is_empty()).then(|| stop(target, &failing));
    let mut decided: Vec<Option<RolloutState>> =
        ordered.iter().map(|node| state_of(node)).collect();
    // Whoever is down already comes first, wherever it is: it takes nothing from the budget.
    let mut order: Vec<usize> = (0..ordered.len()).collect();
    order.sort_by_key(|at| (!ordered[*at].has_permit, ordered[*at].ready));
    for at in order {
        let node = ordered[at];
        if decided[at].is_some() {
            continue;
        }
        decided[at] = Some(match open {
            _ if stopped.is_some() => RolloutState::Stopped,
            _ if pool.budget.paused => RolloutState::Waits(WaitReason::Paused),
            _ if pool.budget.unclear => RolloutState::Waits(WaitReason::Unclear),
            _ if let Some(why) = closed_for(pool, node) => {
                RolloutState::Waits(WaitReason::Closed(why))
            }
            _ if node.has_permit => RolloutState::Next,
            // One that is down while others wait for it would otherwise wait for them.
            Some(zone) if zone != by_zone[at].0 && node.ready && !is_moving(node) => {
                RolloutState::WaitsForZone(zone.to_owned())
            }
            _ => match ask(&mut usage, node) {
                DisruptionPermit::Granted => RolloutState::Next,
                DisruptionPermit::Waits(why) => RolloutState::Waits(why),
            },
        });
    }
    let rollouts: Vec<_> = ordered
        .iter()
        .zip(decided)
        .map(|(node, state)| NodeRollout {
            node,
            state: state.unwrap_or(RolloutState::Stopped),
        })
        .collect();
    let writes = writes(pool, target, &rollouts);
    Rollout {
        rollouts,
        writes,
        stopped,
        limit: usage.limit(),
    }
}

/// Why `node` may not begin at this moment, if so. Who is down by our doing has begun.
fn closed_for(pool: &Pool, node: &Node) -> Option<Closed> {
    let has_begun = node.has_permit && node.claims_permit();
    pool.budget.closed.filter(|_| !has_begun)
}

/// Asks for a permit for `node`, unless it has one: then it only uses that.
fn ask<'a>(usage: &mut BudgetUsage<'a>, node: &'a Node) -> DisruptionPermit {
    if holds_permit(node) {
        usage.use_again(node)
    } else {
        usage.ask(node)
    }
}

/// Whether `node` was told by us to run `target`.
fn is_told(pool: &Pool, target: &str, node: &Node) -> bool {
    node.desired_config.as_deref() == Some(target)
        && (!node.is_foreign() || pool.rendered.contains(target))
}

/// The configuration for which a voucher is missing because an earlier version of ours, which wrote none, told `node`
/// to run it: one that we rendered, and that changes nothing more than was begun.
fn adopted<'n>(pool: &Pool, target: &str, node: &'n Node) -> Option<&'n str> {
    let desired = node.desired_config.as_deref().filter(|_| node.is_foreign());
    let is_begun = desired == Some(target) || node.desired_config == node.current_config;
    desired.filter(|it| pool.rendered.contains(*it) && (is_begun || node.claims_permit()))
}

/// The state of a node that does not depend on others; `None` if it waits to be next.
fn state(pool: &Pool, target: &str, node: &Node) -> Option<RolloutState> {
    let told = is_told(pool, target, node);
    let why = || excerpt(node.reason.as_deref().unwrap_or_default());
    match (told, is_moving(node)) {
        (true, _) if node.is_degraded() => Some(RolloutState::Failing(why())),
        (true, true) => Some(RolloutState::Moving),
        (true, false) => Some(RolloutState::Updated),
        (false, false) if node.is_degraded() => Some(RolloutState::Held(why())),
        (false, _) => None,
    }
}

/// The zone that updates now: the first with somebody who waits, or who is on its way and alive. A node
/// that is gone without our permit counts against the budget, but does not keep the other zones waiting.
fn open_zone<'a>(
    by_zone: &[(&'a str, &'a Node)],
    state: &impl Fn(&Node) -> Option<RolloutState>,
) -> Option<&'a str> {
    let keeps = |(_, node): &&(&'a str, &'a Node)| match state(node) {
        None => node.ready || holds_permit(node),
        Some(RolloutState::Moving) => node.ready || node.claims_permit(),
        _ => false,
    };
    by_zone.iter().find(keeps).map(|(zone, _)| *zone)
}

fn stop(target: &str, failing: &[(&str, String)]) -> String {
    let nodes = failing.iter().map(|(node, why)| format!("{node} ({why})"));
    format!(
        "rollout stopped: nodes fail with {target}: {}. It resumes when these nodes recover, or when the pool gets another configuration",
        listed(nodes, NAMES, "; ")
    )
}

/// Tells `node` what to run, and vouches for it in the same write. What its agent said of something else is no more true.
fn tell(node: &Node, config: &str) -> NodePatch {
    let change = NodePatch::default()
        .with(annotation::DESIRED_CONFIG, config)
        .with(annotation::VOUCHER, config);
    if node.is_degraded() {
        change.with(annotation::REASON, "")
    } else {
        change
    }
}

/// What is to be written on nodes: what they are to run, and the pool's settings that they carry.
fn writes<'a>(
    pool: &Pool,
    target: &str,
    rollouts: &[NodeRollout<'a>],
) -> Vec<(&'a Node, NodePatch)> {
    let change = |rollout: &NodeRollout<'a>| {
        let node = rollout.node;
        let mut change = match &rollout.state {
            RolloutState::Next => tell(node, target),
            // It was told something that nobody decided: it stays at what it has, if that is ours.
            RolloutState::Waits(WaitReason::Full { .. } | WaitReason::Closed(_))
                if is_moving(node) =>
            {
                match &node.current_config {
                    Some(current) if !node.is_foreign() || pool.rendered.contains(current) => {
                        tell(node, current)
                    }
                    _ => NodePatch::default(),
                }
            }
            _ => match adopted(pool, target, node) {
                Some(config) => NodePatch::default().with(annotation::VOUCHER, config),
                None => NodePatch::default(),
            },
        };
        if node.drift != pool.drift.into() {
            change = match pool.drift {
                Some(drift) => change.with(annotation::DRIFT, drift.as_str()),
                None => change.without(annotation::DRIFT),
            };
        }
        if let Some(wanted) = first_config::taint_of(pool, node) {
            change = change.with_taint(taint::FIRST_CONFIG, wanted);
        }
        (node, change)
    };
    let changes = rollouts.iter().map(change);
    changes.filter(|(_, change)| !change.is_empty()).collect()
}

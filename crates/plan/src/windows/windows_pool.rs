//! The Windows nodes of a cluster: which of them are ours, what each is to run, who goes next, and what
//! their pool says of that.
//!
//! What a node was granted stands in the pool's status before it is written on the node, so that whatever
//! is found there can be held to it. Under one version nodes only get another hash, one after the other. From one
//! version to another they go in the same order and within the same budget, step by step as in
//! [`crate::windows::upgrade`].

mod grant;
pub mod release;
pub mod removal;
mod report;
pub mod spec;
pub mod trouble;
mod updating;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use evenkeel_api::names::{annotation, cordon};
use evenkeel_api::windows::version::{StatedVersion, Version};
use evenkeel_api::windows::windows_pool::{Strategy, UpdatingNode};

use crate::excerpt::excerpt;
use crate::fleet::budget::{self, BudgetUsage, DisruptionPermit, WaitReason};
use crate::fleet::node::{Node, NodePatch};
use crate::machine::phase::Drain;
use crate::windows::upgrade::in_place::{self, InPlaceStep};
use crate::windows::upgrade::recreate::{self, MachineLedger};
use crate::windows::upgrade::{UpgradeContext, gate, taken_over};

use self::grant::wanted;
use self::removal::Removal;
use self::updating::updating;
pub use grant::{as_written, put_back};
pub use release::Grant;
pub use report::{WindowsCounts, idle, status};
pub use spec::WindowsPool;
pub use trouble::{PoolFailure, TROUBLES};
pub use view::{WindowsNodeProgress, WindowsNodeView, view};

/// Who is named by somebody as ours.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedNodes {
    /// Addresses and host names of `windows-instances`.
    pub addresses: BTreeSet<String>,
    /// Nodes of Machines that run Windows.
    pub nodes: BTreeSet<String>,
}

/// Whether a node is ours to touch: it runs Windows, and an entry, a Machine or an annotation of ours
/// says so. What a readiness rule writes on any node says nothing of the kind.
pub fn is_managed_node(node: &Node, claims: &OwnedNodes) -> bool {
    let Some(windows) = &node.windows else {
        return false;
    };
    let is_marked = windows.version.is_some()
        || windows.desired_version.is_some()
        || windows.desired_services.is_some()
        || windows.current_services.is_some()
        || windows.missing_files.is_some()
        || node.desired_drain.is_some()
        || node.drain_granted.is_some()
        || node.cordoned_by.as_deref() == Some(cordon::AGENT);
    is_marked
        || claims.nodes.contains(&node.name)
        || claims.addresses.contains(&node.name)
        || windows
            .addresses
            .iter()
            .any(|it| claims.addresses.contains(it))
}

/// Whether a node of ours counts for the budget of its pool: those that never served are down, and
/// take nothing from anyone, unless they have or ask for a permit.
pub fn counts(node: &Node, claims: &OwnedNodes) -> bool {
    is_managed_node(node, claims) && (node.has_served() || has_or_requests_permit(node))
}

/// Whether a node may be down by our doing, or asks to be: then it counts, also if it never served.
fn has_or_requests_permit(node: &Node) -> bool {
    node.desired_drain.is_some() || budget::holds_permit(node)
}

/// Where a node is on its way to what it is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowsNodeState {
    /// It runs it.
    Updated,
    /// It never served; whoever configures it tells it what to run.
    New,
    /// It was granted a change, and is on its way.
    Moving,
    /// It was granted a change, or runs what it is to run, and is not well.
    Failing(String),
    /// It is the next to update.
    Next,
    /// It updates later.
    Waits(WaitReason),
    /// Nobody else begins while nodes fail.
    Stopped,
    /// It runs another version, and may not go to this one.
    Refused(PoolFailure),
    /// Nobody knows what it is to run.
    NoTarget,
    /// It is removed.
    Removal(Removal),
}

impl fmt::Display for WindowsNodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Updated => f.write_str("updated"),
            Self::New => f.write_str("being configured for the first time"),
            Self::Moving => f.write_str("updating"),
            Self::Failing(why) => write!(f, "failing: {why}"),
            Self::Next => f.write_str("next to update"),
            Self::Waits(why) => write!(f, "waiting: {why}"),
            Self::Stopped => f.write_str("waiting: other nodes fail"),
            Self::Refused(why) => write!(f, "not upgraded: {}", why.note),
            Self::NoTarget => f.write_str("waiting: the desired version is not known yet"),
            Self::Removal(removal) => removal.fmt(f),
        }
    }
}

/// A node and its state in the rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowsNodeRollout<'a> {
    /// The node.
    pub node: &'a Node,
    /// Where it is.
    pub state: WindowsNodeState,
}

/// A node on its way from one version to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUpgrade<'a> {
    /// The node.
    pub node: &'a Node,
    /// What is done with it now.
    pub step: InPlaceStep,
    /// Why it cannot go on.
    pub fails: Option<String>,
}

/// What is to be done for the pool, and the state of its rollout.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowsRollout<'a> {
    /// All nodes of ours, in the order in which they go.
    pub rollouts: Vec<WindowsNodeRollout<'a>>,
    /// What the pool's status is to say was granted.
    pub updating: Vec<UpdatingNode>,
    /// What is to be written on nodes now: only what that status says already.
    pub writes: Vec<(&'a Node, NodePatch)>,
    /// Nodes that fail, and why: nobody else begins.
    pub stopped: Option<String>,
    /// Nodes on their way to another version, and how far each is.
    pub upgrades: Vec<NodeUpgrade<'a>>,
    /// Nodes whose Machines are to be deleted now, so that new ones come: only what that status says already.
    pub replace: Vec<(&'a Node, String)>,
    /// How many may be down at once.
    pub limit: usize,
}

/// Decides for all Windows nodes of ours.
///
/// `target` is what they are to run, if anybody knows, and `granted` what the pool's status says. Those that
/// are down already come first, then those that somebody left in the middle, then the oldest.
pub fn plan<'a>(
    pool: &WindowsPool,
    target: Option<&Grant>,
    granted: &[UpdatingNode],
    nodes: &[&'a Node],
    context: &UpgradeContext,
) -> WindowsRollout<'a> {
    let mut ordered = nodes.to_vec();
    let granted_to: BTreeMap<&str, &UpdatingNode> =
        granted.iter().map(|it| (it.node.as_str(), it)).collect();
    let entry = |node: &Node| granted_to.get(node.name.as_str()).copied();
    let is_removed = |node: &Node| context.is_removed(node, entry(node));
    // Who is down by our doing, or was asked to be, has a permit already.
    let has_permit = |node: &Node| {
        budget::holds_permit(node) || in_place::is_held(node) || removal::is_asked(node)
    };
    ordered.sort_by_key(|node| {
        (
            !has_permit(node),
            node.ready,
            !is_removed(node),
            is_as_told(node),
            node.created,
            node.name.as_str(),
        )
    });
    let mut decided: Vec<Option<WindowsNodeState>> = ordered
        .iter()
        .map(|node| {
            if is_removed(node) {
                removal::state(entry(node), node)
            } else {
                state(pool, target, entry(node), node, context)
            }
        })
        .collect();
    let failing: Vec<String> = ordered
        .iter()
        .zip(&decided)
        .filter_map(|(node, state)| match state {
            Some(WindowsNodeState::Failing(why)) => Some(format!("{} ({why})", node.name)),
            _ => None,
        })
        .collect();
    let by_name: BTreeMap<&str, &Node> = nodes.iter().map(|it| (it.name.as_str(), *it)).collect();
    let is_replaced = |it: &&UpdatingNode| it.machine_set.is_some();
    let leaving = granted
        .iter()
        .filter(is_replaced)
        .map(|it| it.node.as_str());
    let version = target.map(|it| &it.version);
    let mut ledger = MachineLedger::of(&context.machines, &by_name, &leaving.collect(), version);
    let away = recreate::still_away(granted, &by_name, &ledger);
    let serving: Vec<&Node> = ordered
        .iter()
        .zip(&decided)
        .filter(|(node, state)| {
            **state != Some(WindowsNodeState::New) || has_or_requests_permit(node)
        })
        .map(|(node, _)| *node)
        .collect();
    let moving: BTreeSet<&str> = ordered
        .iter()
        .zip(&decided)
        .filter(|(_, state)| {
            matches!(
                state,
                Some(
                    WindowsNodeState::Moving
                        | WindowsNodeState::Failing(_)
                        | WindowsNodeState::Removal(_)
                )
            )
        })
        .map(|(node, _)| node.name.as_str())
        .collect();
    let holds = |node: &Node| {
        let is_moving = moving.contains(node.name.as_str());
        has_permit(node) || (is_moving && entry(node).is_some())
    };
    let gone: Vec<&str> = away.iter().map(|it| it.node.as_str()).collect();
    let mut usage = BudgetUsage::of(pool.budget, &serving, holds).counting(&gone);
    for (node, decided) in ordered.iter().zip(&mut decided) {
        if decided.is_some() {
            continue;
        }
        let is_other_version = version.is_none_or(|version| !runs(node, version));
        let is_removed = is_removed(node);
        let permit = match context.renewed(pool.strategy, &node.name) {
            Some((_, set)) if is_other_version && !is_removed => ledger.ask(set, node, &mut usage),
            // Its pods left for an upgrade to a version that another one followed.
            _ if node.claims_permit() && asks_for_upgrade(node) => usage.go_on(),
            _ if has_permit(node) => usage.use_again(node),
            _ => usage.ask(node),
        };
        *decided = Some(match permit {
            // It spreads nothing, so nodes that fail stop nobody from it.
            permit if is_removed => WindowsNodeState::Removal(Removal::answered(permit)),
            _ if !failing.is_empty() => WindowsNodeState::Stopped,
            DisruptionPermit::Granted => WindowsNodeState::Next,
            DisruptionPermit::Waits(why) => WindowsNodeState::Waits(why),
        });
    }
    let rollouts: Vec<_> = ordered
        .iter()
        .zip(decided)
        .map(|(node, state)| WindowsNodeRollout {
            node,
            state: state.unwrap_or(WindowsNodeState::Stopped),
        })
        .collect();
    let writes = rollouts.iter().map(|rollout| {
        let change = written(
            target,
            entry(rollout.node),
            rollout,
            context.removals.is_some(),
        );
        (rollout.node, change)
    });
    let upgrades = rollouts.iter().filter_map(|rollout| {
        let target = target.filter(|_| !matches!(rollout.state, WindowsNodeState::Removal(_)))?;
        let is_granted = entry(rollout.node).is_some_and(|it| it.to == target.version);
        let windows = rollout.node.windows.as_ref()?;
        let is_there = windows.runs(&target.version);
        let is_one = is_granted && rollout.state != WindowsNodeState::New && !is_there;
        (is_one || in_place::is_held(rollout.node)).then(|| NodeUpgrade {
            node: rollout.node,
            step: InPlaceStep::of(rollout.node, &target.version),
            fails: match &rollout.state {
                WindowsNodeState::Failing(why) => Some(why.clone()),
                _ => None,
            },
        })
    });
    let replace = rollouts.iter().filter_map(|rollout| {
        let node = rollout.node;
        let is_leaving = |it: &&UpdatingNode| {
            version.is_some_and(|version| it.to == *version) && it.machine_set.is_some()
        };
        let entry = entry(node).filter(is_leaving)?;
        let (machine, set) = context.renewed(pool.strategy, &node.name)?;
        let is_due = rollout.state == WindowsNodeState::Moving && !context.is_going(&node.name);
        let is_same = entry.machine_set.as_deref() == Some(set);
        let goes = is_due && is_same && failing.is_empty() && ledger.renews(set);
        goes.then(|| (node, machine.to_owned()))
    });
    WindowsRollout {
        replace: replace.collect(),
        upgrades: upgrades.collect(),
        writes: writes.filter(|(_, change)| !change.is_empty()).collect(),
        updating: updating(pool, target, &granted_to, &rollouts, context, &away),
        stopped: (!failing.is_empty()).then(|| failing.join("; ")),
        limit: usage.limit(),
        rollouts,
    }
}

/// Whether the operator asks the pods of a node to leave for an upgrade.
fn asks_for_upgrade(node: &Node) -> bool {
    let asked = node.desired_drain.as_deref();
    asked.is_some_and(Drain::is_for_upgrade)
}

/// Whether a node runs what it was told: one that does not was left in the middle.
fn is_as_told(node: &Node) -> bool {
    node.windows.as_ref().is_none_or(|it| {
        (&it.version, &it.current_services) == (&it.desired_version, &it.desired_services)
    })
}

/// The state of a node that does not depend on others; `None` if it waits to be next.
fn state(
    pool: &WindowsPool,
    target: Option<&Grant>,
    entry: Option<&UpdatingNode>,
    node: &Node,
    context: &UpgradeContext,
) -> Option<WindowsNodeState> {
    let windows = node.windows.as_deref()?;
    let Some(target) = target else {
        return Some(WindowsNodeState::NoTarget);
    };
    let is_granted = entry.is_some_and(|it| it.to == target.version);
    let is_old = !runs(node, &target.version);
    if is_old && is_replaced(pool, target, entry, node, context) {
        return Some(WindowsNodeState::Moving);
    }
    // What was never brought to what it was told, and is told so no more, is made anew.
    let is_stranded = entry.is_none() && recreate::is_stranded(node, Some(&target.version));
    if is_stranded && context.renewed(pool.strategy, &node.name).is_some() {
        let refused = refused(None, target, node, pool.strategy, context);
        return refused.map(WindowsNodeState::Refused);
    }
    let trouble = if node.is_degraded() {
        node.reason.as_deref().map(excerpt)
    } else if !node.ready && !node.claims_permit() {
        Some("the node is not ready".to_owned())
    } else if is_granted || in_place::is_held(node) {
        let troubles = context.troubles.get(&node.name).cloned();
        troubles.or_else(|| in_place::overdue(node, context.now))
    } else {
        None
    };
    let well = |state: WindowsNodeState| match &trouble {
        Some(why) => WindowsNodeState::Failing(why.clone()),
        None => state,
    };
    // Its agent writes both at once. If somebody took one away, it is written again; until then it counts as what
    // it was told, unless its agent says that it cannot be that.
    let version = match (&windows.version, &windows.current_services) {
        (None, None) => return Some(WindowsNodeState::New),
        (Some(version), _) => Some(version),
        (None, Some(_)) => {
            let told = windows.desired_version.as_ref();
            told.filter(|_| !node.is_degraded())
        }
    };
    if version.is_some_and(|it| *it == target.version) {
        return match &windows.current_services {
            Some(current) if *current == target.hash && windows.version.is_some() => {
                // Pods are let in first.
                Some(well(if in_place::is_held(node) {
                    WindowsNodeState::Moving
                } else {
                    WindowsNodeState::Updated
                }))
            }
            Some(_) if entry.is_none() && windows.version.is_some() => None,
            _ => Some(well(WindowsNodeState::Moving)),
        };
    }
    if is_granted {
        return Some(well(WindowsNodeState::Moving));
    }
    refused(version, target, node, pool.strategy, context).map(WindowsNodeState::Refused)
}

/// Whether a node runs this version, as its agent says.
fn runs(node: &Node, version: &Version) -> bool {
    node.windows.as_ref().is_some_and(|it| it.runs(version))
}

/// Whether the Machine of a node goes, by whomever, or is to go: another one will replace it.
fn is_replaced(
    pool: &WindowsPool,
    target: &Grant,
    entry: Option<&UpdatingNode>,
    node: &Node,
    context: &UpgradeContext,
) -> bool {
    let is_leaving = |it: &UpdatingNode| it.to == target.version && it.machine_set.is_some();
    let is_renewed = context.renewed(pool.strategy, &node.name).is_some();
    context.is_going(&node.name) || (is_renewed && entry.is_some_and(is_leaving))
}

/// Why a node stays at the version that it runs.
fn refused(
    version: Option<&StatedVersion>,
    target: &Grant,
    node: &Node,
    strategy: Strategy,
    context: &UpgradeContext,
) -> Option<PoolFailure> {
    if context.closed.is_some() {
        return context.closed.clone();
    }
    if node.windows.as_ref().is_some_and(|it| it.is_wmcos()) {
        // Their versions are not counted as ours are.
        return taken_over::refused(node, strategy, context);
    }
    let trouble = |category, note| Some(PoolFailure { category, note });
    if !context.backing.contains_key(&node.name) {
        let version = gate::shown(version);
        let note = format!(
            "it runs {version}, but it is neither listed in windows-instances nor backed by a Machine: list it"
        );
        return trouble(gate::NOT_LISTED, note);
    }
    let why = gate::between(version?, &target.version)?;
    trouble(gate::SKIPS_MAJOR, why)
}

/// What is to be written on a node now. Unless it `is_known` who is removed, nobody's pods are asked to leave for that,
/// nor let in again.
fn written(
    target: Option<&Grant>,
    entry: Option<&UpdatingNode>,
    rollout: &WindowsNodeRollout<'_>,
    is_known: bool,
) -> NodePatch {
    let node = rollout.node;
    let mut change = match wanted(target, entry, rollout) {
        Some(wanted) => wanted.told(node),
        None => NodePatch::default(),
    };
    // What it said of something else is no reason any more.
    if !change.is_empty() && node.is_degraded() {
        change = change.with(annotation::REASON, "");
    }
    let is_removed = matches!(rollout.state, WindowsNodeState::Removal(_));
    let removal = match is_known {
        true if is_removed => removal::ask(entry, node),
        true => removal::cancel(node),
        false => NodePatch::default(),
    };
    change.annotations.extend(removal.annotations);
    let Some(target) = target.filter(|_| !is_removed) else {
        return change;
    };
    let windows = node.windows.as_deref();
    let asked = if rollout.state == WindowsNodeState::Updated {
        in_place::release(node)
    } else if runs(node, &target.version) {
        let is_done = windows.and_then(|it| it.current_services.as_deref()) == Some(&target.hash);
        if is_done && node.ready && in_place::is_held(node) {
            in_place::release(node)
        } else {
            NodePatch::default()
        }
    } else if entry.is_some_and(|it| it.to == target.version && it.machine_set.is_none()) {
        in_place::ask(node, &target.version)
    } else {
        NodePatch::default()
    };
    change.annotations.extend(asked.annotations);
    change
}

//! What the status of the Windows pool says.

use evenkeel_api::fleet::machine_config_pool::Condition;
use evenkeel_api::windows::windows_pool::{WindowsNodeCounts, WindowsPoolStatus, condition};

use super::removal::Removal;
use super::trouble::PoolFailure;
use super::{Grant, WindowsNodeRollout, WindowsNodeState, WindowsPool, WindowsRollout};
use crate::fleet::coexistence::{Coexistence, Half};
use crate::fleet::field_problem::FieldProblem;
use crate::fleet::rollout::told;
use crate::listing::listed;
use crate::windows::upgrade::gate::OF_THE_NODE;

/// How many names are given in a sentence.
const NAMES: usize = 5;

/// How many nodes are how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowsCounts {
    /// All that are ours.
    pub total: usize,
    /// Those that run what they are to run.
    pub updated: usize,
    /// Those on their way, for the first time or again.
    pub updating: usize,
    /// Those that cannot go on.
    pub failing: usize,
    /// Those that served, are not ready, and have no permit to be down.
    pub not_ready: usize,
}

impl WindowsCounts {
    /// Counts.
    pub fn of(round: &WindowsRollout<'_>) -> Self {
        let count = |what: &dyn Fn(&WindowsNodeState) -> bool| {
            let rollouts = round.rollouts.iter();
            rollouts.filter(|rollout| what(&rollout.state)).count()
        };
        Self {
            total: round.rollouts.len(),
            updated: count(&|it| *it == WindowsNodeState::Updated),
            updating: count(&is_on_its_way),
            failing: count(&|it| matches!(it, WindowsNodeState::Failing(_))),
            not_ready: round.rollouts.iter().filter(|it| is_away(it)).count(),
        }
    }
}

fn is_away(rollout: &WindowsNodeRollout<'_>) -> bool {
    rollout.state != WindowsNodeState::New && !rollout.node.ready && !rollout.node.claims_permit()
}

fn is_on_its_way(state: &WindowsNodeState) -> bool {
    matches!(
        state,
        WindowsNodeState::New
            | WindowsNodeState::Moving
            | WindowsNodeState::Next
            | WindowsNodeState::Removal(Removal::Next | Removal::Granted(_))
    )
}

/// The status of the pool; `trouble` says why nobody can go on, if nobody can. Times are not set here.
pub fn status(
    pool: &WindowsPool,
    target: Option<&Grant>,
    round: &WindowsRollout<'_>,
    trouble: Option<&PoolFailure>,
) -> WindowsPoolStatus {
    let counts = WindowsCounts::of(round);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    WindowsPoolStatus {
        version: target
            .map(|it| it.version.clone().into())
            .unwrap_or_default(),
        nodes: WindowsNodeCounts {
            total: number(counts.total),
            updated: number(counts.updated),
            updating: number(counts.updating),
            failing: number(counts.failing),
        },
        updating: round.updating.clone(),
        conditions: vec![
            upgradeable(trouble, round),
            updating(pool, round, counts),
            degraded(pool, round, trouble),
        ],
        ..WindowsPoolStatus::default()
    }
}

/// The condition of a pool whose nodes are left to another operator.
pub fn idle(coexistence: Coexistence) -> Condition {
    told(
        condition::IDLE,
        true,
        coexistence.reason(),
        coexistence.message(Half::Windows),
    )
}

impl WindowsRollout<'_> {
    /// Why nodes stay at what they run, by the first of all reasons, with who they are.
    pub fn refusal(&self) -> Option<PoolFailure> {
        let refused = |rollout: &WindowsNodeRollout<'_>| match &rollout.state {
            WindowsNodeState::Refused(trouble) => Some(trouble.clone()),
            _ => None,
        };
        let first = self.rollouts.iter().find_map(refused)?;
        let same = |rollout: &&WindowsNodeRollout<'_>| {
            refused(rollout).is_some_and(|it| it.category == first.category)
        };
        let names = self.rollouts.iter().filter(same).map(|it| &it.node.name);
        let names = listed(names, NAMES, ", ");
        Some(PoolFailure {
            category: first.category,
            note: format!("{names}: {}", first.note),
        })
    }
}

fn upgradeable(trouble: Option<&PoolFailure>, round: &WindowsRollout<'_>) -> Condition {
    // One whose machine nobody lists, for example, says nothing about the version.
    let is_of_version = |it: &PoolFailure| !OF_THE_NODE.contains(&it.category);
    let refusal = round.refusal().filter(is_of_version);
    match trouble.or(refusal.as_ref()) {
        Some(trouble) => told(
            condition::UPGRADEABLE,
            false,
            trouble.category,
            trouble.note.as_str(),
        ),
        None => told(condition::UPGRADEABLE, true, "AsExpected", ""),
    }
}

fn updating(pool: &WindowsPool, round: &WindowsRollout<'_>, counts: WindowsCounts) -> Condition {
    let kind = condition::UPDATING;
    let moves = counts.updating > 0;
    let moving = round.rollouts.iter().filter(|it| is_on_its_way(&it.state));
    let moving = listed(moving.map(|it| &it.node.name), NAMES, ", ");
    let waits = |rollout: &&WindowsNodeRollout<'_>| {
        matches!(
            rollout.state,
            WindowsNodeState::Waits(_)
                | WindowsNodeState::Stopped
                | WindowsNodeState::Removal(Removal::Waits(_))
        )
    };
    let first = round.rollouts.iter().find(waits);
    let is_stopped = round
        .rollouts
        .iter()
        .any(|it| it.state == WindowsNodeState::Stopped);
    let refused = round.refusal();
    match first {
        _ if round.rollouts.is_empty() => {
            told(kind, false, "NoNodes", "there are no managed Windows nodes")
        }
        Some(_) if is_stopped => {
            let why = round.stopped.as_deref().unwrap_or_default();
            let note = format!("rollout stopped: nodes fail: {why}");
            told(kind, moves, "Stopped", note)
        }
        Some(_) if pool.budget.paused => told(
            kind,
            moves,
            "Paused",
            "spec.paused is true: no node starts to update",
        ),
        Some(_) if let Some(closed) = pool.budget.closed => told(
            kind,
            moves,
            closed.reason(),
            format!("{closed}: no node starts to update"),
        ),
        _ if moves => {
            let note = format!("maxUnavailable is {}; updating: {moving}", round.limit);
            told(kind, true, "RollingOut", note)
        }
        Some(first) => {
            let note = format!("node {}: {}", first.node.name, first.state);
            told(kind, false, "Waiting", note)
        }
        None => match refused {
            Some(refusal) => told(kind, false, refusal.category, refusal.note),
            None => told(kind, false, "Done", ""),
        },
    }
}

fn degraded(
    pool: &WindowsPool,
    round: &WindowsRollout<'_>,
    trouble: Option<&PoolFailure>,
) -> Condition {
    let kind = condition::DEGRADED;
    if let Some(trouble) = trouble {
        return told(kind, true, trouble.category, trouble.note.as_str());
    }
    if let Some(problems) = FieldProblem::listed(&pool.problems) {
        return told(kind, true, "InvalidPool", problems);
    }
    match &round.stopped {
        Some(why) => told(kind, true, "NodesFailing", why.as_str()),
        None => told(kind, false, "AsExpected", ""),
    }
}

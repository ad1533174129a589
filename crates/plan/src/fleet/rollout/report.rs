//! What a pool's status says of a rollout.

use evenkeel_api::fleet::machine_config_pool::{Condition, PoolStatus, condition};

use super::{NAMES, NodeRollout, Rollout, RolloutState, is_moving};
use crate::excerpt::excerpt;
use crate::fleet::budget::holds_permit;
use crate::fleet::field_problem::FieldProblem;
use crate::fleet::pool::Pool;
use crate::fleet::render::RenderProblem;
use crate::listing::listed;

/// How many nodes are how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// All.
    pub total: usize,
    /// Those that run the pool's configuration.
    pub updated: usize,
    /// Those of them that take pods.
    pub ready: usize,
    /// Those that are not ready, or down by our doing.
    pub unavailable: usize,
    /// Those that cannot go on.
    pub degraded: usize,
    /// Those on their way.
    pub moving: usize,
}

impl PoolCounts {
    /// Counts.
    pub fn of(rollout: &Rollout<'_>) -> Self {
        let count = |what: &dyn Fn(&NodeRollout<'_>) -> bool| {
            rollout
                .rollouts
                .iter()
                .filter(|rollout| what(rollout))
                .count()
        };
        let is_updated = |rollout: &NodeRollout<'_>| rollout.state == RolloutState::Updated;
        Self {
            total: rollout.rollouts.len(),
            updated: count(&is_updated),
            ready: count(&|it| is_updated(it) && it.node.ready && !it.node.unschedulable),
            unavailable: count(&|it| !it.node.ready || holds_permit(it.node)),
            degraded: count(&|it| it.node.is_degraded()),
            moving: count(&is_on_its_way),
        }
    }
}

/// How the nodes of a pool are as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolProgress {
    /// There are none.
    NoNodes,
    /// All of them run the pool's configuration.
    AllUpdated,
    /// They do not, or there is no configuration.
    NotAllUpdated,
}

impl PoolProgress {
    /// How they are, where `torn` are nodes that other pools have the same right to.
    pub fn of(pool: &Pool, counts: PoolCounts, torn: &[(&str, Vec<&str>)]) -> Self {
        if counts.total == 0 && torn.is_empty() {
            Self::NoNodes
        } else if pool.target.is_some() && counts.updated == counts.total {
            Self::AllUpdated
        } else {
            Self::NotAllUpdated
        }
    }

    /// The reason of the condition.
    const fn as_str(self) -> &'static str {
        match self {
            Self::NoNodes => "NoNodes",
            Self::AllUpdated => "AllUpdated",
            Self::NotAllUpdated => "NotAllUpdated",
        }
    }
}

fn is_on_its_way(rollout: &NodeRollout<'_>) -> bool {
    matches!(rollout.state, RolloutState::Moving | RolloutState::Next)
        || (is_moving(rollout.node) && !rollout.node.is_degraded())
}

/// The status of `pool`: `torn` are nodes that other pools have the same right to, and `render` says
/// why its configuration cannot be made, if it cannot. Times are not set here.
pub fn status(
    pool: &Pool,
    rollout: &Rollout<'_>,
    torn: &[(&str, Vec<&str>)],
    render: Option<&RenderProblem>,
) -> PoolStatus {
    let counts = PoolCounts::of(rollout);
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let is_updated = pool.target.is_some() && counts.updated == counts.total;
    let node_degraded = node_degraded(rollout, torn);
    let render_degraded = match render {
        Some(problem) => {
            let note = format!("pool {}: {}", pool.name, problem.note);
            told(condition::RENDER_DEGRADED, true, problem.category, note)
        }
        None => told(condition::RENDER_DEGRADED, false, "Rendered", ""),
    };
    let parts = [&node_degraded, &render_degraded];
    let degraded = if let Some(problems) = FieldProblem::listed(&pool.problems) {
        let note = format!("pool {}: {problems}", pool.name);
        told(condition::DEGRADED, true, "InvalidPool", note)
    } else if let Some(part) = parts.into_iter().find(|it| it.status == "True") {
        told(
            condition::DEGRADED,
            true,
            &part.reason,
            part.message.as_str(),
        )
    } else {
        told(condition::DEGRADED, false, "AsExpected", "")
    };
    PoolStatus {
        machine_count: number(counts.total),
        updated_machine_count: number(counts.updated),
        ready_machine_count: number(counts.ready),
        unavailable_machine_count: number(counts.unavailable),
        degraded_machine_count: number(counts.degraded),
        conditions: vec![
            updated(
                pool,
                counts,
                PoolProgress::of(pool, counts, torn),
                is_updated,
            ),
            updating(pool, rollout, counts, is_updated),
            degraded,
            node_degraded,
            render_degraded,
        ],
        ..PoolStatus::default()
    }
}

/// The same, with what makes no sense in the cluster's disruption policy.
#[must_use]
pub fn with_policy_problems(mut status: PoolStatus, problems: &[String]) -> PoolStatus {
    if !problems.is_empty() {
        let named = listed(problems.iter().cloned(), NAMES, "; ");
        let note = format!("{named}; what these entries name reboots");
        let kind = condition::DISRUPTION_POLICY_INVALID;
        let condition = told(kind, true, "InvalidEntries", note);
        status.conditions.push(condition);
    }
    status
}

fn updated(pool: &Pool, counts: PoolCounts, progress: PoolProgress, is_updated: bool) -> Condition {
    let target = pool.target.as_deref();
    let note = match progress {
        PoolProgress::NoNodes => {
            let why = match &pool.node_selector {
                None => "spec.nodeSelector is missing, so the pool has no nodes",
                Some(_) => "spec.nodeSelector selects no node",
            };
            format!("pool {}: {why}", pool.name)
        }
        PoolProgress::AllUpdated => {
            let target = target.unwrap_or_default();
            format!("all {} nodes run {target}", counts.total)
        }
        PoolProgress::NotAllUpdated => {
            let target = target.unwrap_or("the pool's configuration, which is not rendered yet");
            format!("{} of {} nodes run {target}", counts.updated, counts.total)
        }
    };
    told(condition::UPDATED, is_updated, progress.as_str(), note)
}

fn updating(pool: &Pool, rollout: &Rollout<'_>, counts: PoolCounts, is_updated: bool) -> Condition {
    let kind = condition::UPDATING;
    let moves = if counts.moving == 0 {
        String::new()
    } else {
        let moving = rollout
            .rollouts
            .iter()
            .filter(|rollout| is_on_its_way(rollout));
        let names = moving.map(|rollout| rollout.node.name.clone());
        format!("; updating: {}", listed(names, NAMES, ", "))
    };
    let still =
        |reason: &str, note: &str| told(kind, counts.moving > 0, reason, format!("{note}{moves}"));
    if pool.target.is_none() {
        told(
            kind,
            false,
            "NoConfiguration",
            "the pool has no configuration yet",
        )
    } else if let Some(why) = &rollout.stopped {
        still("Stopped", why)
    } else if is_updated {
        told(kind, false, "Done", "")
    } else if pool.budget.paused {
        still("Paused", "spec.paused is true: no node starts to update")
    } else if pool.budget.unclear {
        still(
            "InvalidPool",
            "spec.maxUnavailable is not valid: no node starts to update",
        )
    } else if let Some(closed) = pool.budget.closed {
        still(
            closed.reason(),
            &format!("{closed}: no node starts to update"),
        )
    } else if counts.moving > 0 {
        let note = format!("maxUnavailable is {}{moves}", rollout.limit);
        told(kind, true, "RollingOut", note)
    } else {
        let mut waits = rollout
            .rollouts
            .iter()
            .filter(|it| it.state != RolloutState::Updated);
        let first = waits
            .next()
            .map(|it| format!("node {}: {}", it.node.name, it.state));
        told(kind, false, "Waiting", first.unwrap_or_default())
    }
}

fn node_degraded(rollout: &Rollout<'_>, torn: &[(&str, Vec<&str>)]) -> Condition {
    let kind = condition::NODE_DEGRADED;
    if !torn.is_empty() {
        let named = torn
            .iter()
            .map(|(node, pools)| format!("{node} (also in {})", pools.join(", ")));
        let note = format!(
            "spec.nodeSelector selects nodes that other pools select too, so they are in no pool: {}",
            listed(named, NAMES, ", ")
        );
        return told(kind, true, "OverlappingPools", note);
    }
    let degraded = || rollout.rollouts.iter().filter(|it| it.node.is_degraded());
    let count = degraded().count();
    if count == 0 {
        return told(kind, false, "NoneDegraded", "");
    }
    let named = degraded().map(|it| {
        let why = excerpt(it.node.reason.as_deref().unwrap_or_default());
        format!("{} ({why})", it.node.name)
    });
    let note = format!(
        "{count} of {} nodes are degraded: {}",
        rollout.rollouts.len(),
        listed(named, NAMES, ", ")
    );
    told(kind, true, "NodesDegraded", note)
}

/// A condition that is so, or is not; since when is for whoever writes it.
pub(crate) fn told(kind: &str, is_so: bool, reason: &str, message: impl Into<String>) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if is_so { "True" } else { "False" }.to_owned(),
        last_transition_time: None,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

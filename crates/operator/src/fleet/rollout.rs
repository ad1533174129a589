//! Rolls the configuration of every pool out to its nodes, and says how that goes.
//! `evenkeel_plan::fleet::rollout` decides who goes next; here it is written and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_api::fleet::machine_config_pool::{Configuration, PoolStatus, condition};
use evenkeel_daemon::panics::contain;
use evenkeel_plan::fleet::drain::DrainSettings;
use evenkeel_plan::fleet::field_problem::FieldProblem;
use evenkeel_plan::fleet::node::{Node, NodePatch};
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::fleet::pool::{Assignment, Pool};
use evenkeel_plan::fleet::rollout::{self, PoolCounts, PoolProgress, RolloutState};

use crate::conditions::dated;
use crate::fleet::metrics::PoolMetrics;

use crate::fleet::pools::ObservedPool;
use crate::said::Said;
use crate::shared::Shared;
use crate::triggers::Triggers;

/// A pool's status is written at most once in this time.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// Conditions that we write; those of others stay.
const OURS: [&str; 7] = [
    condition::UPDATED,
    condition::UPDATING,
    condition::DEGRADED,
    condition::NODE_DEGRADED,
    condition::RENDER_DEGRADED,
    condition::DISRUPTION_POLICY_INVALID,
    condition::IDLE,
];

/// Rolls out until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, metrics: &PoolMetrics, drain: DrainSettings) {
    let mut controller = RolloutController {
        shared,
        metrics,
        drain,
        memory: BTreeMap::new(),
    };
    let mut triggers = Triggers::until(&shared.stop)
        .and(shared.nodes.store().changes())
        .and(shared.pools.store().changes())
        .and(shared.pools.renderings())
        .and(shared.policies.changes())
        .and(shared.configs.store().changes())
        .and(shared.coexistence.changes())
        .and(shared.disruption_policies.changes())
        .and(shared.permits.changes());
    let mut pause: Option<Duration> = None;
    while triggers.next(pause).await {
        let is_known = shared.is_listed() && shared.configs.store().is_listed();
        pause = if !is_known || shared.coexistence.is_idle() {
            None
        } else {
            controller.round().await
        };
    }
}

struct RolloutController<'s> {
    shared: &'s Shared,
    metrics: &'s PoolMetrics,
    /// How nodes are drained, where a pool does not say.
    drain: DrainSettings,
    /// What is remembered of a pool. Whoever takes over does without.
    memory: BTreeMap<String, Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// When its status was written last.
    written: Option<Instant>,
    /// What was said of it, by category: once is enough.
    said: Said,
    /// Nodes that were on their way when it was looked at last.
    moving: BTreeSet<String>,
}

/// What was decided for a pool.
struct PoolDecision {
    writes: Vec<(NodeFacts, NodePatch)>,
    status: PoolStatus,
    counts: PoolCounts,
    progress: PoolProgress,
    /// Whether other pools have the same right to some of its nodes.
    is_torn: bool,
    stopped: Option<String>,
    moving: BTreeSet<String>,
    /// Nodes that were on their way and are no more.
    gone: Vec<String>,
}

impl RolloutController<'_> {
    /// Observe, plan, apply, report: for all pools. Says when it is to be done again if nothing changes.
    async fn round(&mut self) -> Option<Duration> {
        let pools = self.shared.pools.held();
        self.memory.retain(|name, _| {
            let stays = pools.iter().any(|it| it.pool.name == *name);
            if !stays {
                self.metrics.forget(name);
            }
            stays
        });
        let decisions = self.decide(&pools);
        let mut again = None;
        for (seen, decision) in pools.iter().zip(decisions) {
            let Some(decision) = decision else {
                continue;
            };
            let soonest = |one: Option<Duration>, other: Option<Duration>| match (one, other) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            self.metrics
                .pool(&seen.pool.name, decision.counts, decision.stopped.is_some());
            self.announce(seen, &decision);
            let (nodes, pool) = (&self.shared.nodes, &seen.pool.name);
            let what = "the node's desired configuration";
            let (told, failed) = nodes.write_all(Some(pool), what, decision.writes).await;
            self.metrics.told(told.len());
            again = soonest(
                soonest(again, failed),
                self.say(seen, decision.status).await,
            );
        }
        again
    }

    /// Decides for all pools, from one look at all nodes.
    fn decide(&self, pools: &[ObservedPool]) -> Vec<Option<PoolDecision>> {
        let wanted: Vec<Pool> = self.shared.configs.store().look(|all| {
            let with_configs = |seen: &ObservedPool| {
                let configs = all
                    .values()
                    .map(|it| (it.config.name.as_str(), it.config.is_of(&seen.uid)));
                seen.pool.clone().with_configs(configs)
            };
            pools.iter().map(with_configs).collect()
        });
        let policy_problems = self.shared.disruption_policies.problems();
        self.shared.nodes.store().look(|all| {
            let permitted = self.shared.permits.on(all);
            let node = |seen| permitted.node(seen);
            let assignment = Assignment::of(&wanted, all.values().map(node));
            let decide = |pool: &Pool, nodes: &[&Node]| {
                let rollout = rollout::plan(pool, nodes);
                let torn = assignment.torn_from(&pool.name);
                let problem = self.shared.pools.problem(&pool.name);
                let counts = PoolCounts::of(&rollout);
                let is_moving = |it: &&rollout::NodeRollout<'_>| {
                    matches!(it.state, RolloutState::Moving | RolloutState::Next)
                };
                let moving = rollout.rollouts.iter().filter(is_moving);
                let before = self.memory.get(&pool.name).map(|it| &it.moving);
                let before = before.into_iter().flatten();
                let seen = |node: &Node| all.get(&node.name).cloned();
                let writes = rollout.writes.iter();
                PoolDecision {
                    writes: writes
                        .filter_map(|(node, change)| Some((seen(node)?, change.clone())))
                        .collect(),
                    status: rollout::with_policy_problems(
                        rollout::status(pool, &rollout, &torn, problem.as_ref()),
                        &policy_problems,
                    ),
                    counts,
                    progress: PoolProgress::of(pool, counts, &torn),
                    is_torn: !torn.is_empty(),
                    stopped: rollout.stopped.clone(),
                    moving: moving.map(|it| it.node.name.clone()).collect(),
                    gone: before
                        .filter(|it| !all.contains_key(*it))
                        .cloned()
                        .collect(),
                }
            };
            // A pool that nobody can decide about stays as it is, and the others go on.
            let decisions = wanted
                .iter()
                .zip(&assignment.members)
                .map(|(pool, nodes)| contain("rollout", &pool.name, || decide(pool, nodes)));
            decisions.collect()
        })
    }

    /// Writes the status of a pool, unless it says so already or was written just now.
    async fn say(&mut self, seen: &ObservedPool, status: PoolStatus) -> Option<Duration> {
        let status = completed(status, seen);
        if status == seen.status {
            return None;
        }
        let memory = self.memory.entry(seen.pool.name.clone()).or_default();
        let since = memory.written.map_or(STATUS_PAUSE, |it| it.elapsed());
        if since < STATUS_PAUSE {
            return Some(STATUS_PAUSE.saturating_sub(since));
        }
        // What was said meanwhile, by us too, is a later version.
        let newest = |all: &BTreeMap<String, ObservedPool>| all.get(&seen.pool.name).cloned();
        let newest = self.shared.pools.store().look(newest)?;
        if newest.uid != seen.uid {
            return None;
        }
        memory.written = Some(Instant::now());
        match self.shared.pools.say(&newest, &status).await {
            Ok(()) => None,
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(kube::Error::Api(status)) if status.code == 409 => Some(STATUS_PAUSE),
            Err(error) => {
                let pool = &seen.pool.name;
                tracing::warn!(pool, "cannot write the pool's status, will retry: {error}");
                Some(STATUS_PAUSE)
            }
        }
    }

    /// What people should hear, once.
    fn announce(&mut self, seen: &ObservedPool, decision: &PoolDecision) {
        let memory = self.memory.entry(seen.pool.name.clone()).or_default();
        let said = &mut memory.said;
        let condition = |kind: &str| decision.status.condition(kind).cloned().unwrap_or_default();
        let problems = FieldProblem::listed(&seen.pool.problems)
            .map(|problems| format!("pool {}: {problems}", seen.pool.name));
        let updated = condition(condition::UPDATED);
        let (nothing, done) = match decision.progress {
            PoolProgress::NoNodes => (Some(updated.message), None),
            PoolProgress::AllUpdated => (None, Some(updated.message)),
            PoolProgress::NotAllUpdated => (None, None),
        };
        let torn = decision
            .is_torn
            .then(|| condition(condition::NODE_DEGRADED).message);
        // Others may go later: what was said of these is not forgotten before.
        let gone = (!decision.gone.is_empty()).then(|| {
            let message = format!(
                "nodes were deleted while they were updating: {}; the rollout does not wait for them",
                decision.gone.join(", ")
            );
            said.warning("NodeGone", Some(message))
        });
        let policy = &seen.pool.policy;
        let timeout = seen.pool.drain_settings(self.drain).timeout;
        let short_windows = self.shared.policies.short_windows(policy, timeout);
        let notices = [
            said.normal("WindowsOverridden", policy.notice()),
            said.warning("ShortWindows", short_windows),
            said.warning("RolloutStopped", decision.stopped.clone()),
            said.warning("InvalidPool", problems),
            said.warning("NoNodes", nothing),
            said.warning("OverlappingPools", torn),
            said.normal("RolloutDone", done),
            gone.flatten(),
        ];
        for notice in notices.into_iter().flatten() {
            let events = &self.shared.events;
            events.notify(seen.reference(), "RollOut", notice);
        }
        memory.moving.clone_from(&decision.moving);
    }
}

/// The status with what only its predecessor knows: since when, and what others have said.
fn completed(mut status: PoolStatus, seen: &ObservedPool) -> PoolStatus {
    let before = &seen.status;
    status.conditions = dated(status.conditions, &before.conditions, &OURS);
    status.observed_generation = seen.generation;
    status.permits.clone_from(&before.permits);
    let is_updated = status
        .condition(condition::UPDATED)
        .is_some_and(|it| it.status == "True");
    status.configuration = if is_updated && !seen.configuration.name.is_empty() {
        Some(seen.configuration.clone())
    } else {
        before
            .configuration
            .clone()
            .filter(|it: &Configuration| !it.name.is_empty())
    };
    status
}

//! Cares for Windows nodes of ours: what is written on them is what they were granted, they go to new services
//! one after the other, and their pool says how that goes. `evenkeel_plan::windows::windows_pool` decides; here it is
//! written and reported. Nodes that are not ours are not looked at.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_api::notice::Notice;
use evenkeel_api::windows::windows_pool::{UpdatingNode, WindowsPoolStatus, condition};
use evenkeel_plan::fleet::field_problem::FieldProblem;
use evenkeel_plan::fleet::node::{Node, NodePatch};
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::windows::upgrade::UpgradeContext;
use evenkeel_plan::windows::upgrade::gate::{self, Kubernetes};
use evenkeel_plan::windows::upgrade::in_place::{self, InPlaceStep};
use evenkeel_plan::windows::upgrade::recreate::{self, MachineNotice};
use evenkeel_plan::windows::windows_pool::{
    self, Grant, PoolFailure, WindowsCounts, WindowsNodeState, is_managed_node, removal,
};
use futures::StreamExt;

use crate::conditions::dated;
use crate::fleet::nodes::reference;

use crate::said::Said;
use crate::shared::Shared;
use crate::triggers::Triggers;
use crate::windows::instances::Fleet;
use crate::windows::metrics::WindowsMetrics;
use crate::windows::pool::ObservedWindowsPool;
use crate::windows::upgrade_context::{ClusterGate, context};

/// The pool's status is written at most once in this time.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// How long after the API server failed it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often nodes are looked at that are being upgraded, if nothing changes.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// How many nodes are written at once.
const WRITES: usize = 16;

/// Cares for them until the program is asked to stop.
pub(crate) async fn run(
    shared: &Shared,
    fleet: &Fleet,
    metrics: &WindowsMetrics,
    minimum: Kubernetes,
) {
    let mut controller = WindowsController {
        shared,
        fleet,
        metrics,
        gate: ClusterGate::new(shared.client.clone(), minimum),
        failed: BTreeMap::new(),
        heard: Vec::new(),
        written: None,
        granted: None,
        said: Said::default(),
    };
    let triggers = Triggers::until(&shared.stop)
        .and(shared.nodes.store().changes())
        .and(shared.coexistence.changes())
        .and(fleet.records.changes())
        .and(fleet.machines.changes())
        .and(fleet.machine_sets.changes())
        .and(fleet.removals.changes())
        // Where there is no pool, nothing else tells that a permit was given back.
        .and(shared.permits.changes());
    let mut triggers = shared.windows.wake(triggers);
    let mut pause: Option<Duration> = None;
    while triggers.next(pause).await {
        pause = if !shared.knows_windows() {
            None
        } else if shared.coexistence.is_idle_for_windows() {
            controller.stay_idle().await
        } else {
            controller.round().await
        };
    }
}

struct WindowsController<'s> {
    shared: &'s Shared,
    fleet: &'s Fleet,
    metrics: &'s WindowsMetrics,
    gate: ClusterGate,
    /// Nodes whose upgrade fails, with why: once is enough to say so.
    failed: BTreeMap<String, String>,
    /// What was said of Machines and `MachineSets`.
    heard: Vec<MachineNotice>,
    /// When the pool's status was written last.
    written: Option<Instant>,
    /// What was granted, where there is no pool to say so.
    granted: Option<Vec<UpdatingNode>>,
    /// What was said, by category: once is enough.
    said: Said,
}

/// What was decided.
struct WindowsDecision {
    writes: Vec<(NodeFacts, NodePatch)>,
    status: WindowsPoolStatus,
    counts: WindowsCounts,
    /// What of the pool makes no sense.
    problems: Option<String>,
    /// Who lets nodes begin outside the maintenance windows, and why.
    overridden: Option<String>,
    stopped: Option<String>,
    refusal: Option<PoolFailure>,
    /// Machines that are to be deleted, by `namespace/name`, and why.
    replace: Vec<(String, String)>,
    /// What people should hear of Machines and `MachineSets`.
    notices: Vec<MachineNotice>,
    /// Nodes on their way to another version: how far, and why not further.
    upgrades: Vec<(NodeFacts, InPlaceStep, Option<String>)>,
    /// What the removal of nodes waits for.
    waiting: BTreeMap<String, String>,
}

impl WindowsController<'_> {
    /// Observe, plan, apply, report: once. Says when it is to be done again if nothing changes.
    async fn round(&mut self) -> Option<Duration> {
        let (target, trouble) = match self.shared.windows.target() {
            Ok(target) => (Some(target), None),
            Err(trouble) => (None, trouble),
        };
        let context = context(self.fleet, self.gate.closed().await);
        let seen = self.shared.windows.seen();
        let decision = self.decide(seen.as_ref(), target.as_ref(), trouble.as_ref(), &context);
        self.metrics.nodes(decision.counts);
        self.metrics.trouble(trouble.as_ref());
        self.metrics.refusal(decision.refusal.as_ref());
        let upgrades = decision.upgrades.iter();
        self.metrics
            .upgrades(upgrades.map(|(_, step, fails)| (*step, fails.is_some())));
        self.fleet.removals.wait(decision.waiting.clone());
        self.announce(&decision, trouble.as_ref());
        self.announce_failures(&decision.upgrades);
        let upgrades = !decision.upgrades.is_empty();
        self.announce_machines(&decision.notices);
        let replaced = self.replace(decision.replace).await;
        let told = self.tell(decision.writes, target.as_ref()).await;
        let told = told.or(replaced);
        // That something takes too long nobody tells us.
        let told = told.or(upgrades.then_some(LOOK_AGAIN));
        let said = if let Some(seen) = &seen {
            self.say(seen, decision.status).await
        } else {
            let differs = self.granted.as_ref() != Some(&decision.status.updating);
            self.granted = Some(decision.status.updating);
            // There is nobody to tell, so nothing will wake us.
            differs.then_some(Duration::ZERO)
        };
        match (told, said) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    fn decide(
        &self,
        seen: Option<&ObservedWindowsPool>,
        target: Option<&Grant>,
        trouble: Option<&PoolFailure>,
        context: &UpgradeContext,
    ) -> WindowsDecision {
        let pool = seen.map(|it| it.pool.clone()).unwrap_or_default();
        self.shared.nodes.store().look(|all| {
            let claims = self.shared.windows.claims();
            let permitted = self.shared.permits.on(all);
            let nodes = all.values().map(|seen| permitted.node(seen));
            let nodes: Vec<&Node> = nodes.filter(|node| is_managed_node(node, &claims)).collect();
            let granted = match (seen, &self.granted) {
                (Some(seen), _) => seen.status.updating.clone(),
                (None, Some(granted)) => granted.clone(),
                (None, None) => windows_pool::as_written(target, &nodes),
            };
            let round = windows_pool::plan(&pool, target, &granted, &nodes, context);
            let upgrades = round.upgrades.iter().filter_map(|it| {
                let seen = all.get(&it.node.name)?.clone();
                Some((seen, it.step, it.fails.clone()))
            });
            let waiting = round.rollouts.iter().filter_map(|rollout| match &rollout.state {
                WindowsNodeState::Removal(removal) => {
                    Some((rollout.node.name.clone(), removal.waits_for(rollout.node)?))
                }
                _ => None,
            });
            let writes = round.writes.iter();
            WindowsDecision {
                writes: writes
                    .filter_map(|(node, change)| {
                        Some((all.get(&node.name)?.clone(), change.clone()))
                    })
                    .collect(),
                status: windows_pool::status(&pool, target, &round, trouble),
                counts: WindowsCounts::of(&round),
                problems: FieldProblem::listed(&pool.problems).filter(|_| trouble.is_none()),
                overridden: pool.policy.notice(),
                stopped: round.stopped.clone(),
                refusal: round.refusal(),
                notices: recreate::notices(&pool, target, &nodes, context),
                replace: round.replace.iter().map(|(node, machine)| {
                    let set = context.machines.of_node(&node.name).and_then(|it| it.set.clone());
                    let version = target.map(|it| it.version.to_string()).unwrap_or_default();
                    let set = set.unwrap_or_default();
                    (machine.clone(), format!("deleted, so that MachineSet {set} replaces node {} with a new one that runs {version}", node.name))
                }).collect(),
                upgrades: upgrades.collect(),
                waiting: waiting.collect(),
            }
        })
    }

    /// Writes on nodes what they are to run.
    async fn tell(
        &self,
        writes: Vec<(NodeFacts, NodePatch)>,
        target: Option<&Grant>,
    ) -> Option<Duration> {
        let answers: Vec<_> = futures::stream::iter(writes)
            .map(async |(seen, change)| {
                let written = self.shared.nodes.write(&seen, &change).await;
                (seen, change, written)
            })
            .buffer_unordered(WRITES)
            .collect()
            .await;
        let mut again = None;
        for (seen, change, written) in answers {
            let node = &seen.node.name;
            match written {
                Ok(()) => {
                    tracing::info!(node, "wrote on the node: {:?}", change.annotations);
                    let events = &self.shared.events;
                    if let Some(notice) = removal::notice(&change) {
                        events.notify(reference(&seen), "Remove", notice);
                    } else if let Some(notice) = in_place::notice(&seen.node, &change, target) {
                        events.notify(reference(&seen), "Upgrade", notice);
                    }
                    if let Some(notice) = windows_pool::put_back(&seen.node, &change) {
                        self.metrics.put_back();
                        events.notify(reference(&seen), "PutBack", notice);
                    }
                }
                // Somebody else wrote to it, or it is gone: the watch will show it.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => {
                    tracing::warn!(
                        node,
                        "cannot write the node's desired version, will retry: {error}"
                    );
                    again = Some(AGAIN);
                }
            }
        }
        again
    }

    /// Writes the status of the pool, unless it says so already or was written just now.
    async fn say(
        &mut self,
        seen: &ObservedWindowsPool,
        status: WindowsPoolStatus,
    ) -> Option<Duration> {
        let status = completed(status, seen);
        if status == seen.status {
            return None;
        }
        let since = self.written.map_or(STATUS_PAUSE, |it| it.elapsed());
        if since < STATUS_PAUSE {
            return Some(STATUS_PAUSE.saturating_sub(since));
        }
        self.written = Some(Instant::now());
        match self.shared.windows.say(seen, &status).await {
            Ok(()) => None,
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(kube::Error::Api(status)) if status.code == 409 => Some(STATUS_PAUSE),
            Err(error) => {
                tracing::warn!("cannot write the status of the WindowsPool, will retry: {error}");
                Some(STATUS_PAUSE)
            }
        }
    }

    /// Says that nothing is done.
    async fn stay_idle(&mut self) -> Option<Duration> {
        let seen = self.shared.windows.seen()?;
        let coexistence = self.shared.coexistence.windows()?;
        let mut status = seen.status.clone();
        status.conditions.retain(|it| it.kind != condition::IDLE);
        status.conditions.push(windows_pool::idle(coexistence));
        self.say(&seen, status).await
    }

    /// Deletes Machines, so that new ones come.
    async fn replace(&self, machines: Vec<(String, String)>) -> Option<Duration> {
        let mut again = None;
        for (name, message) in machines {
            let Some(machine) = self.fleet.machines.named(&name) else {
                continue;
            };
            match self.fleet.machines.delete(&machine).await {
                Ok(()) => {
                    let notice = Notice::normal("MachineReplaced", message);
                    let events = &self.shared.events;
                    events.notify(machine.reference(), "Upgrade", notice);
                }
                Err(error) => {
                    tracing::warn!(
                        machine = name,
                        "cannot delete the Machine, will retry: {error}"
                    );
                    again = Some(AGAIN);
                }
            }
        }
        again
    }

    /// Says what people should hear of Machines and `MachineSets`, once.
    fn announce_machines(&mut self, notices: &[MachineNotice]) {
        for it in notices.iter().filter(|it| !self.heard.contains(it)) {
            let machine = self.fleet.machines.named(&it.object);
            let object = if it.is_set {
                self.fleet.machine_sets.reference(&it.object)
            } else {
                machine.map(|it| it.reference())
            };
            if let Some(object) = object {
                self.shared
                    .events
                    .notify(object, "Upgrade", it.notice.clone());
            }
        }
        self.heard = notices.to_vec();
    }

    /// Says of every node whose upgrade fails that it does, once for each reason.
    fn announce_failures(&mut self, upgrades: &[(NodeFacts, InPlaceStep, Option<String>)]) {
        let mut failed = BTreeMap::new();
        for (seen, step, why) in upgrades {
            let Some(why) = why else { continue };
            let name = &seen.node.name;
            if self.failed.get(name) != Some(why) {
                let phase = step.phase().as_str();
                let message =
                    format!("the upgrade fails in phase {phase}, and no other node starts: {why}");
                let notice = Notice::warning("UpgradeFailing", message);
                let events = &self.shared.events;
                events.notify(reference(seen), "Upgrade", notice);
            }
            failed.insert(name.clone(), why.clone());
        }
        self.failed = failed;
    }

    /// What people should hear, once.
    fn announce(&mut self, decision: &WindowsDecision, trouble: Option<&PoolFailure>) {
        let refusal = decision.refusal.as_ref().filter(|_| trouble.is_none());
        let said_now = |failure: Option<&PoolFailure>, category| {
            let failure = failure.filter(|it| it.category == category);
            failure.map(|it| it.note.clone())
        };
        let said = &mut self.said;
        let mut notices = Vec::new();
        for category in windows_pool::TROUBLES {
            notices.push(said.warning(category, said_now(trouble, category)));
        }
        for category in gate::REFUSALS {
            notices.push(said.warning(category, said_now(refusal, category)));
        }
        notices.push(said.warning("NodesFailing", decision.stopped.clone()));
        notices.push(said.warning("InvalidPool", decision.problems.clone()));
        notices.push(said.normal("WindowsOverridden", decision.overridden.clone()));
        for notice in notices.into_iter().flatten() {
            let object = self.shared.windows.reference();
            let events = &self.shared.events;
            events.notify(object, "CareForWindowsNodes", notice);
        }
    }
}

/// The status with what only its predecessor knows: since when, and what others have said.
fn completed(mut status: WindowsPoolStatus, seen: &ObservedWindowsPool) -> WindowsPoolStatus {
    let before = &seen.status;
    status.conditions = dated(status.conditions, &before.conditions, &condition::ALL);
    status.observed_generation = seen.generation;
    status.permits.clone_from(&before.permits);
    if status.version.is_empty() {
        status.version.clone_from(&before.version);
    }
    status
}

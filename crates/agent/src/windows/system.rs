//! What a Windows node's worker does in its own way: services that the operator names by version and hash, scripts
//! that their commands need, and trusted roots. Drift is always healed.

mod errands;

use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_host::watch::Event;
use evenkeel_host::windows::WindowsHost;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::phase::{AgentSnapshot, OnDrift, Phase, Reason, Wanted};
use evenkeel_plan::machine::targets::Part;
use evenkeel_plan::machine::waiting::Waiting;
use evenkeel_plan::windows::windows_node::{self, Progress, Told, has_served};

use self::errands::Wanting;
use super::drift::Drift;
use super::machine::{DesiredServices, Kept, Machine, ServicePlan};
use super::metrics::AgentMetrics;
use super::roots::Roots;
use super::services_source::ServicesSource;
use super::trigger::Change;
use super::values::Scripts;
use crate::metrics::NodeMetrics;
use crate::node_event::NodeEvent;
use crate::own_node::OwnNode;
use crate::reconcile::{ReconcileError, Requeue};
use crate::worker::{Look, Outlook, System, Worker};

/// What was planned from what, so that nothing is looked at twice for the same.
struct Planned {
    desired: DesiredServices,
    kept: Kept,
    plan: ServicePlan,
    /// What has no value, in words.
    unknown: Vec<String>,
    /// A script still runs; what it prints comes later.
    waits: bool,
}

impl Planned {
    /// All that is lacking, in words.
    fn lacking(&self) -> Vec<String> {
        let lost = self.plan.missing.iter().map(|path| {
            format!("file {path}: missing or wrong, and not in the store: waiting for the operator to copy it")
        });
        self.unknown.iter().cloned().chain(lost).collect()
    }
}

/// What is known of a Windows node.
pub(crate) struct Windows {
    metrics: AgentMetrics,
    namespace: String,
    scripts: Scripts,
    roots: Roots,
    source: Option<ServicesSource>,
    planned: Option<Planned>,
    drift: Drift,
    waiting: Waiting,
}

impl Windows {
    pub(crate) fn new(
        metrics: AgentMetrics,
        namespace: String,
        scripts: Scripts,
        roots: Roots,
    ) -> Self {
        Self {
            metrics,
            namespace,
            scripts,
            roots,
            source: None,
            planned: None,
            drift: Drift::default(),
            waiting: Waiting::default(),
        }
    }

    /// Whether payload files are lacking, as far as anybody knows.
    fn is_short(&self) -> bool {
        let planned = self.planned.as_ref();
        planned.is_none_or(|planned| !planned.plan.missing.is_empty())
    }

    fn lacks_values(&self) -> bool {
        let planned = self.planned.as_ref();
        planned.is_some_and(|planned| !planned.unknown.is_empty())
    }
}

impl System for Windows {
    type Host = WindowsHost;
    type Change = Change;
    /// It may have much to copy, to a slow disk.
    const SETTLING: &str = "payload files to be copied to the store";

    fn metrics(&self) -> &NodeMetrics {
        self.metrics.of_node()
    }

    fn observe_node(worker: &mut Worker<Self>, node: Option<&OwnNode>) {
        let before = worker.node.as_ref();
        let told = |node: Option<&OwnNode>| Told::by(&node?.annotations);
        let differs = before.map(|it| &it.object) != node.map(|it| &it.object);
        if told(node) != told(before) || worker.system.lacks_values() && differs {
            // What failed on the way to another one says nothing about this one; and what had
            // no value may have one now.
            worker.failure = None;
        }
    }

    fn observe_drift(worker: &mut Worker<Self>, event: Event, _: String) {
        // What the store lacks is listed on the Node until somebody has brought it; then the store
        // gets its copy.
        let (is_back, finding) = match &event {
            Event::HealFailed { finding, .. } => (false, Some(finding)),
            Event::Recovered { finding } => (true, Some(finding)),
            Event::Healed { finding, .. } => {
                (true, Some(finding).filter(|_| worker.system.is_short()))
            }
            _ => (false, None),
        };
        if finding.is_some_and(|finding| matches!(finding.part, Part::Payload(_))) {
            worker.system.planned = None;
            worker.failure = None;
            if is_back {
                worker.standing = None;
            }
        }
        worker.system.metrics.observe(&event);
        worker.system.drift.observe(&event);
        // What failed because of drift may succeed now.
        let failed = worker.failure.as_ref();
        if failed.is_some_and(|it| it.reason.category == Reason::NOT_UP) {
            worker.failure = None;
        }
        if let Some(event) = NodeEvent::drift(&event) {
            worker.tell(event);
        }
    }

    fn observe(worker: &mut Worker<Self>, change: Change) {
        let system = &mut worker.system;
        match change {
            Change::Services { name, data } => {
                let source = system.source.as_mut().filter(|source| source.is_for(&name));
                if let Some(source) = source {
                    worker.failure = None;
                    source.observe(data);
                }
            }
            Change::Script {
                hash,
                path,
                printed,
            } => {
                if system.scripts.observe(&hash, path, printed) {
                    // What it lacked it has now, or the reason why not is another one.
                    worker.failure = None;
                }
            }
            Change::Bundle(published) => system.roots.publish(published),
            Change::Roots => system.roots.look(),
            Change::Looked => system.drift.was_looked_for(),
        }
    }

    fn try_again(worker: &mut Worker<Self>) {
        worker.system.planned = None;
        worker.system.scripts.try_again();
    }

    fn stopped_watching(worker: &mut Worker<Self>) {
        worker.system.metrics.nothing_drifts();
        worker.system.drift = Drift::default();
    }

    async fn look(worker: &mut Worker<Self>) -> Result<Look, ReconcileError> {
        // Without the cluster, too: what was accepted last is kept.
        if worker.failure.is_none() {
            worker.watch().await?;
        }
        worker.keep_roots().await;
        let Some(node) = worker.node.clone() else {
            return Ok(Look::Wait(worker.rest()));
        };
        let mut outlook = Outlook {
            on_drift: OnDrift::Heal,
            ..Outlook::default()
        };
        if worker.failure.is_none()
            && let Some(told) = Told::by(&node.annotations)
        {
            match worker.want(&node, &told).await? {
                Wanting::Planned => {}
                Wanting::NotYet(what) => return worker.wait_for(&what, worker.rest()).await,
                Wanting::Unfit(reason) => outlook.desired = Some(Err(reason)),
            }
        }
        let system = &worker.system;
        if let (None, Some(planned)) = (&outlook.desired, &system.planned) {
            let hash = &planned.kept.hash;
            let mut plan = planned.plan.plan.clone();
            if !has_served(&node.annotations) {
                plan = plan.without_drain();
            }
            let said = node.said(annotation::CURRENT_SERVICES) == Some(hash);
            let current = worker.standing.as_ref().and_then(|it| it.config.as_deref());
            let progress = Progress {
                hash,
                plan: &plan,
                current,
                lacking: &planned.lacking(),
                drifted: &system.drift.words(),
                said,
            };
            outlook.desired = match progress.wanted() {
                Wanted::Planned { name, plan } => Some(Ok((name.to_owned(), plan.clone()))),
                Wanted::Unfit(reason) => Some(Err(reason)),
                Wanted::AsItIs if planned.waits => {
                    let what = system.scripts.running();
                    return worker.wait_for(&what, worker.rest()).await;
                }
                Wanted::AsItIs => match system.drift.patience().filter(|_| !said) {
                    Some((what, patience)) => {
                        return worker.wait_for(what, Requeue::After(patience)).await;
                    }
                    None => None,
                },
            };
        }
        worker.system.waiting.is_over();
        Ok(Look::Decide(Box::new(outlook)))
    }

    async fn report(
        worker: &mut Worker<Self>,
        node: &OwnNode,
        phase: &Phase,
        snapshot: &AgentSnapshot<'_>,
    ) -> Result<(), ReconcileError> {
        let missing = worker
            .system
            .planned
            .as_ref()
            .map(|it| it.plan.missing.clone());
        let patch = windows_node::report(
            &node.annotations,
            phase,
            Told::by(&node.annotations).as_ref(),
            &missing.unwrap_or_default(),
            snapshot.returns_permit(),
        );
        if !patch.is_empty() {
            worker.write(patch).await?;
        }
        worker.system.metrics.is_in(phase);
        if worker.told.as_ref() != Some(phase) {
            if let Some(event) = NodeEvent::of(phase) {
                worker.tell(event);
            }
            worker.told = Some(phase.clone());
        }
        Ok(())
    }

    /// Whoever watches heals.
    async fn heal(worker: &mut Worker<Self>) -> Result<Requeue, ReconcileError> {
        Ok(worker.rest())
    }

    async fn apply(
        worker: &mut Worker<Self>,
        _: &str,
        _: Option<Plan>,
    ) -> Result<(), ReconcileError> {
        let Some(planned) = worker.system.planned.take() else {
            return Ok(());
        };
        worker.stop_watching().await;
        // Whether there is a proxy decides about trusted roots.
        worker.system.roots.look();
        worker
            .update(move |machine, progress| {
                machine.apply(&planned.plan, &planned.desired, &planned.kept, progress)
            })
            .await
    }

    fn degraded(worker: &mut Worker<Self>, reason: Reason) -> Requeue {
        if worker.failure.is_none() {
            // Nobody may tell us when it is better: a script, a file.
            worker.fail(reason);
        }
        worker.rest()
    }

    /// When a script is not quick any more, or trusted roots are tried again.
    fn due_in(&self) -> Option<Duration> {
        let due = [self.scripts.patience(), self.roots.again_in()];
        due.into_iter().flatten().min()
    }

    fn reboot(machine: &Machine) -> evenkeel_host::Result<()> {
        machine.host.reboot()
    }
}

//! What a Windows node's worker does in its own way: services that the operator names by version and hash, scripts
//! that their commands need, and trusted roots. Drift is always healed.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_api::windows::version::NotAVersion;
use evenkeel_host::watch::Event;
use evenkeel_host::windows::WindowsHost;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::phase::{AgentSnapshot, OnDrift, Phase, Reason, Wanted};
use evenkeel_plan::machine::targets::Part;
use evenkeel_plan::machine::waiting::Waiting;
use evenkeel_plan::windows::windows_node::{self, ServicesProgress, has_served};
use evenkeel_plan::windows::windows_pool::Grant;
use jiff::Timestamp;

use super::drift::Drift;
use super::machine::{DesiredServices, Kept, Machine, ServicePlan};
use super::metrics::AgentMetrics;
use super::roots::Roots;
use super::services_source::ServicesSource;
use super::trigger::Change;
use super::values::Scripts;
use super::{cluster, drift_watcher};
use crate::machine::reason;
use crate::metrics::NodeMetrics;
use crate::node_event::NodeEvent;
use crate::own_node::OwnNode;
use crate::reconcile::{ReconcileError, Requeue, blocking};
use crate::worker::{Observation, System, SystemSnapshot, Worker};

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

/// What a node shall be brought to.
enum Planning {
    /// This is waited for: the cluster has not said yet, or something is about to be known that it needs.
    NotYet(String),
    /// What it says will not do.
    Unfit(Reason),
    /// It is planned.
    Planned,
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
    const WAIT_TO_SETTLE: &str = "payload files to be copied to the store";

    fn metrics(&self) -> &NodeMetrics {
        &self.metrics.node
    }

    fn observe_node(worker: &mut Worker<Self>, node: Option<&OwnNode>) {
        let before = worker.node.as_ref();
        let grant = |node: Option<&OwnNode>| Grant::of(&node?.annotations);
        let differs = before.map(|it| &it.object) != node.map(|it| &it.object);
        if grant(node) != grant(before) || worker.system.lacks_values() && differs {
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

    async fn snapshot(worker: &mut Worker<Self>) -> Result<Observation, ReconcileError> {
        // Without the cluster, too: what was accepted last is kept.
        if worker.failure.is_none() {
            worker.watch().await?;
        }
        worker.keep_roots().await;
        let Some(node) = worker.node.clone() else {
            return Ok(Observation::Incomplete(worker.requeue()));
        };
        let mut snapshot = SystemSnapshot {
            on_drift: OnDrift::Heal,
            ..SystemSnapshot::default()
        };
        if worker.failure.is_none()
            && let Some(grant) = Grant::of(&node.annotations)
        {
            let planning = match grant {
                Ok(grant) => worker.want(&node, &grant).await?,
                Err(error) => Planning::Unfit(refused(&error)),
            };
            match planning {
                Planning::Planned => {}
                Planning::NotYet(what) => return worker.wait_for(&what, worker.requeue()).await,
                Planning::Unfit(reason) => snapshot.desired = Some(Err(reason)),
            }
        }
        let system = &worker.system;
        if let (None, Some(planned)) = (&snapshot.desired, &system.planned) {
            let hash = &planned.kept.hash;
            let mut plan = planned.plan.plan.clone();
            if !has_served(&node.annotations) {
                plan = plan.without_drain();
            }
            let said = node.said(annotation::CURRENT_SERVICES) == Some(hash);
            let current = worker.standing.as_ref().and_then(|it| it.config.as_deref());
            let progress = ServicesProgress {
                hash,
                plan: &plan,
                current,
                lacking: &planned.lacking(),
                drifted: &system.drift.words(),
                said,
            };
            snapshot.desired = match progress.wanted() {
                Wanted::Planned { name, plan } => Some(Ok((name.to_owned(), plan.clone()))),
                Wanted::Unfit(reason) => Some(Err(reason)),
                Wanted::AsItIs if planned.waits => {
                    let what = system.scripts.running();
                    return worker.wait_for(&what, worker.requeue()).await;
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
        Ok(Observation::Complete(Box::new(snapshot)))
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
        let grant = Grant::of(&node.annotations);
        let patch = windows_node::report(
            &node.annotations,
            phase,
            grant.as_ref().and_then(|it| it.as_ref().ok()),
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
        Ok(worker.requeue())
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
        worker.requeue()
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

impl Worker<Windows> {
    /// Finds out where the machine stands if that is not known, and watches it.
    async fn watch(&mut self) -> Result<(), ReconcileError> {
        if self.standing.is_none() {
            self.stop_watching().await;
            self.standing = Some(self.settle().await?);
            self.system.planned = None;
        }
        if let (None, Some(standing)) = (&self.drift_watcher, &self.standing) {
            let (machine, triggers) = (Arc::clone(&self.machine), self.triggers.clone());
            let targets = standing.targets.clone();
            let started = blocking(move || drift_watcher::start(machine, targets, triggers));
            self.drift_watcher = Some(started.await?.map_err(|error| reason(&error))?);
        }
        Ok(())
    }

    /// Finds out what the node shall be brought to, and plans that.
    async fn want(&mut self, node: &OwnNode, grant: &Grant) -> Result<Planning, ReconcileError> {
        let name = grant.version.config_map_name();
        let kept = self.on_machine(Machine::kept).await?;
        let source = match self.system.source.take() {
            Some(source) if source.is_for(&name) => source,
            _ => {
                let (client, namespace) = (&self.own_node.client, &self.system.namespace);
                let triggers = self.triggers.clone();
                let watch = cluster::watch_services(client, namespace, &name, triggers);
                ServicesSource::new(&name, watch)
            }
        };
        let system = &mut self.system;
        let found = system.source.insert(source).found(grant, kept);
        let (services, kept) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Planning::NotYet(format!("ConfigMap {name}"))),
            Err(reason) => return Ok(Planning::Unfit(reason)),
        };
        let scripts = &mut system.scripts;
        let commands = scripts.commands(&services, &node.object, &grant.hash);
        if commands.waits && scripts.patience().is_some() {
            return Ok(Planning::NotYet(scripts.running()));
        }
        let is_whole = commands.missing.is_empty() && !commands.waits;
        let desired = DesiredServices {
            services,
            commands: commands.found,
            hash: is_whole.then(|| grant.hash.clone()),
        };
        let planned = system.planned.take().filter(|it| {
            it.desired == desired && it.unknown == commands.missing && it.waits == commands.waits
        });
        let planned = if let Some(planned) = planned {
            planned
        } else {
            let plan = self.on_machine({
                let desired = desired.clone();
                move |machine| machine.plan(&desired)
            });
            Planned {
                plan: plan.await?,
                desired,
                kept,
                unknown: commands.missing,
                waits: commands.waits,
            }
        };
        self.system.planned = Some(planned);
        Ok(Planning::Planned)
    }

    /// Brings the trusted roots to the cluster's bundle. Whatever comes of it, services go on.
    async fn keep_roots(&mut self) {
        let Some(published) = self.system.roots.due() else {
            return;
        };
        let kept = self.on_machine(move |machine| machine.trust(&published, None));
        let kept = kept.await;
        let Windows { metrics, roots, .. } = &mut self.system;
        let failed = match kept {
            Ok(trusted) => {
                metrics.trusts(trusted.counts);
                match trusted.synced {
                    Ok(synced) => {
                        metrics.wrote(synced.writes);
                        Ok(roots.done(&synced, &trusted.bundle))
                    }
                    Err(error) => Err(reason(&error).text),
                }
            }
            Err(ReconcileError::Machine(reason)) => Err(reason.text),
            Err(ReconcileError::Cluster(error)) => Err(error.to_string()),
        };
        let events = failed.unwrap_or_else(|words| roots.failed(words).into_iter().collect());
        for event in events {
            self.tell(event);
        }
    }

    /// Waits for `what` until `requeue`; once that takes long, the Node says so.
    async fn wait_for(
        &mut self,
        what: &str,
        requeue: Requeue,
    ) -> Result<Observation, ReconcileError> {
        match self.system.waiting.on(what, Timestamp::now()) {
            Err(left) => Ok(Observation::Incomplete(requeue.within(left))),
            Ok(text) => {
                let said = self
                    .node
                    .as_ref()
                    .and_then(|it| it.said(annotation::REASON));
                if said != Some(&text) {
                    self.say_reason(text).await;
                }
                Ok(Observation::Incomplete(requeue))
            }
        }
    }
}

fn refused(error: &NotAVersion) -> Reason {
    Reason::new(error.category(), error.to_string())
}

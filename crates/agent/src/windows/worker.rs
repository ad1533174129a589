//! The one worker of a Windows node: looks at what is known, lets `plan` decide, carries that out, and
//! reports.

mod errands;
mod outcome;

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_daemon::{Check, Events, Heartbeat};
use evenkeel_host::watch::Event;
use evenkeel_plan::machine::phase::{AgentSnapshot, Drain, Failed, OnDrift, Phase, Reason, Wanted};
use evenkeel_plan::machine::targets::Part;
use evenkeel_plan::machine::waiting::Waiting;
use evenkeel_plan::windows::windows_node::{Progress, Told, has_served};
use tokio::sync::mpsc::UnboundedSender;

use self::errands::Wanting;
use super::cluster::Cluster;
use super::drift::Drift;
use super::drift_watcher::DriftWatcher;
use super::machine::{DesiredServices, Kept, Machine, ServicePlan, Standing};
use super::metrics::AgentMetrics;
use super::own_node::OwnNode;
use super::roots::Roots;
use super::services_source::ServicesSource;
use super::trigger::{MachineChange, Trigger};
use super::values::Scripts;
use crate::node_event::NodeEvent;
use crate::reconcile::{Failure, ReconcileError, Requeue, ended, reason};

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

/// How a worker shows from outside how it is. Clones show the same.
#[derive(Clone)]
pub(crate) struct Telemetry {
    pub(crate) metrics: AgentMetrics,
    pub(crate) ready: Check,
    pub(crate) heart: Arc<Heartbeat>,
}

pub(crate) struct Worker {
    cluster: Cluster,
    machine: Arc<Machine>,
    events: Events,
    metrics: AgentMetrics,
    ready: Check,
    heart: Arc<Heartbeat>,
    triggers: UnboundedSender<Trigger>,
    scripts: Scripts,
    roots: Roots,
    node: Option<OwnNode>,
    standing: Option<Standing>,
    drift_watcher: Option<DriftWatcher>,
    source: Option<ServicesSource>,
    planned: Option<Planned>,
    drift: Drift,
    going_down: Option<Instant>,
    failure: Option<Failure>,
    failures: u32,
    unanswered: u32,
    said: Option<Phase>,
    waiting: Waiting,
}

impl Worker {
    pub(crate) fn new(
        cluster: Cluster,
        machine: Arc<Machine>,
        events: Events,
        telemetry: Telemetry,
        triggers: UnboundedSender<Trigger>,
        script_limit: Duration,
    ) -> Self {
        Self {
            cluster,
            events,
            metrics: telemetry.metrics,
            ready: telemetry.ready,
            heart: telemetry.heart,
            scripts: Scripts::new(script_limit, triggers.clone()),
            roots: Roots::watched(&machine, triggers.clone()),
            triggers,
            machine,
            node: None,
            standing: None,
            drift_watcher: None,
            source: None,
            planned: None,
            drift: Drift::default(),
            going_down: None,
            failure: None,
            failures: 0,
            unanswered: 0,
            said: None,
            waiting: Waiting::default(),
        }
    }

    /// Takes note of a change. What to do about it is for the next reconcile.
    pub(crate) fn observe(&mut self, trigger: Trigger) {
        match trigger {
            Trigger::Node(node) => {
                let told = |node: &Option<OwnNode>| Told::by(&node.as_ref()?.annotations);
                let fields = |node: &Option<OwnNode>| Some(node.as_ref()?.object.clone());
                if told(&node) != told(&self.node)
                    || self.lacks_values() && fields(&node) != fields(&self.node)
                {
                    // What failed on the way to another one says nothing about this one; and what had
                    // no value may have one now.
                    self.failure = None;
                }
                self.node = node;
            }
            Trigger::Services { name, data } => {
                let source = self.source.as_mut().filter(|source| source.is_for(&name));
                if let Some(source) = source {
                    self.failure = None;
                    source.observe(data);
                }
            }
            Trigger::Script {
                hash,
                path,
                printed,
            } => {
                if self.scripts.observe(&hash, path, printed) {
                    // What it lacked it has now, or the reason why not is another one.
                    self.failure = None;
                }
            }
            Trigger::Bundle(published) => self.roots.publish(published),
            Trigger::Roots => self.roots.look(),
            Trigger::Renewed => {}
            Trigger::Machine(MachineChange::Event(event)) => {
                // What the store lacks is listed on the Node until somebody has brought it; then the store
                // gets its copy.
                let (is_back, finding) = match &*event {
                    Event::HealFailed { finding, .. } => (false, Some(finding)),
                    Event::Recovered { finding } => (true, Some(finding)),
                    Event::Healed { finding, .. } => {
                        (true, Some(finding).filter(|_| self.is_short()))
                    }
                    _ => (false, None),
                };
                if finding.is_some_and(|finding| matches!(finding.part, Part::Payload(_))) {
                    self.planned = None;
                    self.failure = None;
                    if is_back {
                        self.standing = None;
                    }
                }
                self.metrics.observe(&event);
                self.drift.observe(&event);
                self.look_anew();
                if let Some(notice) = NodeEvent::drift(&event) {
                    self.tell(notice);
                }
            }
            Trigger::Machine(MachineChange::Looked) => self.drift.was_looked_for(),
            Trigger::Machine(MachineChange::Ended(error)) => {
                self.drift_watcher = None;
                self.standing = None;
                self.fail(reason(&error));
            }
        }
    }

    /// Observes, plans, applies and reports, once.
    pub(crate) async fn reconcile(&mut self) -> Requeue {
        let requeue = self.work().await;
        match ended(requeue, &mut self.unanswered, &self.ready) {
            Ok(requeue) => requeue,
            Err(reason) => {
                self.fail(reason);
                Requeue::Now
            }
        }
    }

    /// Ends what runs next to the worker.
    pub(crate) async fn end(mut self) {
        self.stop_watching().await;
    }

    async fn work(&mut self) -> Result<Requeue, ReconcileError> {
        if self.failure.as_ref().is_some_and(Failure::is_over) {
            self.failure = None;
            self.planned = None;
            self.scripts.try_again();
        }
        // Without the cluster, too: what was accepted last is kept.
        if self.failure.is_none() {
            self.settle().await?;
        }
        self.keep_roots().await;
        let Some(node) = self.node.clone() else {
            return Ok(self.rest());
        };
        let told = Told::by(&node.annotations);
        let mut unfit = None;
        if self.failure.is_none()
            && let Some(told) = &told
        {
            match self.want(&node, told).await? {
                Wanting::Planned => {}
                Wanting::NotYet(what) => return self.wait_for(&what, self.rest()).await,
                Wanting::Unfit(reason) => unfit = Some(reason),
            }
        }
        let (current, awaits_boot) = match &self.standing {
            Some(standing) => (standing.config.clone(), standing.awaits_boot),
            None => (None, false),
        };
        let said = |name: &str| node.annotations.get(name).map(String::as_str);
        let planned = self.planned.as_ref().map(|planned| {
            let plan = planned.plan.plan.clone();
            let plan = if has_served(&node.annotations) {
                plan
            } else {
                plan.without_drain()
            };
            (planned.kept.hash.clone(), plan, planned.lacking())
        });
        let has_said = |hash: &str| said(annotation::CURRENT_SERVICES) == Some(hash);
        let drifted = self.drift.words();
        let wanted = match (unfit, &planned) {
            (Some(reason), _) => Wanted::Unfit(reason),
            (None, Some((hash, plan, lacking))) => {
                let progress = Progress {
                    hash,
                    plan,
                    current: current.as_deref(),
                    lacking,
                    drifted: &drifted,
                    said: has_said(hash),
                };
                progress.wanted()
            }
            (None, None) => Wanted::AsItIs,
        };
        if let (Wanted::AsItIs, Some((hash, ..))) = (&wanted, &planned) {
            if self.planned.as_ref().is_some_and(|it| it.waits) {
                let what = self.scripts.running();
                return self.wait_for(&what, self.rest()).await;
            }
            if let Some((what, patience)) = self.drift.patience().filter(|_| !has_said(hash)) {
                return self.wait_for(what, Requeue::After(patience)).await;
            }
        }
        self.waiting.is_over();
        let snapshot = AgentSnapshot {
            current: current.as_deref(),
            settled: self.standing.is_some(),
            awaits_boot,
            wanted,
            drift: &[],
            lasting: &[],
            on_drift: OnDrift::Heal,
            forced: false,
            failed: self.failure.as_ref().map(|failure| Failed {
                reason: &failure.reason,
                tries: self.failures,
            }),
            drain: Drain {
                asked: said(annotation::DESIRED_DRAIN),
                applied: said(annotation::LAST_APPLIED_DRAIN),
            },
        };
        let phase = Phase::next(&snapshot);
        let gives_up = snapshot.returns_permit();
        self.report(&node, &phase, told.as_ref(), gives_up).await?;
        self.carry_out(phase).await
    }
}

fn refused(error: &evenkeel_api::windows::version::NotAVersion) -> Reason {
    Reason::new(error.category(), error.to_string())
}

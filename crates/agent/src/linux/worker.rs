//! The one worker: looks at what is known, lets `plan` decide, carries that out, and reports.

mod errands;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_api::names::annotation;
use evenkeel_daemon::{Check, Events, Heartbeat};
use evenkeel_host::memory;
use evenkeel_host::verify::Finding;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::linux_node::Report;
use evenkeel_plan::machine::phase::{AgentSnapshot, Drain, Failed, OnDrift, Phase, Reason, Wanted};
use evenkeel_plan::machine::voucher::DesiredConfig;
use tokio::sync::mpsc::UnboundedSender;

use super::cluster::Cluster;
use super::config_source::ConfigSource;
use super::drift::Drift;
use super::drift_watcher::DriftWatcher;
use super::machine::{Machine, Standing};
use super::metrics::AgentMetrics;
use super::own_node::OwnNode;
use super::trigger::{MachineChange, Trigger};
use super::update_history::UpdateHistory;
use crate::node_event::{NodeEvent, shown};
use crate::pending_events;
use crate::reconcile::{
    Failure, LAST_WORDS, REBOOT_AGAIN, ReconcileError, Requeue, blocking, ended, reason,
};

/// How long after healing it is looked at again: somebody may be quicker than that to change it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long after a node is degraded it is looked whether somebody has mended it, where nothing tells.
const MENDED: Duration = Duration::from_secs(30);
/// The value of the annotation on a node after an SSH login.
const ACCESSED: &str = "accessed";

/// What a reconcile saw of the machine on its way to a configuration.
#[derive(Default)]
struct Preflight {
    plan: Option<Result<Plan, Reason>>,
    findings: Vec<Finding>,
}

pub(crate) struct Worker {
    cluster: Cluster,
    machine: Arc<Machine>,
    events: Events,
    metrics: AgentMetrics,
    history: UpdateHistory,
    ready: Check,
    heart: Arc<Heartbeat>,
    triggers: UnboundedSender<Trigger>,
    node: Option<OwnNode>,
    standing: Option<Standing>,
    drift_watcher: Option<DriftWatcher>,
    source: Option<ConfigSource>,
    drift: Drift,
    on_drift: OnDrift,
    forced: bool,
    /// The foreign configuration that nothing is done for, and that was said.
    foreign: Option<String>,
    /// Somebody logged in over SSH.
    accessed: bool,
    /// When the machine was told to boot.
    going_down: Option<Instant>,
    failure: Option<Failure>,
    failures: u32,
    unanswered: u32,
    /// What is being reported. An answer that is lost on the way does not make it reported.
    telling: Option<Phase>,
    told: Option<Phase>,
}

impl Worker {
    pub(crate) fn new(
        cluster: Cluster,
        machine: Arc<Machine>,
        events: Events,
        metrics: AgentMetrics,
        (ready, heart): (Check, Arc<Heartbeat>),
        triggers: UnboundedSender<Trigger>,
    ) -> Self {
        let history = machine.history();
        metrics.show(&history);
        Self {
            cluster,
            machine,
            events,
            metrics,
            history,
            ready,
            heart,
            triggers,
            node: None,
            standing: None,
            drift_watcher: None,
            source: None,
            drift: Drift::default(),
            on_drift: OnDrift::Degrade,
            forced: false,
            foreign: None,
            accessed: false,
            going_down: None,
            failure: None,
            failures: 0,
            unanswered: 0,
            telling: None,
            told: None,
        }
    }

    /// Takes note of a change. What to do about it is for the next reconcile.
    pub(crate) fn observe(&mut self, trigger: Trigger) {
        match trigger {
            Trigger::Node(node) => {
                let desired = |node: &Option<OwnNode>| {
                    let annotations = &node.as_ref()?.annotations;
                    annotations.get(annotation::DESIRED_CONFIG).cloned()
                };
                if desired(&node) != desired(&self.node) {
                    // What failed on the way to another one says nothing about this one.
                    self.failure = None;
                }
                if node.is_none() {
                    tracing::warn!("the Node of this machine does not exist yet; waiting for it");
                }
                self.node = node;
            }
            Trigger::Config { name, version } => {
                let source = self.source.as_mut().filter(|source| source.is_for(&name));
                if source.is_some_and(|source| source.observe(version)) {
                    self.failure = None;
                }
            }
            Trigger::Login(login) => {
                self.accessed = true;
                self.metrics.was_logged_in_to();
                self.tell(NodeEvent::logged_in(&login));
            }
            Trigger::Machine(MachineChange::ForceFile) => match self.machine.is_forced() {
                Ok(forced) => self.forced = forced,
                Err(error) => tracing::warn!("{}", error.with_causes()),
            },
            Trigger::Machine(MachineChange::Path { event, difference }) => {
                let notice = self.drift.observe(*event, difference, self.on_drift);
                if let Some(notice) = notice {
                    self.tell(notice);
                }
            }
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
        if let Some(watcher) = self.drift_watcher.take()
            && let Err(error) = blocking(move || watcher.stop()).await
        {
            tracing::error!("{}", error.text);
        }
    }

    async fn work(&mut self) -> Result<Requeue, ReconcileError> {
        let Some(node) = self.node.clone() else {
            return Ok(Requeue::OnChange);
        };
        let said = |name: &str| node.annotations.get(name).map(String::as_str);
        let desired =
            DesiredConfig::of(said(annotation::DESIRED_CONFIG), said(annotation::VOUCHER));
        if let (DesiredConfig::Foreign(name), Some(why)) = (desired, desired.refusal()) {
            return self.keep_off(name, &why).await;
        }
        if let Some(name) = self.foreign.take() {
            tracing::info!("desiredConfig {name} is no longer foreign; managing this node");
        }
        if self.accessed && said(annotation::SSH) != Some(ACCESSED) {
            self.write(&BTreeMap::from([(annotation::SSH, ACCESSED)]))
                .await?;
        }
        let on_drift = OnDrift::of(said(annotation::DRIFT));
        if self.failure.as_ref().is_some_and(Failure::is_over) {
            self.failure = None;
        }
        let settled = self.settle(on_drift).await;
        if self.failure.is_none() {
            settled?;
            self.look_again().await?;
        }
        let current = self.standing.as_ref().and_then(|it| it.config.clone());
        let awaits_boot = self.standing.as_ref().is_some_and(|it| it.awaits_boot);
        let desired = desired.vouched();
        let target = desired.or(current.as_deref());
        let moves = self.failure.is_none()
            && !awaits_boot
            && (desired.is_some_and(|name| current.as_deref() != Some(name)) || self.forced);
        let mut preflight = Preflight::default();
        if let Some(name) = target.filter(|_| moves) {
            if !self.look_for(name).await? {
                return Ok(Requeue::OnChange);
            }
            self.history.heads_for(name, SystemTime::now());
            preflight = self.preflight().await?;
        } else if self.failure.is_none() && self.source.take().is_some() {
            memory::trim();
        }
        let found: Vec<_> = if moves {
            preflight.findings.iter().collect()
        } else {
            self.drift.findings().collect()
        };
        self.metrics.have_drifted(&found);
        let drift: Vec<String> = found.into_iter().map(shown).collect();
        let lasting = self.standing.as_ref().map(|it| it.lasting.clone());
        let snapshot = AgentSnapshot {
            lasting: lasting.as_deref().unwrap_or_default(),
            current: current.as_deref(),
            settled: self.standing.is_some(),
            awaits_boot,
            wanted: match (&preflight.plan, target) {
                (Some(Ok(plan)), Some(name)) => Wanted::Planned { name, plan },
                (Some(Err(reason)), _) => Wanted::Unfit(reason.clone()),
                _ => Wanted::AsItIs,
            },
            drift: &drift,
            on_drift,
            forced: self.forced,
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
        if let Some(report) = Report::of(&phase, &snapshot) {
            self.metrics.is_in(report.state);
            self.report(&node, &phase, &report).await?;
        }
        if self.history.comes_to(&phase, SystemTime::now()) {
            self.keep_history().await?;
        }
        self.carry_out(phase, preflight).await
    }

    /// Reports what is not reported yet, in one request.
    async fn report(
        &mut self,
        node: &OwnNode,
        phase: &Phase,
        report: &Report,
    ) -> Result<(), ReconcileError> {
        // The answer to a request was lost on the way, and pods have left meanwhile: it was asked for all the same.
        if let Some(before) = self.telling.take_if(|before| before != phase)
            && let Phase::AwaitDrain { target, .. } = &before
            && node.annotations.get(annotation::DESIRED_DRAIN) == Some(&Drain::request(target))
        {
            self.tell_of(&before).await?;
        }
        let changes = report.changes(&node.annotations);
        if !changes.is_empty() {
            self.telling = Some(phase.clone());
            self.write(&changes).await?;
        }
        if self.telling.take().as_ref() == Some(phase) && self.told.as_ref() != Some(phase) {
            self.tell_of(phase).await?;
        }
        Ok(())
    }

    /// Sends the Event that the node has come to `phase`, and counts the drains that were requested.
    async fn tell_of(&mut self, phase: &Phase) -> Result<(), ReconcileError> {
        let current = self.standing.as_ref().and_then(|it| it.config.as_deref());
        if let Some(notice) = NodeEvent::of(phase, current) {
            self.tell(notice);
        }
        self.told = Some(phase.clone());
        if matches!(phase, Phase::AwaitDrain { .. }) {
            self.history.drains += 1;
            self.keep_history().await?;
        }
        Ok(())
    }

    async fn write(
        &mut self,
        changes: &BTreeMap<&'static str, &str>,
    ) -> Result<(), ReconcileError> {
        let answer = self.cluster.annotate(changes).await;
        answer.map_err(ReconcileError::Cluster)?;
        if let Some(node) = &mut self.node {
            let written = changes
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            node.annotations.extend(written);
        }
        Ok(())
    }

    async fn carry_out(
        &mut self,
        phase: Phase,
        preflight: Preflight,
    ) -> Result<Requeue, ReconcileError> {
        match phase {
            Phase::Unmanaged | Phase::AwaitDrain { .. } => Ok(Requeue::OnChange),
            Phase::Done { .. } => {
                self.failures = 0;
                Ok(Requeue::OnChange)
            }
            Phase::Degraded(_) => {
                let again = self.failure.as_ref().map_or(MENDED, |failure| {
                    failure.again_at.saturating_duration_since(Instant::now())
                });
                Ok(Requeue::After(again))
            }
            Phase::Heal { .. } => {
                self.heal(preflight.findings).await?;
                Ok(Requeue::After(LOOK_AGAIN))
            }
            Phase::Apply { target, .. } => {
                let config = self.source.as_ref().and_then(ConfigSource::found);
                if let (Some(Ok(config)), Some(Ok(plan))) = (config, preflight.plan) {
                    self.apply(&target, config, plan).await?;
                }
                Ok(Requeue::Now)
            }
            Phase::Reboot => {
                let since = self.going_down.map(|told| told.elapsed());
                if let Some(since) = since.filter(|since| *since < REBOOT_AGAIN) {
                    return Ok(Requeue::After(REBOOT_AGAIN.saturating_sub(since)));
                }
                if !self.events.flush(LAST_WORDS).await {
                    let events = self.events.clone();
                    self.on_machine(move |machine| {
                        pending_events::keep(&machine.host, &machine.state, &events);
                        Ok(())
                    })
                    .await?;
                }
                self.on_machine(Machine::reboot).await?;
                self.going_down = Some(Instant::now());
                Ok(Requeue::After(REBOOT_AGAIN))
            }
        }
    }

    /// Whether it is known by now what the MachineConfig `name` says, or that there is none.
    async fn look_for(&mut self, name: &str) -> Result<bool, ReconcileError> {
        let fresh = || ConfigSource::begin(name, &self.cluster, &self.triggers);
        if self
            .source
            .as_ref()
            .is_none_or(|source| !source.is_for(name))
        {
            self.source = Some(fresh());
        }
        match &mut self.source {
            Some(source) => source.go_on(&self.cluster).await,
            None => Ok(false),
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.failure = Some(Failure::after(&mut self.failures, reason));
    }

    fn tell(&self, notice: NodeEvent) {
        let uid = self.node.as_ref().map_or("", |node| node.uid.as_str());
        self.metrics.told(notice.reason());
        notice.tell(self.cluster.reference(uid), &self.events);
    }
}

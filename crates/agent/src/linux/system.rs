//! What a Linux node's worker does in its own way: MachineConfigs, the force file, logins over SSH, and drift that
//! is reported or healed as the Node says.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_api::names::annotation;
use evenkeel_host::Error;
use evenkeel_host::linux::LinuxHost;
use evenkeel_host::memory;
use evenkeel_host::verify::Finding;
use evenkeel_host::watch::Event;
use evenkeel_plan::fleet::node::NodePatch;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::linux_node::Report;
use evenkeel_plan::machine::phase::{AgentSnapshot, Drain, OnDrift, Phase, Reason};
use evenkeel_plan::machine::voucher::DesiredConfig;

use super::config_source::ConfigSource;
use super::drift::Drift;
use super::drift_watcher;
use super::machine::Machine;
use super::metrics::AgentMetrics;
use super::trigger::Change;
use super::update_history::UpdateHistory;
use crate::machine::reason;
use crate::metrics::NodeMetrics;
use crate::node_event::{NodeEvent, shown};
use crate::own_node::OwnNode;
use crate::reconcile::{Failure, ReconcileError, Requeue, blocking};
use crate::worker::{Observation, System, SystemSnapshot, Worker};

/// How long after healing it is looked at again: somebody may be quicker than that to change it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long after a node is degraded it is looked whether somebody has mended it, where nothing tells.
const MENDED: Duration = Duration::from_secs(30);
/// The value of the annotation on a node after an SSH login.
const ACCESSED: &str = "accessed";

/// What is known of a Linux node.
pub(crate) struct Linux {
    metrics: AgentMetrics,
    history: UpdateHistory,
    source: Option<ConfigSource>,
    drift: Drift,
    on_drift: OnDrift,
    forced: bool,
    /// The foreign configuration that nothing is done for, and that was said.
    foreign: Option<String>,
    /// Somebody logged in over SSH.
    accessed: bool,
    /// What drifted and is in the way of an update.
    in_the_way: Vec<Finding>,
    /// What the machine was provisioned from, as it was said.
    pub(super) adopted: Option<String>,
    /// What is being reported. An answer that is lost on the way does not make it reported.
    telling: Option<Phase>,
}

impl Linux {
    pub(crate) fn new(metrics: AgentMetrics, history: UpdateHistory) -> Self {
        metrics.show(&history);
        Self {
            metrics,
            history,
            source: None,
            drift: Drift::default(),
            on_drift: OnDrift::Degrade,
            forced: false,
            foreign: None,
            accessed: false,
            in_the_way: Vec::new(),
            adopted: None,
            telling: None,
        }
    }
}

impl System for Linux {
    type Host = LinuxHost;
    type Change = Change;
    const WAIT_TO_SETTLE: &str = "the journal of the last update to be read";

    fn metrics(&self) -> &NodeMetrics {
        &self.metrics.node
    }

    fn observe_node(worker: &mut Worker<Self>, node: Option<&OwnNode>) {
        let desired = |node: Option<&OwnNode>| {
            let name = node?.said(annotation::DESIRED_CONFIG)?;
            Some(name.to_owned())
        };
        if desired(node) != desired(worker.node.as_ref()) {
            // What failed on the way to another one says nothing about this one.
            worker.failure = None;
        }
        if node.is_none() {
            tracing::warn!("the Node of this machine does not exist yet; waiting for it");
        }
    }

    fn observe_drift(worker: &mut Worker<Self>, event: Event, difference: String) {
        let system = &mut worker.system;
        let event = system.drift.observe(event, difference, system.on_drift);
        if let Some(event) = event {
            worker.tell(event);
        }
    }

    fn observe(worker: &mut Worker<Self>, change: Change) {
        let system = &mut worker.system;
        match change {
            Change::Config { name, version } => {
                let source = system.source.as_mut().filter(|source| source.is_for(&name));
                if source.is_some_and(|source| source.observe(version)) {
                    worker.failure = None;
                }
            }
            Change::Login(login) => {
                system.accessed = true;
                system.metrics.was_logged_in_to();
                worker.tell(NodeEvent::logged_in(&login));
            }
            Change::ForceFile => match worker.machine.is_forced() {
                Ok(forced) => system.forced = forced,
                Err(error) => tracing::warn!("{}", error.with_causes()),
            },
        }
    }

    async fn snapshot(worker: &mut Worker<Self>) -> Result<Observation, ReconcileError> {
        let Some(node) = worker.node.clone() else {
            return Ok(Observation::Incomplete(Requeue::OnChange));
        };
        let desired = DesiredConfig::of(
            node.said(annotation::DESIRED_CONFIG),
            node.said(annotation::VOUCHER),
        );
        if let (DesiredConfig::Foreign(name), Some(why)) = (desired, desired.refusal()) {
            worker.keep_off(name, &why).await;
            return Ok(Observation::Incomplete(Requeue::OnChange));
        }
        if let Some(name) = worker.system.foreign.take() {
            tracing::info!("desiredConfig {name} is no longer foreign; managing this node");
        }
        if worker.system.accessed && node.said(annotation::SSH) != Some(ACCESSED) {
            let patch = NodePatch::default().with(annotation::SSH, ACCESSED);
            worker.write(patch).await?;
        }
        let on_drift = OnDrift::of(node.said(annotation::DRIFT));
        let watched = worker.watch(on_drift).await;
        if worker.failure.is_none() {
            watched?;
            worker.look_again().await?;
        }
        let current = worker.standing.as_ref().and_then(|it| it.config.clone());
        let awaits_boot = worker.standing.as_ref().is_some_and(|it| it.awaits_boot);
        let desired = desired.vouched();
        let target = desired.or(current.as_deref());
        let moves = worker.failure.is_none()
            && !awaits_boot
            && (desired.is_some_and(|name| current.as_deref() != Some(name))
                || worker.system.forced);
        let mut planned = None;
        if let Some(name) = target.filter(|_| moves) {
            if !worker.look_for(name).await? {
                return Ok(Observation::Incomplete(Requeue::OnChange));
            }
            let now = SystemTime::now();
            worker.system.history.heads_for(name, now);
            worker.adopt().await?;
            planned = worker.preflight().await?;
        } else if worker.failure.is_none() && worker.system.source.take().is_some() {
            memory::trim();
        }
        let system = &worker.system;
        let found: Vec<_> = if moves {
            system.in_the_way.iter().collect()
        } else {
            system.drift.findings().collect()
        };
        system.metrics.have_drifted(&found);
        Ok(Observation::Complete(Box::new(SystemSnapshot {
            drift: found.into_iter().map(shown).collect(),
            desired: target
                .zip(planned)
                .map(|(name, planned)| planned.map(|plan| (name.to_owned(), plan))),
            on_drift,
            forced: system.forced,
        })))
    }

    async fn report(
        worker: &mut Worker<Self>,
        node: &OwnNode,
        phase: &Phase,
        snapshot: &AgentSnapshot<'_>,
    ) -> Result<(), ReconcileError> {
        if let Some(report) = Report::of(phase, snapshot) {
            worker.system.metrics.is_in(&report.state);
            // The answer to a request was lost on the way, and pods have left meanwhile: it was asked for all the same.
            if let Some(before) = worker.system.telling.take_if(|before| before != phase)
                && let Phase::AwaitDrain { target, .. } = &before
                && node.said(annotation::DESIRED_DRAIN) == Some(&Drain::request(target))
            {
                worker.tell_of(&before).await?;
            }
            let changes = report.changes(&node.annotations).into_iter();
            let patch = changes.fold(NodePatch::default(), |patch, (name, value)| {
                patch.with(name, value)
            });
            if !patch.is_empty() {
                worker.system.telling = Some(phase.clone());
                worker.write(patch).await?;
            }
            let telling = worker.system.telling.take();
            if telling.as_ref() == Some(phase) && worker.told.as_ref() != Some(phase) {
                worker.tell_of(phase).await?;
            }
        }
        if worker.system.history.comes_to(phase, SystemTime::now()) {
            worker.keep_history().await?;
        }
        Ok(())
    }

    async fn heal(worker: &mut Worker<Self>) -> Result<Requeue, ReconcileError> {
        let findings = std::mem::take(&mut worker.system.in_the_way);
        worker.heal(findings).await?;
        Ok(Requeue::After(LOOK_AGAIN))
    }

    /// Nobody watches meanwhile.
    async fn apply(
        worker: &mut Worker<Self>,
        target: &str,
        plan: Option<Plan>,
    ) -> Result<(), ReconcileError> {
        let config = worker.system.source.as_ref().and_then(ConfigSource::found);
        let (Some(Ok(config)), Some(plan)) = (config, plan) else {
            return Ok(());
        };
        if worker.stop_watching().await
            && let Some(current) = worker.standing.as_ref().and_then(|it| it.config.as_deref())
        {
            worker.tell(NodeEvent::not_watching(current, target));
        }
        let forced = worker.system.forced;
        worker
            .update(move |machine, progress| machine.apply(&plan, &config, forced, progress))
            .await
    }

    fn degraded(worker: &mut Worker<Self>, _: Reason) -> Requeue {
        let again = worker.failure.as_ref().map_or(MENDED, Failure::again_in);
        Requeue::After(again)
    }

    fn reboot(machine: &Machine) -> evenkeel_host::Result<()> {
        machine.reboot()
    }
}

impl Worker<Linux> {
    /// Sends the Event that the node has come to `phase`, and counts the drains that were requested.
    async fn tell_of(&mut self, phase: &Phase) -> Result<(), ReconcileError> {
        let current = self.standing.as_ref().and_then(|it| it.config.as_deref());
        if let Some(event) = NodeEvent::of(phase, current) {
            self.tell(event);
        }
        self.told = Some(phase.clone());
        if matches!(phase, Phase::AwaitDrain { .. }) {
            self.system.history.drains += 1;
            self.keep_history().await?;
        }
        Ok(())
    }

    /// Whether it is known by now what the MachineConfig `name` says, or that there is none.
    async fn look_for(&mut self, name: &str) -> Result<bool, ReconcileError> {
        let source = match self.system.source.take() {
            Some(source) if source.is_for(name) => source,
            _ => ConfigSource::begin(name, &self.own_node.client, &self.triggers),
        };
        let source = self.system.source.insert(source);
        source.go_on(&self.own_node.client).await
    }

    /// Finds out where the machine stands if that is not known, and watches it.
    async fn watch(&mut self, on_drift: OnDrift) -> Result<(), ReconcileError> {
        if self.standing.is_some() {
            if self.system.on_drift == on_drift {
                return Ok(());
            }
            self.stop_watching().await;
        }
        let mut standing = self.settle().await?;
        if standing.has_booted {
            self.system.history.reboots += 1;
            self.keep_history().await?;
        }
        self.system.forced = self.on_machine(Machine::is_forced).await?;
        self.system.drift = Drift::default();
        self.system.on_drift = on_drift;
        if !standing.awaits_boot {
            standing.lasting = self.on_machine(Machine::lasting).await?;
            for words in &standing.lasting {
                self.tell(NodeEvent::not_as_declared(words));
            }
            let targets = standing.targets.clone();
            let findings = self
                .on_machine(move |machine| Ok(machine.drift(&targets)))
                .await?;
            // What another image brought is no drift, but the rest of the update.
            match on_drift {
                OnDrift::Degrade if !standing.has_new_image => {
                    for finding in findings {
                        let shown = finding.clone();
                        let difference = self
                            .on_machine(move |machine| Ok(machine.difference(&shown)))
                            .await?;
                        self.tell(NodeEvent::drifted(&finding, &difference));
                        self.system.drift.know(finding);
                    }
                }
                OnDrift::Degrade | OnDrift::Heal => self.heal(findings).await?,
            }
            let (machine, triggers) = (Arc::clone(&self.machine), self.triggers.clone());
            let targets = standing.targets.clone();
            let started =
                blocking(move || drift_watcher::start(machine, targets, on_drift, triggers));
            let (watching, blindness) = started.await?.map_err(|error| reason(&error))?;
            self.drift_watcher = Some(watching);
            if let Some(blindness) = blindness {
                self.tell(NodeEvent::blind(&blindness));
            }
            if let Some(config) = &standing.config {
                self.tell(NodeEvent::watching(config, standing.targets.len()));
            }
        }
        self.standing = Some(standing);
        Ok(())
    }

    /// Leaves machine and Node to whoever tells them to run the configuration `name`: nothing is written, healed,
    /// drained or booted, nothing is watched, and what an earlier run left in the middle stays as it is.
    async fn keep_off(&mut self, name: &str, why: &str) {
        if self.system.foreign.as_deref() != Some(name) {
            tracing::warn!("{why}");
            self.system.foreign = Some(name.to_owned());
        }
        self.standing = None;
        self.system.source = None;
        self.failure = None;
        self.system.drift = Drift::default();
        self.system.metrics.have_drifted(&[]);
        self.stop_watching().await;
    }

    /// Looks again at what could not be healed: somebody may have mended it.
    async fn look_again(&mut self) -> Result<(), ReconcileError> {
        let standing = self.standing.as_ref();
        if standing.is_some_and(|it| !it.lasting.is_empty()) {
            let lasting = self.on_machine(Machine::lasting).await?;
            if let Some(standing) = &mut self.standing {
                standing.lasting = lasting;
            }
        }
        Ok(())
    }

    /// What leads to the configuration that was found, or why nothing does; and what drifted and is in the way.
    async fn preflight(&mut self) -> Result<Option<Result<Plan, Reason>>, ReconcileError> {
        self.system.in_the_way.clear();
        let config = match self.system.source.as_ref().and_then(ConfigSource::found) {
            Some(Ok(config)) => config,
            Some(Err(reason)) => return Ok(Some(Err(reason))),
            None => return Ok(None),
        };
        let targets = self.standing.as_ref().map(|it| it.targets.clone());
        let forced = self.system.forced;
        let found = self.on_machine(move |machine| {
            let plan = match machine.plan(&config, forced) {
                Ok(plan) => Ok(plan),
                Err(error @ Error::Refused(_)) => Err(reason(&error)),
                Err(error) => return Err(error),
            };
            Ok((plan, machine.drift(&targets.unwrap_or_default())))
        });
        let (plan, findings) = found.await?;
        self.system.in_the_way = findings;
        Ok(Some(plan))
    }

    /// Heals what was found, with an Event for each path.
    async fn heal(&mut self, findings: Vec<Finding>) -> Result<(), ReconcileError> {
        for finding in findings {
            let (difference, healed) = {
                let finding = finding.clone();
                self.on_machine(move |machine| {
                    let difference = machine.difference(&finding);
                    Ok((difference, machine.put_back(&finding)))
                })
                .await?
            };
            match healed {
                Ok(()) => self.tell(NodeEvent::healed(&finding, &difference)),
                Err(error) => {
                    self.tell(NodeEvent::not_healed(&finding, &error.with_causes()));
                    return Err(reason(&error).into());
                }
            }
        }
        Ok(())
    }

    /// Writes the history down, and shows what is in it.
    async fn keep_history(&self) -> Result<(), ReconcileError> {
        let history = self.system.history.clone();
        self.system.metrics.show(&history);
        self.on_machine(move |machine| {
            machine.keep(&history);
            Ok(())
        })
        .await
    }
}

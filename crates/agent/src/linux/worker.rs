//! The one worker: looks at what is known, lets `plan` decide, carries that out, and reports.

mod errands;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_api::names::annotation;
use evenkeel_daemon::{Check, Events, Heartbeat};
use evenkeel_host::linux::Login;
use evenkeel_host::memory;
use evenkeel_host::verify::Finding;
use evenkeel_plan::linux_node::Report;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::phase::{Drain, Failed, OnDrift, Phase, Reason, Sight, Wanted};
use evenkeel_plan::voucher::DesiredConfig;
use tokio::sync::mpsc::UnboundedSender;

use super::cluster::{Cluster, OwnNode};
use super::drift::Drift;
use super::drift_watcher::{DriftWatcher, News};
use super::machine::{Machine, Standing};
use super::metrics::AgentMetrics;
use super::search::Search;
use super::update_history::UpdateHistory;
use crate::node_event::{NodeEvent, shown};
use crate::pending_events;
use crate::turn::{Failure, LAST_WORDS, REBOOT_AGAIN, Trouble, Turn, blocking, ended, reason};

/// How long after healing it is looked at again: somebody may be quicker than that to change it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long after a node is degraded it is looked whether somebody has mended it, where nothing tells.
const MENDED: Duration = Duration::from_secs(30);
/// What the annotation of a node says that somebody has logged in to.
const ACCESSED: &str = "accessed";

/// Something that may have changed.
#[derive(Debug)]
pub(crate) enum Key {
    /// The own Node, or that it is gone.
    Node(Option<OwnNode>),
    /// The version of a MachineConfig, or that there is none.
    Config {
        name: String,
        version: Option<String>,
    },
    /// Something on the machine.
    Machine(News),
    /// Somebody logged in over SSH.
    Login(Login),
}

/// What a turn saw of the machine on its way to a configuration.
#[derive(Default)]
struct Preflight {
    plan: Option<Result<Plan, Reason>>,
    findings: Vec<Finding>,
}

pub(crate) struct Worker {
    cluster: Cluster,
    machine: Arc<Machine>,
    events: Events,
    numbers: AgentMetrics,
    logbook: UpdateHistory,
    ready: Check,
    heart: Arc<Heartbeat>,
    keys: UnboundedSender<Key>,
    node: Option<OwnNode>,
    standing: Option<Standing>,
    lookout: Option<DriftWatcher>,
    search: Option<Search>,
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
    /// What is being said of the node. An answer that is lost on the way does not make it old news.
    news: Option<Phase>,
    told: Option<Phase>,
}

impl Worker {
    pub(crate) fn new(
        cluster: Cluster,
        machine: Arc<Machine>,
        events: Events,
        numbers: AgentMetrics,
        (ready, heart): (Check, Arc<Heartbeat>),
        keys: UnboundedSender<Key>,
    ) -> Self {
        let logbook = machine.logbook();
        numbers.show(&logbook);
        Self {
            cluster,
            machine,
            events,
            numbers,
            logbook,
            ready,
            heart,
            keys,
            node: None,
            standing: None,
            lookout: None,
            search: None,
            drift: Drift::default(),
            on_drift: OnDrift::Degrade,
            forced: false,
            foreign: None,
            accessed: false,
            going_down: None,
            failure: None,
            failures: 0,
            unanswered: 0,
            news: None,
            told: None,
        }
    }

    /// Takes note of a change. What to do about it is for the next turn.
    pub(crate) fn hear(&mut self, key: Key) {
        match key {
            Key::Node(node) => {
                let desired = |node: &Option<OwnNode>| {
                    let annotations = &node.as_ref()?.annotations;
                    annotations.get(annotation::DESIRED_CONFIG).cloned()
                };
                if desired(&node) != desired(&self.node) {
                    // What failed on the way to another one says nothing about this one.
                    self.failure = None;
                }
                if node.is_none() {
                    tracing::warn!("there is no Node of this name yet; waiting for it");
                }
                self.node = node;
            }
            Key::Config { name, version } => {
                let search = self.search.as_mut().filter(|search| search.is_for(&name));
                if search.is_some_and(|search| search.hear(version)) {
                    self.failure = None;
                }
            }
            Key::Login(login) => {
                self.accessed = true;
                self.numbers.was_logged_in_to();
                self.tell(NodeEvent::logged_in(&login));
            }
            Key::Machine(News::ForceFile) => match self.machine.is_forced() {
                Ok(forced) => self.forced = forced,
                Err(error) => tracing::warn!("{}", error.with_causes()),
            },
            Key::Machine(News::Path { event, difference }) => {
                let tiding = self.drift.hear(*event, difference, self.on_drift);
                if let Some(tiding) = tiding {
                    self.tell(tiding);
                }
            }
            Key::Machine(News::Ended(error)) => {
                self.lookout = None;
                self.standing = None;
                self.fail(reason(&error));
            }
        }
    }

    /// Observes, plans, applies and reports, once.
    pub(crate) async fn turn(&mut self) -> Turn {
        let turn = self.work().await;
        match ended(turn, &mut self.unanswered, &self.ready) {
            Ok(turn) => turn,
            Err(reason) => {
                self.fail(reason);
                Turn::Again
            }
        }
    }

    /// Ends what runs beside the worker.
    pub(crate) async fn end(mut self) {
        if let Some(lookout) = self.lookout.take()
            && let Err(error) = blocking(move || lookout.stop()).await
        {
            tracing::error!("{}", error.text);
        }
    }

    async fn work(&mut self) -> Result<Turn, Trouble> {
        let Some(node) = self.node.clone() else {
            return Ok(Turn::Rest);
        };
        let said = |name: &str| node.annotations.get(name).map(String::as_str);
        let desired =
            DesiredConfig::of(said(annotation::DESIRED_CONFIG), said(annotation::VOUCHER));
        if let (DesiredConfig::Foreign(name), Some(why)) = (desired, desired.refusal()) {
            return self.keep_off(name, &why).await;
        }
        if let Some(name) = self.foreign.take() {
            tracing::info!("desiredConfig {name} is foreign no more: this node is ours to keep");
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
                return Ok(Turn::Rest);
            }
            self.logbook.heads_for(name, SystemTime::now());
            preflight = self.preflight().await?;
        } else if self.failure.is_none() && self.search.take().is_some() {
            memory::rest();
        }
        let found: Vec<_> = if moves {
            preflight.findings.iter().collect()
        } else {
            self.drift.findings().collect()
        };
        self.numbers.have_drifted(&found);
        let drift: Vec<String> = found.into_iter().map(shown).collect();
        let lasting = self.standing.as_ref().map(|it| it.lasting.clone());
        let sight = Sight {
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
        let phase = Phase::next(&sight);
        if let Some(report) = Report::of(&phase, &sight) {
            self.numbers.is_in(report.state);
            self.report(&node, &phase, &report).await?;
        }
        if self.logbook.comes_to(&phase, SystemTime::now()) {
            self.keep_logbook().await?;
        }
        self.carry_out(phase, preflight).await
    }

    /// Says what is not said yet, in one request.
    async fn report(
        &mut self,
        node: &OwnNode,
        phase: &Phase,
        report: &Report,
    ) -> Result<(), Trouble> {
        // The answer to a request was lost on the way, and pods have left meanwhile: it was asked for all the same.
        if let Some(before) = self.news.take_if(|before| before != phase)
            && let Phase::AwaitDrain { target, .. } = &before
            && node.annotations.get(annotation::DESIRED_DRAIN) == Some(&Drain::request(target))
        {
            self.tell_of(&before).await?;
        }
        let changes = report.changes(&node.annotations);
        if !changes.is_empty() {
            self.news = Some(phase.clone());
            self.write(&changes).await?;
        }
        if self.news.take().as_ref() == Some(phase) && self.told.as_ref() != Some(phase) {
            self.tell_of(phase).await?;
        }
        Ok(())
    }

    /// Tells that the node has come to `phase`, and counts the drains that were asked for.
    async fn tell_of(&mut self, phase: &Phase) -> Result<(), Trouble> {
        let current = self.standing.as_ref().and_then(|it| it.config.as_deref());
        if let Some(tiding) = NodeEvent::of(phase, current) {
            self.tell(tiding);
        }
        self.told = Some(phase.clone());
        if matches!(phase, Phase::AwaitDrain { .. }) {
            self.logbook.drains += 1;
            self.keep_logbook().await?;
        }
        Ok(())
    }

    async fn write(&mut self, changes: &BTreeMap<&'static str, &str>) -> Result<(), Trouble> {
        let answer = self.cluster.annotate(changes).await;
        answer.map_err(Trouble::Cluster)?;
        if let Some(node) = &mut self.node {
            let written = changes
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            node.annotations.extend(written);
        }
        Ok(())
    }

    async fn carry_out(&mut self, phase: Phase, preflight: Preflight) -> Result<Turn, Trouble> {
        match phase {
            Phase::Unmanaged | Phase::AwaitDrain { .. } => Ok(Turn::Rest),
            Phase::Done { .. } => {
                self.failures = 0;
                Ok(Turn::Rest)
            }
            Phase::Degraded(_) => {
                let again = self.failure.as_ref().map_or(MENDED, |failure| {
                    failure.again_at.saturating_duration_since(Instant::now())
                });
                Ok(Turn::After(again))
            }
            Phase::Heal { .. } => {
                self.heal(preflight.findings).await?;
                Ok(Turn::After(LOOK_AGAIN))
            }
            Phase::Apply { target, .. } => {
                let config = self.search.as_ref().and_then(Search::found);
                if let (Some(Ok(config)), Some(Ok(plan))) = (config, preflight.plan) {
                    self.apply(&target, config, plan).await?;
                }
                Ok(Turn::Again)
            }
            Phase::Reboot => {
                let since = self.going_down.map(|told| told.elapsed());
                if let Some(since) = since.filter(|since| *since < REBOOT_AGAIN) {
                    return Ok(Turn::After(REBOOT_AGAIN.saturating_sub(since)));
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
                Ok(Turn::After(REBOOT_AGAIN))
            }
        }
    }

    /// Whether it is known by now what the MachineConfig `name` says, or that there is none.
    async fn look_for(&mut self, name: &str) -> Result<bool, Trouble> {
        let fresh = || Search::begin(name, &self.cluster, &self.keys);
        if self
            .search
            .as_ref()
            .is_none_or(|search| !search.is_for(name))
        {
            self.search = Some(fresh());
        }
        match &mut self.search {
            Some(search) => search.go_on(&self.cluster).await,
            None => Ok(false),
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.failure = Some(Failure::after(&mut self.failures, reason));
    }

    fn tell(&self, tiding: NodeEvent) {
        let uid = self.node.as_ref().map_or("", |node| node.uid.as_str());
        self.numbers.told(tiding.reason());
        tiding.tell(self.cluster.reference(uid), &self.events);
    }
}

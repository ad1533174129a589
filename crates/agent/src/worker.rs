//! The one worker of a node: observes, lets `plan` decide, carries that out, and reports. What a system does in
//! its own way is in [`System`].

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::backoff::Backoff;
use evenkeel_api::names::annotation;
use evenkeel_daemon::{Check, Events, Heartbeat, Stop};
use evenkeel_host::disk::Host;
use evenkeel_host::execute::Progress;
use evenkeel_plan::fleet::node::NodePatch;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::phase::{AgentSnapshot, Drain, Failed, OnDrift, Phase, Reason, Wanted};
use futures::future::{Either, select};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::drift_watcher::DriftWatcher;
use crate::machine::{Machine, Standing, reason};
use crate::metrics::NodeMetrics;
use crate::node_client::NodeClient;
use crate::node_event::NodeEvent;
use crate::own_node::OwnNode;
use crate::pending_events;
use crate::reconcile::{ASK_AGAIN, Failure, RETRY, ReconcileError, Requeue, blocking};
use crate::slow_steps::Steps;
use crate::trigger::Trigger;

/// A machine that has not gone down after this long is told again.
const REBOOT_AGAIN: Duration = Duration::from_mins(5);
/// How long a machine that is to boot waits at most for its Events to be sent.
const FLUSH_EVENTS: Duration = Duration::from_secs(3);
/// How often a worker without work says that it is alive; less than the shortest `--stuck-after`.
const BEAT: Duration = Duration::from_secs(5);

/// What `--stuck-after` says: long enough for a worker to say that it is alive.
pub(crate) fn stuck_after(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(10);
    match evenkeel_api::duration::parse(text)? {
        short if short < LEAST => Err(format!("{text} is too short: write at least 10s")),
        duration => Ok(duration),
    }
}

/// What one system does in its own way.
pub(crate) trait System: Sized + 'static {
    /// Its kind of machine.
    type Host: Host + Send + Sync + 'static;
    /// What may change on it and on no other.
    type Change: Send + 'static;
    /// What is waited for while it is found out where the machine stands.
    const WAIT_TO_SETTLE: &str;

    /// Where Events are counted.
    fn metrics(&self) -> &NodeMetrics;
    /// The own Node is about to be `node`.
    fn observe_node(worker: &mut Worker<Self>, node: Option<&OwnNode>);
    /// Something drifted, or is right again.
    fn observe_drift(
        worker: &mut Worker<Self>,
        event: evenkeel_host::watch::Event,
        difference: String,
    );
    /// Something else has changed.
    fn observe(worker: &mut Worker<Self>, change: Self::Change);
    /// What failed is tried again.
    fn try_again(_: &mut Worker<Self>) {}
    /// Nobody watches the machine any more.
    fn stopped_watching(_: &mut Worker<Self>) {}
    /// Finds out what a decision needs.
    async fn snapshot(worker: &mut Worker<Self>) -> Result<Observation, ReconcileError>;
    /// Says on the Node what is not said yet.
    async fn report(
        worker: &mut Worker<Self>,
        node: &OwnNode,
        phase: &Phase,
        snapshot: &AgentSnapshot<'_>,
    ) -> Result<(), ReconcileError>;
    /// Heals what is in the way of an update.
    async fn heal(worker: &mut Worker<Self>) -> Result<Requeue, ReconcileError>;
    /// Brings the machine to `target` by `plan`.
    async fn apply(
        worker: &mut Worker<Self>,
        target: &str,
        plan: Option<Plan>,
    ) -> Result<(), ReconcileError>;
    /// When a node that is degraded is looked at again.
    fn degraded(worker: &mut Worker<Self>, reason: Reason) -> Requeue;
    /// When something is due that nobody tells of.
    fn due_in(&self) -> Option<Duration> {
        None
    }
    /// Boots the machine anew.
    fn reboot(machine: &Machine<Self::Host>) -> evenkeel_host::Result<()>;
}

/// What a reconcile found out.
pub(crate) enum Observation {
    /// Something is missing: this is when to look again.
    Incomplete(Requeue),
    /// Enough for a decision.
    Complete(Box<SystemSnapshot>),
}

/// What a decision needs, besides what the worker knows anyway.
#[derive(Default)]
pub(crate) struct SystemSnapshot {
    /// The name of what the node shall be and what leads there, or why it cannot; nothing if it stays as it is.
    pub(crate) desired: Option<Result<(String, Plan), Reason>>,
    /// What is not as it should be and is not being healed, in words.
    pub(crate) drift: Vec<String>,
    pub(crate) on_drift: OnDrift,
    pub(crate) forced: bool,
}

/// How a worker shows from outside that it is alive and well. Clones show the same.
#[derive(Clone)]
pub(crate) struct WorkerHealth {
    pub(crate) ready: Check,
    pub(crate) heart: Arc<Heartbeat>,
}

pub(crate) struct Worker<S: System> {
    pub(crate) system: S,
    pub(crate) own_node: NodeClient,
    pub(crate) machine: Arc<Machine<S::Host>>,
    pub(crate) events: Events,
    pub(crate) triggers: UnboundedSender<Trigger<S::Change>>,
    health: WorkerHealth,
    pub(crate) node: Option<OwnNode>,
    /// The API server has said whether there is a Node.
    knows_node: bool,
    pub(crate) standing: Option<Standing>,
    pub(crate) drift_watcher: Option<DriftWatcher>,
    /// When the machine was told to boot.
    rebooting_since: Option<Instant>,
    pub(crate) failure: Option<Failure>,
    failures: Backoff,
    unanswered: Backoff,
    /// The phase that people were told of last.
    pub(crate) told: Option<Phase>,
}

impl<S: System> Worker<S> {
    pub(crate) fn new(
        system: S,
        own_node: NodeClient,
        machine: Arc<Machine<S::Host>>,
        events: Events,
        triggers: UnboundedSender<Trigger<S::Change>>,
        health: WorkerHealth,
    ) -> Self {
        Self {
            system,
            own_node,
            machine,
            events,
            triggers,
            health,
            node: None,
            knows_node: false,
            standing: None,
            drift_watcher: None,
            rebooting_since: None,
            failure: None,
            failures: RETRY,
            unanswered: ASK_AGAIN,
            told: None,
        }
    }

    /// Reconciles again and again until it is asked to stop, and ends what runs next to it.
    pub(crate) async fn run(
        mut self,
        mut queue: UnboundedReceiver<Trigger<S::Change>>,
        stop: &Stop,
    ) {
        let mut requeue = Requeue::Now;
        while !stop.is_asked() {
            let mut trigger = self.next(&mut queue, requeue, stop).await;
            while let Some(observed) = trigger {
                self.observe(observed);
                trigger = queue.try_recv().ok();
            }
            if !stop.is_asked() {
                requeue = self.reconcile().await;
            }
        }
        self.stop_watching().await;
    }

    /// The next trigger, or nothing if it is time without one or it is asked to stop. Whoever waits for something
    /// to do is alive.
    async fn next(
        &self,
        queue: &mut UnboundedReceiver<Trigger<S::Change>>,
        requeue: Requeue,
        stop: &Stop,
    ) -> Option<Trigger<S::Change>> {
        let until = match requeue {
            Requeue::Now => {
                self.health.heart.beat();
                return queue.try_recv().ok();
            }
            Requeue::OnChange => None,
            Requeue::After(pause) => Some(Instant::now() + pause),
        };
        loop {
            self.health.heart.beat();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let nap = left.unwrap_or(BEAT).min(BEAT);
            let next = tokio::time::timeout(nap, queue.recv());
            match select(pin!(next), pin!(stop.stopped())).await {
                Either::Left((Ok(trigger), _)) => return trigger,
                Either::Right(_) => return None,
                Either::Left((Err(_), _)) if left.is_some_and(|left| left <= nap) => return None,
                Either::Left((Err(_), _)) => {}
            }
        }
    }

    /// Takes note of a change. What to do about it is for the next reconcile.
    fn observe(&mut self, trigger: Trigger<S::Change>) {
        match trigger {
            Trigger::Node(node) => {
                S::observe_node(self, node.as_ref());
                self.node = node;
                self.knows_node = true;
            }
            Trigger::Drift { event, difference } => S::observe_drift(self, *event, difference),
            Trigger::WatchEnded(error) => {
                self.drift_watcher = None;
                self.standing = None;
                self.fail(reason(&error));
            }
            Trigger::System(change) => S::observe(self, change),
        }
    }

    /// Observes, plans, applies and reports, once.
    async fn reconcile(&mut self) -> Requeue {
        match self.work().await {
            Ok(requeue) => {
                self.unanswered.reset();
                if self.knows_node {
                    self.health.ready.ready();
                }
                requeue
            }
            Err(ReconcileError::Machine(reason)) => {
                self.fail(reason);
                Requeue::Now
            }
            Err(ReconcileError::Cluster(error)) => {
                let pause = self.unanswered.next_pause();
                self.health
                    .ready
                    .not_ready("the API server does not answer");
                tracing::warn!(%error, "a request to the API server failed; retrying in {pause:?}");
                Requeue::After(pause)
            }
        }
    }

    async fn work(&mut self) -> Result<Requeue, ReconcileError> {
        if self.failure.as_ref().is_some_and(Failure::is_over) {
            self.failure = None;
            S::try_again(self);
        }
        let system = match S::snapshot(self).await? {
            Observation::Incomplete(requeue) => return Ok(requeue),
            Observation::Complete(system) => system,
        };
        let node = self.node.clone().unwrap_or_default();
        let (current, awaits_boot, lasting) = match &self.standing {
            Some(it) => (it.config.clone(), it.awaits_boot, it.lasting.clone()),
            None => (None, false, Vec::new()),
        };
        let failure = self.failure.as_ref().map(|failure| failure.reason.clone());
        let snapshot = AgentSnapshot {
            current: current.as_deref(),
            settled: self.standing.is_some(),
            awaits_boot,
            wanted: match &system.desired {
                None => Wanted::AsItIs,
                Some(Ok((name, plan))) => Wanted::Planned { name, plan },
                Some(Err(reason)) => Wanted::Unfit(reason.clone()),
            },
            drift: &system.drift,
            lasting: &lasting,
            on_drift: system.on_drift,
            forced: system.forced,
            failed: failure.as_ref().map(|reason| Failed {
                reason,
                tries: self.failures.times(),
            }),
            drain: Drain {
                asked: node.said(annotation::DESIRED_DRAIN),
                applied: node.said(annotation::LAST_APPLIED_DRAIN),
            },
        };
        let phase = Phase::next(&snapshot);
        S::report(self, &node, &phase, &snapshot).await?;
        match phase {
            Phase::Unmanaged | Phase::AwaitDrain { .. } => Ok(self.requeue()),
            Phase::Done { .. } => {
                self.failures.reset();
                Ok(self.requeue())
            }
            Phase::Degraded(reason) => Ok(S::degraded(self, reason)),
            Phase::Heal { .. } => S::heal(self).await,
            Phase::Apply { target, .. } => {
                let plan = system.desired.and_then(Result::ok).map(|(_, plan)| plan);
                S::apply(self, &target, plan).await?;
                Ok(Requeue::Now)
            }
            Phase::Reboot => self.reboot().await,
        }
    }

    /// Tells the machine to boot, and again if it does not. Events that cannot be sent before are kept.
    async fn reboot(&mut self) -> Result<Requeue, ReconcileError> {
        let since = self.rebooting_since.map(|told| told.elapsed());
        if let Some(since) = since.filter(|since| *since < REBOOT_AGAIN) {
            return Ok(Requeue::After(REBOOT_AGAIN.saturating_sub(since)));
        }
        if !self.events.flush(FLUSH_EVENTS).await {
            let events = self.events.clone();
            self.on_machine(move |machine| {
                pending_events::keep(&machine.host, &machine.state, &events);
                Ok(())
            })
            .await?;
        }
        self.on_machine(S::reboot).await?;
        self.rebooting_since = Some(Instant::now());
        Ok(Requeue::After(REBOOT_AGAIN))
    }

    /// Finds out where the machine stands, and sends the Events that were kept over a boot.
    pub(crate) async fn settle(&self) -> Result<Standing, ReconcileError> {
        let steps = Steps::after(S::WAIT_TO_SETTLE);
        let standing = steps
            .told_during(self.on_machine(Machine::settle), async |text| {
                self.say_reason(text).await;
            })
            .await?;
        if standing.has_booted {
            tracing::info!("the machine has rebooted for its configuration");
        }
        if !standing.awaits_boot {
            let events = self.events.clone();
            self.on_machine(move |machine| {
                pending_events::tell(&machine.host, &machine.state, &events);
                Ok(())
            })
            .await?;
        }
        Ok(standing)
    }

    /// Carries an update out; a step that takes long is named on the Node. `apply` says `false` if the machine has
    /// changed since the update was planned.
    pub(crate) async fn update(
        &mut self,
        apply: impl FnOnce(
            &Machine<S::Host>,
            &mut dyn FnMut(&Progress<'_>),
        ) -> evenkeel_host::Result<bool>
        + Send
        + 'static,
    ) -> Result<(), ReconcileError> {
        // Wherever this ends, that is found out anew.
        self.standing = None;
        let heart = Arc::clone(&self.health.heart);
        let steps = Steps::after("the journal of the update to be written");
        let shown = steps.clone();
        let applied = self.on_machine(move |machine| {
            apply(machine, &mut |progress| {
                heart.beat();
                shown.show(progress);
            })
        });
        let applied = steps
            .told_during(applied, async |text| self.say_reason(text).await)
            .await?;
        if !applied {
            tracing::info!(
                "the machine has changed since the update was planned; planning it again"
            );
        }
        Ok(())
    }

    /// Ends the watch of the machine, if there is one, and waits for that; `true` if there was one.
    pub(crate) async fn stop_watching(&mut self) -> bool {
        let watcher = self.drift_watcher.take();
        let watched = watcher.is_some();
        if let Err(reason) = blocking(move || drop(watcher)).await {
            tracing::error!("{}", reason.text);
        }
        S::stopped_watching(self);
        watched
    }

    /// Writes `patch` on the own Node.
    pub(crate) async fn write(&mut self, patch: NodePatch) -> Result<(), ReconcileError> {
        let answer = self.own_node.patch(&patch).await;
        answer.map_err(ReconcileError::Cluster)?;
        if let Some(node) = &mut self.node {
            node.was_patched(patch);
        }
        Ok(())
    }

    /// Says on the Node what is waited for. What cannot be said now is said with the next phase.
    pub(crate) async fn say_reason(&self, text: String) {
        tracing::warn!("{text}");
        let patch = NodePatch::default().with(annotation::REASON, text);
        if let Err(error) = self.own_node.patch(&patch).await {
            tracing::warn!(%error, "cannot write the reason on the Node");
        }
    }

    /// Until something changes, or a failure is tried again, or something is due.
    pub(crate) fn requeue(&self) -> Requeue {
        let due = [
            self.failure.as_ref().map(Failure::again_in),
            self.system.due_in(),
        ];
        let first = due.into_iter().flatten().min();
        first.map_or(Requeue::OnChange, Requeue::After)
    }

    pub(crate) fn fail(&mut self, reason: Reason) {
        let pause = self.failures.next_pause();
        self.failure = Some(Failure::tried_again_after(pause, reason));
    }

    /// Sends an Event, and counts it.
    pub(crate) fn tell(&self, event: NodeEvent) {
        let uid = self.node.as_ref().map_or("", |node| node.uid.as_str());
        self.system.metrics().told(event.category());
        event.tell(self.own_node.reference(uid), &self.events);
    }

    /// Asks something of the machine, in a thread that may wait.
    pub(crate) async fn on_machine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Machine<S::Host>) -> evenkeel_host::Result<T> + Send + 'static,
    ) -> Result<T, ReconcileError> {
        let machine = Arc::clone(&self.machine);
        let done = blocking(move || work(&machine)).await?;
        Ok(done.map_err(|error| reason(&error))?)
    }
}

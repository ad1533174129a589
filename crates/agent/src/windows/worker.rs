//! The one worker of a Windows node: looks at what is known, lets `plan` decide, carries that out, and
//! reports.

mod errands;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_daemon::{Check, Events};
use evenkeel_host::Error;
use evenkeel_host::watch::Event;
use evenkeel_plan::phase::{Drain, Failed, OnDrift, Phase, Reason, Sight, Wanted};
use evenkeel_plan::targets::Part;
use evenkeel_plan::windows_node::{Told, has_served, report};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::cluster::{Cluster, OwnNode};
use super::lookout::{Lookout, News};
use super::machine::{Kept, Machine, Standing, Way, Wish};
use super::tidings::Tiding;
use super::values::Scripts;

/// How long after a failure it is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));
/// How long after the API server did not answer it is asked again, at first and at most.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A machine that has not gone down after this long is told again.
const REBOOT_AGAIN: Duration = Duration::from_mins(5);

/// Something that may have changed.
#[derive(Debug)]
pub(crate) enum Key {
    /// The own Node, or that it is gone.
    Node(Option<OwnNode>),
    /// The data of a services ConfigMap, or that there is none.
    Services {
        name: String,
        data: Option<BTreeMap<String, String>>,
    },
    /// Something on the machine.
    Machine(News),
}

/// When the worker works again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// When something changes.
    Rest,
    /// At once, after what has changed by now.
    Again,
    /// When something changes, and after this long.
    After(Duration),
}

/// Why a turn did not come to its end.
enum Trouble {
    /// The API server did not answer.
    Cluster(kube::Error),
    /// The machine said no.
    Machine(Reason),
}

impl From<Reason> for Trouble {
    fn from(reason: Reason) -> Self {
        Self::Machine(reason)
    }
}

/// A failure that is tried again later.
struct Failure {
    reason: Reason,
    again_at: Instant,
}

/// The ConfigMap of the version that the node is told, as it is watched.
struct Search {
    name: String,
    watch: JoinHandle<()>,
    heard: Heard,
}

/// What the watch of a ConfigMap has said.
#[derive(Debug, Clone)]
enum Heard {
    /// Nothing yet.
    NotYet,
    /// There is none.
    Missing,
    /// Its data.
    Data(BTreeMap<String, String>),
}

impl Drop for Search {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// What was planned from what, so that nothing is looked at twice for the same.
struct Planned {
    wish: Wish,
    kept: Kept,
    way: Way,
    missing: Vec<String>,
}

pub(crate) struct Worker {
    cluster: Cluster,
    machine: Arc<Machine>,
    events: Events,
    ready: Check,
    keys: UnboundedSender<Key>,
    script_limit: Duration,
    scripts: Arc<Mutex<(String, Scripts)>>,
    node: Option<OwnNode>,
    standing: Option<Standing>,
    lookout: Option<Lookout>,
    search: Option<Search>,
    planned: Option<Planned>,
    going_down: Option<Instant>,
    failure: Option<Failure>,
    failures: u32,
    unanswered: u32,
    said: Option<Phase>,
}

impl Worker {
    pub(crate) fn new(
        cluster: Cluster,
        machine: Arc<Machine>,
        events: Events,
        ready: Check,
        keys: UnboundedSender<Key>,
        script_limit: Duration,
    ) -> Self {
        Self {
            cluster,
            machine,
            events,
            ready,
            keys,
            script_limit,
            scripts: Arc::default(),
            node: None,
            standing: None,
            lookout: None,
            search: None,
            planned: None,
            going_down: None,
            failure: None,
            failures: 0,
            unanswered: 0,
            said: None,
        }
    }

    /// Takes note of a change. What to do about it is for the next turn.
    pub(crate) fn hear(&mut self, key: Key) {
        match key {
            Key::Node(node) => {
                let told = |node: &Option<OwnNode>| Told::by(&node.as_ref()?.annotations);
                if told(&node) != told(&self.node) {
                    // What failed on the way to another one says nothing about this one.
                    self.failure = None;
                }
                self.node = node;
            }
            Key::Services { name, data } => {
                let search = self.search.as_mut().filter(|search| search.name == name);
                if let Some(search) = search {
                    self.failure = None;
                    search.heard = data.map_or(Heard::Missing, Heard::Data);
                }
            }
            Key::Machine(News::Event(event)) => {
                if let Event::HealFailed { finding, .. } | Event::Recovered { finding } = &*event
                    && matches!(finding.part, Part::Payload(_))
                {
                    // What the store lacks is listed on the Node, until somebody has brought it.
                    self.planned = None;
                    self.failure = None;
                }
                if let Some(tiding) = Tiding::drift(&event) {
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
        match self.work().await {
            Ok(turn) => {
                self.unanswered = 0;
                self.ready.ready();
                turn
            }
            Err(Trouble::Machine(reason)) => {
                self.fail(reason);
                Turn::Again
            }
            Err(Trouble::Cluster(error)) => {
                let pause = pause(ASK_AGAIN, self.unanswered);
                self.unanswered = self.unanswered.saturating_add(1);
                self.ready.not_ready("the API server does not answer");
                tracing::warn!(%error, "the API server did not do what was asked; asking again in {pause:?}");
                Turn::After(pause)
            }
        }
    }

    /// Ends what runs beside the worker.
    pub(crate) async fn end(mut self) {
        self.stop_watching().await;
    }

    async fn work(&mut self) -> Result<Turn, Trouble> {
        if self
            .failure
            .as_ref()
            .is_some_and(|it| it.again_at <= Instant::now())
        {
            self.failure = None;
            self.planned = None;
        }
        // Without the cluster, too: what was accepted last is kept.
        if self.failure.is_none() {
            self.settle().await?;
        }
        let Some(node) = self.node.clone() else {
            return Ok(self.rest());
        };
        let told = Told::by(&node.annotations);
        let mut unfit = None;
        if self.failure.is_none()
            && let Some(told) = &told
        {
            match self.wish(&node, told).await? {
                Ok(Some((wish, kept, missing))) => self.plan(wish, kept, missing).await?,
                Ok(None) => return Ok(self.rest()),
                Err(reason) => unfit = Some(reason),
            }
        }
        let (current, awaits_boot) = match &self.standing {
            Some(standing) => (standing.config.clone(), standing.awaits_boot),
            None => (None, false),
        };
        let said = |name: &str| node.annotations.get(name).map(String::as_str);
        let served = has_served(&node.annotations);
        let way = self
            .planned
            .as_ref()
            .map(|planned| planned.way.plan.clone());
        let way = way.map(|plan| if served { plan } else { plan.without_drain() });
        let done = |plan: &evenkeel_plan::machine::Plan| {
            plan.steps.is_empty() && plan.record.config == current
        };
        let wanted = match (&unfit, &way, &self.planned) {
            (Some(reason), _, _) => Wanted::Unfit(reason.clone()),
            (None, Some(plan), Some(planned)) if !done(plan) => Wanted::Planned {
                name: planned.kept.hash.as_str(),
                plan,
            },
            (None, _, Some(planned)) if !planned.missing.is_empty() => Wanted::Unfit(Reason::new(
                "ServicesIncomplete",
                planned.missing.join("; "),
            )),
            _ => Wanted::AsItIs,
        };
        let sight = Sight {
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
        let phase = Phase::next(&sight);
        let gives_up = sight.gives_up_its_leave();
        self.report(&node, &phase, told.as_ref(), gives_up).await?;
        self.carry_out(phase).await
    }

    /// Says what is not said yet, in one request.
    async fn report(
        &mut self,
        node: &OwnNode,
        phase: &Phase,
        told: Option<&Told>,
        gives_up: bool,
    ) -> Result<(), Trouble> {
        let missing = self.planned.as_ref().map(|it| it.way.missing.clone());
        let missing = missing.unwrap_or_default();
        let change = report(&node.annotations, phase, told, &missing, gives_up);
        if !change.is_empty() {
            self.cluster
                .change(&change)
                .await
                .map_err(Trouble::Cluster)?;
            if let Some(node) = &mut self.node {
                for (name, value) in change.annotations {
                    match value {
                        Some(value) => _ = node.annotations.insert(name.to_owned(), value),
                        None => _ = node.annotations.remove(name),
                    }
                }
            }
        }
        if self.said.as_ref() != Some(phase) {
            if let Some(tiding) = Tiding::of(phase) {
                self.tell(tiding);
            }
            self.said = Some(phase.clone());
        }
        Ok(())
    }

    async fn carry_out(&mut self, phase: Phase) -> Result<Turn, Trouble> {
        match phase {
            Phase::Unmanaged | Phase::AwaitDrain { .. } | Phase::Heal { .. } => Ok(self.rest()),
            Phase::Done { .. } => {
                self.failures = 0;
                Ok(self.rest())
            }
            Phase::Degraded(reason) => {
                if self.failure.is_none() {
                    // Nobody may tell us when it is better: a script, a file.
                    self.fail(reason);
                }
                Ok(self.rest())
            }
            Phase::Apply { .. } => {
                if let Some(planned) = self.planned.take() {
                    self.stop_watching().await;
                    // Wherever this ends, that is found out anew.
                    self.standing = None;
                    let Planned {
                        wish, kept, way, ..
                    } = planned;
                    let applied = self
                        .on_machine(move |machine| machine.apply(&way, &wish, &kept))
                        .await?;
                    if !applied {
                        tracing::info!(
                            "the machine has changed since it was looked at; looking again"
                        );
                    }
                }
                Ok(Turn::Again)
            }
            Phase::Reboot => {
                let since = self.going_down.map(|told| told.elapsed());
                if let Some(since) = since.filter(|since| *since < REBOOT_AGAIN) {
                    return Ok(Turn::After(REBOOT_AGAIN.saturating_sub(since)));
                }
                self.on_machine(Machine::reboot).await?;
                self.going_down = Some(Instant::now());
                Ok(Turn::After(REBOOT_AGAIN))
            }
        }
    }

    /// Until something changes, or a failure is tried again.
    fn rest(&self) -> Turn {
        self.failure.as_ref().map_or(Turn::Rest, |failure| {
            Turn::After(failure.again_at.saturating_duration_since(Instant::now()))
        })
    }

    fn fail(&mut self, reason: Reason) {
        let pause = pause(RETRY, self.failures);
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(Failure {
            reason,
            again_at: Instant::now() + pause,
        });
    }

    fn tell(&self, tiding: Tiding) {
        let uid = self.node.as_ref().map_or("", |node| node.uid.as_str());
        tiding.tell(self.cluster.reference(uid), &self.events);
    }
}

/// Does what may wait, in a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Reason> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|error| Reason::new("Crashed", format!("this is a mistake of ours: {error}")))
}

fn reason(error: &Error) -> Reason {
    Reason::new(error.category(), error.with_causes())
}

fn refused(error: &evenkeel_api::version::NotAVersion) -> Reason {
    Reason::new(error.category(), error.to_string())
}

/// Twice as long each time, within limits.
fn pause((first, longest): (Duration, Duration), times: u32) -> Duration {
    first.saturating_mul(1 << times.min(10)).min(longest)
}

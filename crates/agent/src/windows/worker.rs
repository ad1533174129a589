//! The one worker of a Windows node: looks at what is known, lets `plan` decide, carries that out, and
//! reports.

mod errands;
mod outcome;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_daemon::{Check, Events, Heartbeat};
use evenkeel_host::Error;
use evenkeel_host::watch::Event;
use evenkeel_plan::phase::{Drain, Failed, OnDrift, Phase, Reason, Sight, Wanted};
use evenkeel_plan::targets::Part;
use evenkeel_plan::windows_node::{Progress, Told, has_served};
use tokio::sync::mpsc::UnboundedSender;

use self::errands::Wanting;
use super::cluster::{Cluster, OwnNode};
use super::drift::Drift;
use super::lookout::{Lookout, News};
use super::machine::{Kept, Machine, Standing, Way, Wish};
use super::numbers::Numbers;
use super::search::Search;
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
    /// A script for the services with this hash has ended.
    Script {
        hash: String,
        path: String,
        printed: Result<String, String>,
    },
    /// There is a new login: this worker ends, and the next one goes on.
    Renewed,
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

/// What was planned from what, so that nothing is looked at twice for the same.
struct Planned {
    wish: Wish,
    kept: Kept,
    way: Way,
    /// What has no value, in words.
    unknown: Vec<String>,
    /// A script still runs; what it prints comes later.
    waits: bool,
}

impl Planned {
    /// All that is lacking, in words.
    fn lacking(&self) -> Vec<String> {
        let lost = self.way.missing.iter().map(|path| {
            format!("file {path}: its contents are neither there nor in the store: the operator brings them")
        });
        self.unknown.iter().cloned().chain(lost).collect()
    }
}

/// How a worker shows from outside how it is. Clones show the same.
#[derive(Clone)]
pub(crate) struct Signs {
    pub(crate) numbers: Numbers,
    pub(crate) ready: Check,
    pub(crate) heart: Arc<Heartbeat>,
}

pub(crate) struct Worker {
    cluster: Cluster,
    machine: Arc<Machine>,
    events: Events,
    numbers: Numbers,
    ready: Check,
    heart: Arc<Heartbeat>,
    keys: UnboundedSender<Key>,
    scripts: Scripts,
    node: Option<OwnNode>,
    standing: Option<Standing>,
    lookout: Option<Lookout>,
    search: Option<Search>,
    planned: Option<Planned>,
    drift: Drift,
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
        signs: Signs,
        keys: UnboundedSender<Key>,
        script_limit: Duration,
    ) -> Self {
        Self {
            cluster,
            machine,
            events,
            numbers: signs.numbers,
            ready: signs.ready,
            heart: signs.heart,
            scripts: Scripts::new(script_limit, keys.clone()),
            keys,
            node: None,
            standing: None,
            lookout: None,
            search: None,
            planned: None,
            drift: Drift::default(),
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
            Key::Services { name, data } => {
                let search = self.search.as_mut().filter(|search| search.is_for(&name));
                if let Some(search) = search {
                    self.failure = None;
                    search.hear(data);
                }
            }
            Key::Script {
                hash,
                path,
                printed,
            } => self.scripts.hear(&hash, path, printed),
            Key::Renewed => {}
            Key::Machine(News::Event(event)) => {
                if let Event::HealFailed { finding, .. } | Event::Recovered { finding } = &*event
                    && matches!(finding.part, Part::Payload(_))
                {
                    // What the store lacks is listed on the Node, until somebody has brought it; then
                    // the store gets its copy.
                    self.planned = None;
                    self.failure = None;
                    if let Event::Recovered { .. } = &*event {
                        self.standing = None;
                    }
                }
                self.numbers.hear(&event);
                self.drift.hear(&event);
                self.look_anew();
                if let Some(tiding) = Tiding::drift(&event) {
                    self.tell(tiding);
                }
            }
            Key::Machine(News::Looked) => self.drift.was_looked_for(),
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
            self.scripts.try_again();
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
            match self.want(&node, told).await? {
                Wanting::Planned => {}
                Wanting::NotYet => return Ok(self.rest()),
                Wanting::Unfit(reason) => unfit = Some(reason),
            }
        }
        let (current, awaits_boot) = match &self.standing {
            Some(standing) => (standing.config.clone(), standing.awaits_boot),
            None => (None, false),
        };
        let said = |name: &str| node.annotations.get(name).map(String::as_str);
        let planned = self.planned.as_ref().map(|planned| {
            let plan = planned.way.plan.clone();
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
                return Ok(self.rest());
            }
            if let Some(patience) = self.drift.patience().filter(|_| !has_said(hash)) {
                return Ok(Turn::After(patience));
            }
        }
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

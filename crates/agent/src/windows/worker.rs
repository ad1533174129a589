//! The one worker of a Windows node: looks at what is known, lets `plan` decide, carries that out, and
//! reports.

mod errands;
mod outcome;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_daemon::{Check, Events, Heartbeat};
use evenkeel_host::watch::Event;
use evenkeel_plan::phase::{Drain, Failed, OnDrift, Phase, Reason, Sight, Wanted};
use evenkeel_plan::targets::Part;
use evenkeel_plan::trust::Published;
use evenkeel_plan::waiting::Waiting;
use evenkeel_plan::windows_node::{Progress, Told, has_served};
use tokio::sync::mpsc::UnboundedSender;

use self::errands::Wanting;
use super::cluster::{Cluster, OwnNode};
use super::drift::Drift;
use super::drift_watcher::{DriftWatcher, News};
use super::machine::{Kept, Machine, Standing, Way, Wish};
use super::metrics::AgentMetrics;
use super::roots::Roots;
use super::search::Search;
use super::values::Scripts;
use crate::node_event::NodeEvent;
use crate::turn::{Failure, Trouble, Turn, ended, reason};

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
    /// What the cluster says of its trust bundle.
    Bundle(Published),
    /// The machine's trusted roots may have changed.
    Roots,
    /// There is a new login: this worker ends, and the next one goes on.
    Renewed,
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
    pub(crate) numbers: AgentMetrics,
    pub(crate) ready: Check,
    pub(crate) heart: Arc<Heartbeat>,
}

pub(crate) struct Worker {
    cluster: Cluster,
    machine: Arc<Machine>,
    events: Events,
    numbers: AgentMetrics,
    ready: Check,
    heart: Arc<Heartbeat>,
    keys: UnboundedSender<Key>,
    scripts: Scripts,
    roots: Roots,
    node: Option<OwnNode>,
    standing: Option<Standing>,
    lookout: Option<DriftWatcher>,
    search: Option<Search>,
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
        signs: Signs,
        keys: UnboundedSender<Key>,
        script_limit: Duration,
    ) -> Self {
        Self {
            cluster,
            events,
            numbers: signs.numbers,
            ready: signs.ready,
            heart: signs.heart,
            scripts: Scripts::new(script_limit, keys.clone()),
            roots: Roots::watched(&machine, keys.clone()),
            keys,
            machine,
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
            waiting: Waiting::default(),
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
            } => {
                if self.scripts.hear(&hash, path, printed) {
                    // What it lacked it has now, or the reason why not is another one.
                    self.failure = None;
                }
            }
            Key::Bundle(published) => self.roots.publish(published),
            Key::Roots => self.roots.look(),
            Key::Renewed => {}
            Key::Machine(News::Event(event)) => {
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
                self.numbers.hear(&event);
                self.drift.hear(&event);
                self.look_anew();
                if let Some(tiding) = NodeEvent::drift(&event) {
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
        self.stop_watching().await;
    }

    async fn work(&mut self) -> Result<Turn, Trouble> {
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
                let what = self.scripts.running();
                return self.wait_for(&what, self.rest()).await;
            }
            if let Some((what, patience)) = self.drift.patience().filter(|_| !has_said(hash)) {
                return self.wait_for(what, Turn::After(patience)).await;
            }
        }
        self.waiting.is_over();
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

fn refused(error: &evenkeel_api::version::NotAVersion) -> Reason {
    Reason::new(error.category(), error.to_string())
}

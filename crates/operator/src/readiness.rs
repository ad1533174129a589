//! Keeps pods away from nodes whose extensions are not all healthy. `evenkeel_plan::readiness` decides; here
//! it is told what was seen, and what it decides is carried out and reported.
//!
//! One loop hears everything and asks for decisions; each write, each fresh read and each node whose
//! pods are evicted has a future of its own. There is never more than one write to a node at a time.

mod eviction;
mod feeds;
pub(crate) mod metrics;
pub(crate) mod nrc;
mod report;
pub(crate) mod rules;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use evenkeel_api::names::program;
use evenkeel_api::readiness::ReadinessRule;
use evenkeel_daemon::panics::contain;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::readiness::{Feed, LeaseSnapshot, Limits, Moment, Readiness, ReadinessAction};
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};

use self::eviction::Asked;
use self::feeds::{Feeds, Heard};
use self::report::Reporter;
use crate::fleet::drain::metrics::DrainMetrics;

use crate::readiness::metrics::ReadinessMetrics;
use crate::readiness::nrc::{NrcLeader, NrcRules};
use crate::readiness::rules::Rules;
use crate::shared::Shared;

/// How many requests are under way at once.
const REQUESTS: usize = 32;
/// How much may be heard before it is looked at: whoever has more to say waits.
const HEARD: usize = 1024;
/// How often metrics and statuses are updated.
const TICK: Duration = Duration::from_secs(1);

/// What the controller needs besides what all have.
pub(crate) struct Needs<'a> {
    pub(crate) rules: &'a Rules,
    /// Rules of node-readiness-controller, if they are followed, too.
    pub(crate) nrc: Option<&'a NrcRules>,
    pub(crate) metrics: &'a ReadinessMetrics,
    pub(crate) drains: &'a DrainMetrics,
    pub(crate) limits: Limits,
    /// Where our own Lease is.
    pub(crate) namespace: &'a str,
}

/// Decides on readiness until the program is asked to stop.
pub(crate) async fn run(shared: &Shared, needs: Needs<'_>) {
    let (sender, mut heard) = mpsc::channel(HEARD);
    let touched = shared.nodes.store().follow();
    let mut rules = needs.rules.store().changes();
    let mut theirs = Changes::of(needs.nrc);
    let mut nodes = shared.nodes.store().changes();
    let mut controller = ReadinessController {
        shared,
        readiness: Readiness::new(needs.limits),
        start: Instant::now(),
        feeds: Feeds::new(
            shared.client.clone(),
            sender.clone(),
            (needs.namespace, program::OPERATOR),
        ),
        has_begun: false,
        are_rules_set: false,
        watching: None,
        waiting: VecDeque::new(),
        work: FuturesUnordered::new(),
        requests: 0,
        evictions: BTreeMap::new(),
        heard: sender,
        reporter: Reporter::default(),
        ticks: 0,
        failed: BTreeMap::new(),
        holding: BTreeSet::new(),
        released: BTreeSet::new(),
        needs,
    };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = controller.next();
        tokio::select! {
            () = shared.stop.stopped() => break,
            names = touched.take() => names.iter().for_each(|name| controller.see(name)),
            Ok(()) = rules.changed() => controller.are_rules_set = false,
            () = theirs.next() => controller.are_rules_set = false,
            Ok(()) = nodes.changed(), if !controller.has_begun => {}
            Some(said) = heard.recv() => {
                controller.observe(said);
                while let Ok(said) = heard.try_recv() {
                    controller.observe(said);
                }
            }
            Some(done) = controller.work.next() => controller.finished(done),
            () = tokio::time::sleep_until(next.into()) => {}
            _ = tick.tick() => controller.report(),
        }
        controller.go_on();
    }
    // Evictions end after the step that they are at.
    for asked in controller.evictions.values() {
        asked.send_replace(None);
    }
    while controller.work.next().await.is_some() {}
}

/// What a piece of work came to.
enum Done {
    /// A write on a node: whether it took effect, and the Node as it is after it.
    Written {
        node: String,
        what: &'static str,
        outcome: Written,
    },
    /// A fresh read of what a node is silent about.
    Read { node: String, found: Read },
    /// So many pods were found on a node that had no taint.
    Exposed(usize),
    /// The status of a rule was written, or could not be.
    Said,
    /// A rule of node-readiness-controller is held, or let go, or could not be.
    Held { uid: String, is_done: bool },
    /// Nobody is to be evicted any more.
    Evicted(String),
}

/// What a fresh read has found.
enum Read {
    Found(Vec<(Feed, String, Option<LeaseSnapshot>)>),
    /// This may not be read, or who serves it is late, and why.
    Refused(Feed, String),
    /// The API server did not answer in time.
    Failed,
}

enum Written {
    /// This is there now, if anything: by us, or because somebody else was quicker.
    Now {
        seen: Option<Box<NodeFacts>>,
        is_written: bool,
    },
    Failed(String),
}

/// Tells when something is new about the rules of node-readiness-controller; never, if they are not followed.
struct Changes {
    rules: Option<watch::Receiver<()>>,
    leader: Option<watch::Receiver<NrcLeader>>,
}

impl Changes {
    fn of(rules: Option<&NrcRules>) -> Self {
        Self {
            rules: rules.map(|it| it.store().changes()),
            leader: rules.map(NrcRules::leader_changes),
        }
    }

    async fn next(&mut self) {
        match (&mut self.rules, &mut self.leader) {
            (Some(rules), Some(leader)) => tokio::select! {
                Ok(()) = rules.changed() => {}
                Ok(()) = leader.changed() => {}
                else => std::future::pending().await,
            },
            _ => std::future::pending().await,
        }
    }
}

struct ReadinessController<'s> {
    shared: &'s Shared,
    needs: Needs<'s>,
    readiness: Readiness,
    start: Instant,
    feeds: Feeds,
    has_begun: bool,
    /// Whether decisions are made by the rules as they are.
    are_rules_set: bool,
    /// As of which change of what is needed watches run.
    watching: Option<u64>,
    /// What is to be done when fewer requests are under way.
    waiting: VecDeque<ReadinessAction>,
    work: FuturesUnordered<LocalBoxFuture<'s, Done>>,
    requests: usize,
    /// Nodes whose pods are evicted, and how to have others evicted, or none.
    evictions: BTreeMap<String, watch::Sender<Asked>>,
    /// What the work under way tells before it is done.
    heard: mpsc::Sender<Heard>,
    reporter: Reporter,
    ticks: u32,
    /// Nodes that could not be written, with why.
    failed: BTreeMap<String, String>,
    /// Rules of node-readiness-controller, by uid, that are being held or let go.
    holding: BTreeSet<String>,
    /// Those that were let go. Until the watch tells that they are gone, a node may come that has the taint of another.
    released: BTreeSet<String>,
}

impl ReadinessController<'_> {
    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    /// When there is something to decide though nothing is heard.
    fn next(&self) -> Instant {
        let next = self.readiness.next().map(|at| self.start + at.0);
        next.unwrap_or_else(|| Instant::now() + Duration::from_mins(1))
    }

    /// There is something new about a Node.
    fn see(&mut self, name: &str) {
        let now = self.now();
        let snapshot = self
            .shared
            .nodes
            .store()
            .look(|all| all.get(name).map(NodeFacts::snapshot));
        let readiness = &mut self.readiness;
        contain("readiness", name, || match snapshot {
            Some(snapshot) => readiness.see_node(snapshot, now),
            None => readiness.forget_node(name, now),
        });
    }

    fn observe(&mut self, said: Heard) {
        let now = self.now();
        match said {
            Heard::Relisting(feed) => self.readiness.relisting(&feed),
            Heard::Listed(feed) => {
                self.reporter.works(&feed);
                self.readiness.listed(&feed, now);
            }
            Heard::Lease(feed, name, snapshot) => {
                self.readiness.see_lease(&feed, &name, snapshot, now);
            }
            Heard::LostLease(feed, name) => self.readiness.lose_lease(&feed, &name),
            Heard::Pod(feed, snapshot) => self.readiness.see_pod(&feed, snapshot, now),
            Heard::LostPod(feed, node, name) => self.readiness.lose_pod(&feed, &node, &name),
            Heard::Failed(feed, why) => self.reporter.fails(feed, why),
            Heard::Evicted(node, taints) => self.readiness.evicted(&node, &taints),
            Heard::Watch(true) => self.readiness.regain_watch(now),
            Heard::Watch(false) => self.lose_watch(),
        }
    }

    fn lose_watch(&mut self) {
        if !self.readiness.is_blind() {
            self.needs.metrics.interrupted();
            tracing::warn!(
                "the API server does not answer in time: silence counts for nothing until it does"
            );
        }
        self.readiness.lose_watch();
    }

    /// Decides, and begins whatever can begin now.
    fn go_on(&mut self) {
        if !self.has_begun && !self.begin() {
            return;
        }
        let now = self.now();
        // Something is heard hundreds of times a second, and neither of these is another then.
        if !self.are_rules_set {
            self.readiness.set_rules(self.rules(), now);
            self.are_rules_set = true;
        }
        let actions = self.readiness.decide(now);
        let needed = Some(self.readiness.feeds_changed());
        if self.watching != needed {
            self.feeds.run(&self.readiness.feeds());
            self.watching = needed;
        }
        for action in actions {
            match action {
                ReadinessAction::Relist(feed) => {
                    tracing::warn!("{} are out of date: listing them again", feed.describe());
                    self.needs.metrics.relisted();
                    self.feeds.restart(&feed);
                }
                ReadinessAction::Evict { node, taints } => self.evict(node, taints),
                ReadinessAction::Spare(node) => {
                    if let Some(asked) = self.evictions.get(&node) {
                        asked.send_replace(None);
                    }
                }
                other => self.waiting.push_back(other),
            }
        }
        while self.requests < REQUESTS
            && let Some(action) = self.waiting.pop_front()
        {
            self.requests += 1;
            self.carry_out(action);
        }
    }

    /// Rules and nodes are known: from now on it counts.
    fn begin(&mut self) -> bool {
        let is_listed = self.shared.nodes.store().is_listed()
            && self.needs.rules.store().is_listed()
            && self.needs.nrc.is_none_or(|it| it.store().is_listed());
        if is_listed {
            self.has_begun = true;
            let names = self
                .shared
                .nodes
                .store()
                .look(|all| all.keys().cloned().collect::<Vec<_>>());
            for name in names {
                self.see(&name);
            }
            self.readiness.begin(self.rules(), self.now());
            self.are_rules_set = true;
        }
        is_listed
    }

    /// The rules that can be followed.
    fn rules(&self) -> Vec<ReadinessRule> {
        let own = self.needs.rules.store().look(|all| {
            let valid = all.values().filter_map(|it| it.rule.clone().ok());
            valid.collect::<Vec<_>>()
        });
        let theirs = self.needs.nrc.map(NrcRules::rules);
        let theirs = theirs.into_iter().flatten();
        own.into_iter()
            .chain(theirs.filter(|it| !self.released.contains(&it.uid)))
            .collect()
    }

    /// A piece of work has come to its end.
    fn finished(&mut self, done: Done) {
        let now = self.now();
        match done {
            Done::Written {
                node,
                what,
                outcome,
            } => {
                self.requests -= 1;
                let is_done = match outcome {
                    Written::Now { seen, is_written } => {
                        let what = if is_written { what } else { "refused" };
                        self.needs.metrics.wrote(what);
                        self.failed.remove(&node);
                        match seen {
                            Some(seen) => self.readiness.see_node(seen.snapshot(), now),
                            None => self.readiness.forget_node(&node, now),
                        }
                        true
                    }
                    Written::Failed(why) => {
                        self.needs.metrics.wrote("failed");
                        self.failed.insert(node.clone(), why.clone());
                        tracing::warn!(node, "cannot write the node's taint, will retry: {why}");
                        false
                    }
                };
                self.readiness.written(&node, is_done, now);
            }
            Done::Read { node, found } => {
                self.requests -= 1;
                self.see(&node);
                match found {
                    Read::Found(found) => {
                        let feeds = found.iter().map(|(feed, ..)| feed);
                        feeds.for_each(|feed| self.reporter.reads(feed));
                        self.readiness.confirmed(&node, &found, now);
                    }
                    // That says nothing about what others are silent about.
                    Read::Refused(feed, why) => {
                        self.readiness.unreadable(&node, &feed, now);
                        self.reporter.fails_to_read(feed, why);
                    }
                    Read::Failed => {
                        self.lose_watch();
                        self.readiness.not_confirmed(&node);
                    }
                }
            }
            Done::Exposed(pods) => self.needs.metrics.exposed(pods),
            Done::Said => {}
            Done::Held { uid, is_done } => {
                self.holding.remove(&uid);
                // One that could not be let go is there as before.
                if !is_done && self.released.remove(&uid) {
                    self.are_rules_set = false;
                }
            }
            Done::Evicted(node) => drop(self.evictions.remove(&node)),
        }
    }

    /// Numbers, statuses and what people should hear, once a second.
    fn report(&mut self) {
        if !self.has_begun {
            return;
        }
        self.needs.metrics.show(&self.readiness);
        self.reporter.forget_all_but(&self.readiness.feeds());
        let rules = self
            .needs
            .rules
            .store()
            .look(|all| all.values().cloned().collect::<Vec<_>>());
        for seen in &rules {
            self.reporter.announce(seen, &self.shared.events);
            if let Some(status) = self.reporter.status(seen, &self.readiness) {
                let (store, seen) = (self.needs.rules.clone(), seen.clone());
                let work = async move {
                    // Who was quicker is seen at the next look.
                    if let Err(error) = store.say(&seen, &status).await {
                        tracing::debug!(
                            rule = seen.name,
                            "cannot write the rule's status: {error}"
                        );
                    }
                    Done::Said
                };
                self.work.push(work.boxed_local());
            }
        }
        self.report_theirs();
        // Looking at every node's evidence takes longer, and is in no hurry.
        self.ticks = self.ticks.wrapping_add(1);
        if !self.ticks.is_multiple_of(5) {
            return;
        }
        self.needs.metrics.show_extensions(&self.readiness);
        self.shared.nodes.store().look(|all| {
            for seen in all.values() {
                self.reporter
                    .warn(seen, &self.readiness, &self.shared.events);
            }
        });
    }
}

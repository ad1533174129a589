//! Drains nodes at their agents' request. `evenkeel_plan::drain` decides what happens to a node,
//! `evenkeel_plan::disruption::leave` which node may begin; here it is carried out and reported.
//!
//! One loop looks at all Nodes and grants leave; each node that is worked on has a future of its own, so
//! that a slow drain blocks nobody. All of them live and die with [`run`]: who leads no more does not
//! write any more.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::windows_pool::UpdatingNode;
use evenkeel_daemon::panics::contain_work;
use evenkeel_daemon::{Event, Events, Severity, Stop};
use evenkeel_plan::disruption::leave::{self, Allowance, Leave};
use evenkeel_plan::drain::{self, Announcement, Attempt, Next, Pod, Settings};
use evenkeel_plan::node::{Node, Request};
use evenkeel_plan::pool::{Assignment, Place, place};
use evenkeel_plan::windows_pool;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use kube::Client;

use super::Shared;
use crate::drain_metrics::DrainMetrics;
use crate::installation::Installation;
use crate::nodes::{Nodes, Seen};
use crate::pods::{self, Eviction};
use crate::pools::Pools;

/// The first pause between two looks at a node that is drained; it doubles while nothing changes.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause after the API server failed.
const LONGEST_PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// What each node that is worked on adds to the pauses of all: together they look 50 times a second.
const PAUSE_FOR_EACH: Duration = Duration::from_millis(20);
/// How many evictions of one node are asked for at once.
const EVICTIONS: usize = 8;

/// What is needed to carry a plan out.
#[derive(Clone)]
struct Cluster {
    client: Client,
    nodes: Nodes,
    pools: Pools,
    installation: Installation,
    events: Events,
    metrics: DrainMetrics,
    /// For what a pool does not say.
    settings: Settings,
    stop: Stop,
    /// How many nodes are worked on.
    crowd: Rc<Cell<usize>>,
}

/// Answers agents until the daemon is asked to stop.
pub(crate) async fn run(
    shared: &Shared,
    metrics: &DrainMetrics,
    settings: Settings,
    installation: Installation,
) {
    let cluster = Cluster {
        client: shared.client.clone(),
        nodes: shared.nodes.clone(),
        pools: shared.pools.clone(),
        installation,
        events: shared.events.clone(),
        metrics: metrics.clone(),
        settings,
        stop: shared.stop.clone(),
        crowd: Rc::default(),
    };
    let (mut nodes, mut pools) = (
        shared.nodes.store().changes(),
        shared.pools.store().changes(),
    );
    let mut beside = shared.beside.changes();
    let mut windows = shared.windows.store().changes();
    let mut others = shared.windows.changes();
    let mut fleet = Fleet::new(cluster, shared.clone());
    loop {
        tokio::select! {
            () = shared.stop.stopped() => break,
            Ok(()) = nodes.changed() => {}
            Ok(()) = pools.changed() => {}
            Ok(()) = beside.changed() => {}
            Ok(()) = windows.changed() => {}
            () = others.changed() => {}
            Some(done) = fleet.work.next() => fleet.finished(done),
        }
        fleet.go_on();
    }
    // Each ends after the step it is at. An eviction whose asker goes away half-way may be counted by
    // its budget and not be made, and then holds up everybody for two minutes.
    while fleet.work.next().await.is_some() {}
}

/// The work on some of all nodes.
struct Fleet {
    cluster: Cluster,
    shared: Shared,
    work: FuturesUnordered<LocalBoxFuture<'static, Done>>,
    /// Nodes with work on them, and whether it may begin a drain: they keep their place among those
    /// that are down, also while the watch has not shown it yet.
    busy: BTreeMap<String, bool>,
    /// Nodes the work on which has panicked: for a while it is as if they asked for nothing.
    resting: BTreeSet<String>,
    /// What nodes were told that wait, or ask for something unknown: once is enough.
    told: BTreeMap<String, String>,
}

impl Fleet {
    fn new(cluster: Cluster, shared: Shared) -> Self {
        Self {
            cluster,
            shared,
            work: FuturesUnordered::new(),
            busy: BTreeMap::new(),
            resting: BTreeSet::new(),
            told: BTreeMap::new(),
        }
    }

    /// The work on a node has come to an end.
    fn finished(&mut self, done: Done) {
        self.busy.remove(&done.name);
        match done.how {
            Ended::Over => {}
            Ended::Gone => self.cluster.nodes.store().remove(&done.name, &done.uid),
            // Others have its turn meanwhile.
            Ended::Panicked => {
                self.resting.insert(done.name.clone());
                let rest = self.cluster.clone().rest(done);
                self.work.push(rest.boxed_local());
            }
            Ended::Rested => drop(self.resting.remove(&done.name)),
        }
    }

    /// Those who ask for something, and who of them has leave.
    fn asking(&self) -> (Vec<Seen>, BTreeMap<String, Leave>) {
        // Beside another operator that drains nodes of a system, they are its own.
        let beside = &self.shared.beside;
        let (is_idle, is_idle_for_windows) = (beside.is_idle(), beside.is_idle_for_windows());
        let windows = &self.shared.windows;
        let claims = windows.claims();
        let is_ours = |seen: &&Seen| {
            if seen.node.is_windows() {
                !is_idle_for_windows && windows_pool::is_ours(&seen.node, &claims)
            } else {
                !is_idle
            }
        };
        let rests = |seen: &Seen| self.resting.contains(&seen.node.name);
        let asks = |seen: &&Seen| drain::next(&seen.node) != Next::Nothing && !rests(seen);
        self.cluster.nodes.store().look(|all| {
            let asking: Vec<_> = all.values().filter(is_ours).filter(asks).cloned().collect();
            if asking.is_empty() {
                return (asking, BTreeMap::new());
            }
            let begun = |seen: &&Seen| {
                self.busy.get(&seen.node.name) == Some(&true) && !seen.node.has_leave()
            };
            let begun = all.values().filter(begun).map(|seen| {
                let drain_granted = Some(Timestamp::now().to_string());
                let node = Node {
                    drain_granted,
                    ..seen.node.clone()
                };
                (node.name.clone(), node)
            });
            let silent = |seen: &&Seen| rests(seen) && !seen.node.has_leave();
            let silent = all.values().filter(silent).map(|seen| {
                let desired_drain = None;
                let node = Node {
                    desired_drain,
                    ..seen.node.clone()
                };
                (node.name.clone(), node)
            });
            let begun: BTreeMap<_, _> = begun.chain(silent).collect();
            let nodes = all
                .values()
                .map(|seen| begun.get(&seen.node.name).unwrap_or(&seen.node));
            let pools = self.cluster.pools.wanted();
            let assignment = Assignment::of(&pools, nodes);
            let allowances = pools.iter().map(|pool| pool.allowance);
            let mut answers = BTreeMap::new();
            for (allowance, members) in allowances.zip(&assignment.members) {
                answers.extend(leave::answer(allowance, members));
            }
            answers.extend(leave::answer(Allowance::default(), &assignment.others));
            let mut serving = assignment.windows;
            serving.retain(|node| windows_pool::counts(node, &claims));
            // One whose Machine is made anew is as far away as can be, and holds its place.
            let granted = windows
                .seen()
                .map(|it| it.status.updating)
                .unwrap_or_default();
            let is_away =
                |it: &&UpdatingNode| it.machine_set.is_some() && !all.contains_key(&it.node);
            let away: Vec<&str> = granted
                .iter()
                .filter(is_away)
                .map(|it| it.node.as_str())
                .collect();
            answers.extend(leave::answer_beside(windows.allowance(), &serving, &away));
            (asking, answers)
        })
    }

    /// Begins whatever can begin now.
    fn go_on(&mut self) {
        if !self.shared.is_listed() {
            return;
        }
        let (asking, answers) = self.asking();
        let mut waiting = 0;
        let mut begin = Vec::new();
        let mut told = BTreeMap::new();
        for seen in &asking {
            let name = &seen.node.name;
            if self.busy.contains_key(name) {
                continue;
            }
            let says = match (drain::next(&seen.node), answers.get(name)) {
                (Next::Nothing, _) => None,
                (Next::Unknown(says), _) => Some(says),
                (Next::Leave, Some(Leave::Waits(why))) => {
                    waiting += 1;
                    Some(drain::waits(&seen.node, why))
                }
                (Next::Leave, Some(Leave::Granted)) => {
                    begin.push((seen.clone(), true));
                    None
                }
                // Only a node with leave comes here; a leave without an answer cannot be.
                (Next::Leave | Next::Write(..) | Next::Evict, _) => {
                    let is_drain = matches!(seen.node.request(), Request::Drain(_));
                    begin.push((seen.clone(), is_drain && seen.node.has_leave()));
                    None
                }
            };
            if let Some(says) = says {
                // For whom it waits changes often; that it waits is said once for each request.
                let request = seen.node.desired_drain.clone().unwrap_or_default();
                if self.told.get(name) != Some(&request) {
                    self.cluster.announce(seen, says);
                }
                told.insert(name.clone(), request);
            }
        }
        self.told = told;
        for (seen, may_begin) in begin {
            self.busy.insert(seen.node.name.clone(), may_begin);
            let care = self.cluster.clone().care_unless_it_panics(seen, may_begin);
            self.work.push(care.boxed_local());
        }
        self.cluster.crowd.set(self.busy.len());
        self.cluster.metrics.nodes(self.busy.len(), waiting);
    }
}

impl Cluster {
    /// The same, also if it panics.
    async fn care_unless_it_panics(self, first: Seen, may_begin: bool) -> Done {
        let (name, uid) = (first.node.name.clone(), first.uid.clone());
        let done = contain_work("drain", &name, self.care_for(first, may_begin)).await;
        let how = Ended::Panicked;
        done.unwrap_or(Done { name, uid, how })
    }

    /// The pause of a node after a panic.
    async fn rest(self, done: Done) -> Done {
        self.pause(LONGEST_PAUSE_AFTER_FAILURE).await;
        let how = Ended::Rested;
        Done { how, ..done }
    }

    /// Goes on with one node until nothing is left to do.
    async fn care_for(self, first: Seen, may_begin: bool) -> Done {
        let (name, uid) = (first.node.name, first.uid);
        let mut drain = Drain::default();
        let mut failure = FIRST_PAUSE;
        loop {
            match self.step(&name, may_begin, &mut drain).await {
                Ok(Step::Over { is_gone }) => {
                    let how = if is_gone { Ended::Gone } else { Ended::Over };
                    return Done { name, uid, how };
                }
                _ if self.stop.is_asked() => {
                    let how = Ended::Over;
                    return Done { name, uid, how };
                }
                Ok(Step::Again) => failure = FIRST_PAUSE,
                Ok(Step::Wait) => {
                    failure = FIRST_PAUSE;
                    self.pause(drain.pause).await;
                }
                // Somebody else wrote to the Node since we read it: read again.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    self.pause(FIRST_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(node = name, "cannot go on, and try again: {error}");
                    self.pause(failure).await;
                    failure = (failure * 2).min(LONGEST_PAUSE_AFTER_FAILURE);
                }
            }
        }
    }

    /// Waits so long, and longer if many do the same: the API server serves others, too.
    async fn pause(&self, pause: Duration) {
        let nodes = u32::try_from(self.crowd.get()).unwrap_or(u32::MAX);
        let pause = pause.max(PAUSE_FOR_EACH.saturating_mul(nodes));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.stop.stopped() => {}
        }
    }

    /// Observe, plan, apply, report: once.
    async fn step(&self, name: &str, may_begin: bool, drain: &mut Drain) -> kube::Result<Step> {
        let Some(seen) = self.nodes.read(name).await? else {
            return Ok(Step::Over { is_gone: true });
        };
        let (change, says) = match drain::next(&seen.node) {
            Next::Nothing | Next::Unknown(_) => return Ok(self.over(seen)),
            Next::Leave if !may_begin => return Ok(self.over(seen)),
            Next::Leave => drain::grant(&seen.node, Timestamp::now()),
            Next::Write(change, says) => (change, says),
            Next::Evict => return self.round(seen, drain).await,
        };
        self.nodes.write(&seen, &change).await?;
        self.announce(&seen, says);
        Ok(Step::Again)
    }

    /// There is nothing more to do for a node that is as it was `seen`.
    fn over(&self, seen: Seen) -> Step {
        self.nodes.store().put(seen);
        Step::Over { is_gone: false }
    }

    /// How `node` is drained: as its pool says, as far as it does.
    fn settings(&self, node: &Node) -> Settings {
        match place(&self.pools.wanted(), node) {
            Place::In(pool) => pool.drain_settings(self.settings),
            Place::Nowhere | Place::Torn(_) => self.settings,
        }
    }

    /// One round over the pods of a node.
    async fn round(&self, seen: Seen, drain: &mut Drain) -> kube::Result<Step> {
        let mut pods = pods::of_node(&self.client, &seen.node.name).await?;
        self.installation.mark(&self.client, &mut pods).await?;
        if drain::is_undecided(&seen.node, &pods) {
            let others = self.nodes.candidates().await?;
            let (change, says) = drain::decide(&seen.node, &pods, &others);
            self.nodes.write(&seen, &change).await?;
            self.announce(&seen, says);
            return Ok(Step::Again);
        }
        let (node, now) = (&seen.node, Timestamp::now());
        let settings = self.settings(node);
        let round = drain::evict(node, &pods, &drain.attempts, settings, now);
        if !round.write.is_empty() {
            self.nodes.write(&seen, &round.write).await?;
        }
        for says in round.says {
            self.announce(&seen, says);
        }
        if round.is_over {
            self.metrics.drained(drain::took(node, now));
            return Ok(Step::Again);
        }
        let left = round.left.iter().map(|pod| pod.uid.clone()).collect();
        let evicted = self.evict(&seen, &round.evict, drain).await;
        drain.progress(left, evicted > 0);
        Ok(Step::Wait)
    }

    /// Asks for the evictions, says what is lost with them, and remembers who was refused.
    async fn evict(&self, seen: &Seen, pods: &[&Pod], drain: &mut Drain) -> usize {
        let answers: Vec<_> = futures::stream::iter(pods)
            .map(async |pod| (*pod, pods::evict(&self.client, pod).await))
            .buffer_unordered(EVICTIONS)
            .collect()
            .await;
        let mut evicted = Vec::new();
        for (pod, answer) in answers {
            match answer {
                Eviction::Accepted => {
                    self.metrics.evicted("accepted");
                    drain.attempts.remove(&pod.uid);
                    evicted.push(pod);
                }
                Eviction::Gone => self.metrics.evicted("gone"),
                Eviction::Refused(refusal, wait) => {
                    self.metrics.evicted(refusal.category());
                    tracing::info!(node = seen.node.name, %pod, "not evicted: {refusal:?}");
                    if let Some(says) = drain::refused(pod, &refusal) {
                        self.announce(seen, says);
                    }
                    let times = drain.attempts.get(&pod.uid).map_or(0, |it| it.times) + 1;
                    let at = Timestamp::now();
                    let attempt = Attempt {
                        times,
                        at,
                        wait,
                        refusal,
                    };
                    drain.attempts.insert(pod.uid.clone(), attempt);
                }
            }
        }
        for says in drain::losses(&evicted) {
            self.announce(seen, says);
        }
        evicted.len()
    }

    fn announce(&self, seen: &Seen, says: Announcement) {
        tracing::info!(
            node = seen.node.name,
            category = says.category,
            "{}",
            says.note
        );
        let severity = if says.warning {
            Severity::Warning
        } else {
            Severity::Normal
        };
        self.events.publish(Event {
            object: seen.reference(),
            severity,
            reason: says.category.to_owned(),
            action: "Drain".to_owned(),
            note: says.note,
        });
    }
}

/// The work on a node has come to an end.
struct Done {
    name: String,
    /// Which Node of that name it was at first.
    uid: String,
    how: Ended,
}

enum Ended {
    /// Nothing is left to do.
    Over,
    /// There is no such Node any more.
    Gone,
    Panicked,
    /// It had its pause after a panic.
    Rested,
}

/// How a step ended.
enum Step {
    /// There is another one to do at once.
    Again,
    /// There is another one to do after a pause.
    Wait,
    /// There is nothing more to do.
    Over {
        /// The node is gone.
        is_gone: bool,
    },
}

/// What is remembered of a drain while it goes on. Whoever takes over does without.
#[derive(Debug)]
struct Drain {
    attempts: BTreeMap<String, Attempt>,
    left: BTreeSet<String>,
    pause: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            attempts: BTreeMap::new(),
            left: BTreeSet::new(),
            pause: FIRST_PAUSE,
        }
    }
}

impl Drain {
    /// Looks again soon while something moves, and less often while nothing does.
    fn progress(&mut self, left: BTreeSet<String>, has_evicted: bool) {
        let moves = has_evicted || left != self.left;
        self.attempts.retain(|uid, _| left.contains(uid));
        self.left = left;
        self.pause = if moves {
            FIRST_PAUSE
        } else {
            (self.pause * 2).min(LONGEST_PAUSE)
        };
    }
}

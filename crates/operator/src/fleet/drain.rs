//! Drains nodes at their agents' request. `evenkeel_plan::fleet::drain` decides what happens to a node,
//! `evenkeel_plan::fleet::budget` which node may begin; here it is carried out and reported.
//!
//! One loop looks at all Nodes and grants permits, which is recorded first; each node that is worked on has a future of its own, so
//! that a slow drain blocks nobody. All of them live and die with [`run`]: who leads no more does not
//! write any more.

mod fleet;
pub(crate) mod metrics;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use evenkeel_api::fleet::permits::Permits;
use evenkeel_api::notice::Notice;
use evenkeel_daemon::panics::contain_work;
use evenkeel_daemon::{Events, Stop};
use evenkeel_plan::fleet::drain::{self, Attempt, DrainSettings, Next, Pod};
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::permit;
use evenkeel_plan::fleet::pool::{Membership, place};
use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;

use self::fleet::Fleet;
use crate::fleet::drain::metrics::DrainMetrics;
use crate::fleet::nodes::{Nodes, Seen};
use crate::fleet::permits::{Page, PermitRecords, Record};
use crate::fleet::pods::{self, Eviction};
use crate::fleet::pools::Pools;
use crate::installation::Installation;
use crate::shared::Shared;
use crate::triggers::Triggers;

/// The first pause between two looks at a node that is drained; it doubles while nothing changes.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause after the API server failed.
const LONGEST_PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// What each node that is worked on adds to the pauses of all: together they look 50 times a second.
const PAUSE_FOR_EACH: Duration = Duration::from_millis(20);
/// The pause after a record of permits could not be written.
const RECORD_PAUSE: Duration = Duration::from_secs(1);
/// How many evictions of one node are asked for at once.
const EVICTIONS: usize = 8;

/// What is needed to carry a plan out.
#[derive(Clone)]
struct Cluster {
    client: Client,
    nodes: Nodes,
    pools: Pools,
    permits: PermitRecords,
    installation: Installation,
    events: Events,
    metrics: DrainMetrics,
    /// For what a pool does not say.
    settings: DrainSettings,
    stop: Stop,
    /// How many nodes are worked on.
    crowd: Rc<Cell<usize>>,
}

/// Answers agents until the daemon is asked to stop.
pub(crate) async fn run(
    shared: &Shared,
    metrics: &DrainMetrics,
    settings: DrainSettings,
    installation: Installation,
) {
    let cluster = Cluster {
        client: shared.client.clone(),
        nodes: shared.nodes.clone(),
        pools: shared.pools.clone(),
        permits: shared.permits.clone(),
        installation,
        events: shared.events.clone(),
        metrics: metrics.clone(),
        settings,
        stop: shared.stop.clone(),
        crowd: Rc::default(),
    };
    let triggers = Triggers::until(&shared.stop)
        .and(shared.nodes.store().changes())
        .and(shared.pools.store().changes())
        .and(shared.coexistence.changes())
        .and(shared.permits.changes());
    let mut triggers = shared.windows.wake(triggers);
    let mut fleet = Fleet::new(cluster, shared.clone());
    loop {
        tokio::select! {
            goes_on = triggers.next(None) => if !goes_on { break },
            Some(done) = fleet.work.next() => fleet.finished(done),
        }
        fleet.go_on();
    }
    // Each ends after the step it is at. An eviction whose asker goes away half-way may be counted by
    // its budget and not be made, and then holds up everybody for two minutes.
    while fleet.work.next().await.is_some() {}
}

impl Cluster {
    /// Makes a record ours, or tries again later.
    async fn claim(self, record: Record) -> Done {
        match self.permits.claim(&record).await {
            // Where it is not ours after all, such as one that is just gone, nobody asks again at once.
            Ok(()) if self.permits.epoch(&record).is_some() => {}
            Ok(()) => self.pause(RECORD_PAUSE).await,
            Err(error) => {
                tracing::warn!("cannot claim the permits of {record}, will retry: {error}");
                self.pause(RECORD_PAUSE).await;
            }
        }
        Done::Claimed(record)
    }

    /// Writes a record, from which permits of `returned` are gone.
    async fn record(
        self,
        record: Record,
        page: Page,
        permits: Permits,
        returned: BTreeSet<String>,
    ) -> Done {
        let is_refused =
            |error: &kube::Error| matches!(error, kube::Error::Api(it) if it.code == 409);
        let returned = match self.permits.write(&page, &permits).await {
            Ok(_) => returned,
            Err(error) => {
                if !is_refused(&error) {
                    // Nobody knows whether it was written, or will be: what is under way is refused once it is claimed anew.
                    self.permits.disown(&record);
                    tracing::warn!("cannot record permits of {record}, will retry: {error}");
                    self.pause(RECORD_PAUSE).await;
                }
                // Somebody else wrote to it: it is decided anew.
                if let Err(error) = self.permits.read(&record).await {
                    tracing::warn!("cannot read the permits of {record}, will retry: {error}");
                    self.pause(RECORD_PAUSE).await;
                }
                BTreeSet::new()
            }
        };
        Done::Recorded { record, returned }
    }

    /// The same, also if it panics: then this node waits for a while. It keeps its permit, because nobody knows how far it was.
    async fn care_unless_it_panics(self, name: String, uid: String) -> Done {
        let care = self.clone().care_for(name.clone(), uid.clone());
        if let Some(done) = contain_work("drain", &name, care).await {
            return done;
        }
        self.pause(LONGEST_PAUSE_AFTER_FAILURE).await;
        Done::Node {
            name,
            uid,
            is_gone: false,
            is_over: false,
        }
    }

    /// Goes on with one node until nothing is left to do.
    async fn care_for(self, name: String, uid: String) -> Done {
        let mut drain = Drain::default();
        let mut failure = FIRST_PAUSE;
        loop {
            match self.step(&name, &mut drain).await {
                Ok(Step::Over { is_gone, is_over }) => {
                    return Done::Node {
                        name,
                        uid,
                        is_gone,
                        is_over,
                    };
                }
                _ if self.stop.is_asked() => {
                    return Done::Node {
                        name,
                        uid,
                        is_gone: false,
                        is_over: false,
                    };
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
                    tracing::warn!(
                        node = name,
                        "cannot continue the drain, will retry: {error}"
                    );
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
    async fn step(&self, name: &str, drain: &mut Drain) -> kube::Result<Step> {
        let Some(mut seen) = self.nodes.read(name).await? else {
            return Ok(Step::Over {
                is_gone: true,
                is_over: true,
            });
        };
        seen.node.has_permit = self.permits.granted().contains_key(name);
        let (change, says) = match drain::next(&seen.node) {
            Next::Nothing | Next::Unknown(_) => return Ok(self.over(seen).await),
            // Looked at after the Node was read: if another one leads by then, the Node is another one before it counts
            // on anything.
            Next::AskForPermit if !self.permits.is_good(name).await? => {
                return Ok(self.over(seen).await);
            }
            Next::AskForPermit => drain::grant(&seen.node, Timestamp::now()),
            Next::Write(change, says) => (change, says),
            Next::Evict => return self.round(seen, drain).await,
        };
        self.nodes.write(&seen, &change).await?;
        self.announce(&seen, says);
        Ok(Step::Again)
    }

    /// There is nothing more to do for a node that is as it was `seen`.
    async fn over(&self, mut seen: Seen) -> Step {
        let is_over = permit::is_over(Some(&seen.node));
        seen.node.has_permit = false;
        let is_known = |all: &BTreeMap<String, Seen>| all.contains_key(&seen.node.name);
        if self.nodes.store().look(is_known) {
            self.nodes.store().put(seen);
        } else if !is_over {
            // It has a permit, and is none of those that we look at any more: nobody tells us when that ends.
            self.pause(LONGEST_PAUSE).await;
        }
        Step::Over {
            is_gone: false,
            is_over,
        }
    }

    /// How `node` is drained: as its pool says, as far as it does.
    fn settings(&self, node: &Node) -> DrainSettings {
        match place(&self.pools.wanted(), node) {
            Membership::In(pool) => pool.drain_settings(self.settings),
            Membership::Nowhere | Membership::Torn(_) => self.settings,
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
        for says in round.notices {
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

    fn announce(&self, seen: &Seen, notice: Notice) {
        self.events.notify(seen.reference(), "Drain", notice);
    }
}

/// Some work has come to an end.
enum Done {
    /// That on a node.
    Node {
        name: String,
        /// Which Node of that name it was at first.
        uid: String,
        /// Whether there is none any more.
        is_gone: bool,
        /// Whether its permit is over.
        is_over: bool,
    },
    /// A record was claimed, or will be tried again.
    Claimed(Record),
    /// A record was written.
    Recorded {
        record: Record,
        /// Nodes whose permits are gone with that.
        returned: BTreeSet<String>,
    },
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
        /// Its permit is over.
        is_over: bool,
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

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

use evenkeel_api::backoff::Backoff;
use evenkeel_api::fleet::permits::Permits;
use evenkeel_api::notice::Notice;
use evenkeel_daemon::panics::contain_work;
use evenkeel_plan::fleet::drain::{self, Attempt, DrainSettings, Next};
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::fleet::permit;
use evenkeel_plan::fleet::pool::{Membership, place};
use futures::StreamExt;
use jiff::Timestamp;

use self::fleet::DrainedFleet;
use crate::fleet::drain::metrics::DrainMetrics;
use crate::fleet::nodes::reference;

use crate::fleet::permits::{Page, Record};
use crate::fleet::pods;
use crate::installation::Installation;
use crate::shared::Shared;
use crate::triggers::Triggers;

/// The first pause between two looks at a node that is drained.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest such pause, while nothing changes.
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
    shared: Shared,
    installation: Installation,
    metrics: DrainMetrics,
    /// For what a pool does not say.
    settings: DrainSettings,
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
        shared: shared.clone(),
        installation,
        metrics: metrics.clone(),
        settings,
        crowd: Rc::default(),
    };
    let triggers = Triggers::until(&shared.stop)
        .and(shared.nodes.store().changes())
        .and(shared.pools.store().changes())
        .and(shared.policies.changes())
        .and(shared.coexistence.changes())
        .and(shared.permits.changes());
    let mut triggers = shared.windows.wake(triggers);
    let mut fleet = DrainedFleet::new(cluster);
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
    async fn claim(self, record: Record) -> DrainDone {
        let permits = &self.shared.permits;
        match permits.claim(&record).await {
            // Where it is not ours after all, such as one that is just gone, nobody asks again at once.
            Ok(()) if permits.epoch(&record).is_some() => {}
            Ok(()) => self.pause(RECORD_PAUSE).await,
            Err(error) => {
                tracing::warn!("cannot claim the permits of {record}, will retry: {error}");
                self.pause(RECORD_PAUSE).await;
            }
        }
        DrainDone::Claimed(record)
    }

    /// Writes a record, from which permits of `returned` are gone.
    async fn record(
        self,
        record: Record,
        page: Page,
        permits: Permits,
        returned: BTreeSet<String>,
    ) -> DrainDone {
        let records = &self.shared.permits;
        let Err(error) = records.write(&page, &permits).await else {
            return DrainDone::Recorded { record, returned };
        };
        if !matches!(&error, kube::Error::Api(it) if it.code == 409) {
            // Nobody knows whether it was written, or will be: what is under way is refused once it is claimed anew.
            records.disown(&record);
            tracing::warn!("cannot record permits of {record}, will retry: {error}");
            self.pause(RECORD_PAUSE).await;
        }
        // Somebody else wrote to it: it is decided anew.
        if let Err(error) = records.read(&record).await {
            tracing::warn!("cannot read the permits of {record}, will retry: {error}");
            self.pause(RECORD_PAUSE).await;
        }
        DrainDone::Recorded {
            record,
            returned: BTreeSet::new(),
        }
    }

    /// Goes on with one node until nothing is left to do. If that panics, this node waits for a while: it keeps its permit,
    /// because nobody knows how far it was.
    async fn care_for(self, name: String, uid: String) -> DrainDone {
        let ended = contain_work("drain", &name, self.go_on_with(&name)).await;
        if ended.is_none() {
            self.pause(LONGEST_PAUSE_AFTER_FAILURE).await;
        }
        let end = ended.unwrap_or_default();
        DrainDone::Node { name, uid, end }
    }

    async fn go_on_with(&self, name: &str) -> End {
        let mut drain = Drain::new();
        let mut failures = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE_AFTER_FAILURE);
        loop {
            match self.step(name, &mut drain).await {
                Ok(Step::Over(end)) => return end,
                _ if self.shared.stop.is_asked() => return End::default(),
                Ok(Step::Again) => failures.reset(),
                Ok(Step::Wait(pause)) => {
                    failures.reset();
                    self.pause(pause).await;
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
                    self.pause(failures.next_pause()).await;
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
            () = self.shared.stop.stopped() => {}
        }
    }

    /// Observe, plan, apply, report: once.
    async fn step(&self, name: &str, drain: &mut Drain) -> kube::Result<Step> {
        let (nodes, permits) = (&self.shared.nodes, &self.shared.permits);
        let Some(mut seen) = nodes.read(name).await? else {
            return Ok(Step::Over(End {
                is_gone: true,
                is_over: true,
            }));
        };
        seen.node.has_permit = permits.granted().contains_key(name);
        let (change, says) = match drain::next(&seen.node) {
            Next::Nothing | Next::Unknown(_) => return Ok(self.over(seen).await),
            // Looked at after the Node was read: if another one leads by then, the Node is another one before it counts
            // on anything.
            // A window that closed since its permit was recorded is closed.
            Next::AskForPermit if self.is_closed(&seen.node) || !permits.is_good(name).await? => {
                return Ok(self.over(seen).await);
            }
            Next::AskForPermit => drain::grant(&seen.node, Timestamp::now()),
            Next::Write(change, says) => (change, says),
            Next::Mark(change) => {
                nodes.write(&seen, &change).await?;
                return Ok(Step::Again);
            }
            Next::Evict => return self.round(seen, drain).await,
        };
        nodes.write(&seen, &change).await?;
        self.announce(&seen, says);
        Ok(Step::Again)
    }

    /// There is nothing more to do for a node that is as it was `seen`.
    async fn over(&self, mut seen: NodeFacts) -> Step {
        let is_over = permit::is_over(Some(&seen.node));
        seen.node.has_permit = false;
        let is_known = |all: &BTreeMap<String, NodeFacts>| all.contains_key(&seen.node.name);
        let store = self.shared.nodes.store();
        if store.look(is_known) {
            store.put(seen);
        } else if !is_over {
            // It has a permit, and is none of those that we look at any more: nobody tells us when that ends.
            self.pause(LONGEST_PAUSE).await;
        }
        Step::Over(End {
            is_gone: false,
            is_over,
        })
    }

    /// Whether its pool lets no node begin now.
    fn is_closed(&self, node: &Node) -> bool {
        if node.is_windows() {
            return self.shared.windows.budget().closed.is_some();
        }
        match place(&self.shared.pools.wanted(), node) {
            Membership::In(pool) => pool.budget.closed.is_some(),
            Membership::Nowhere | Membership::Torn(_) => false,
        }
    }

    /// How `node` is drained: as its pool says, as far as it does.
    fn settings(&self, node: &Node) -> DrainSettings {
        match place(&self.shared.pools.wanted(), node) {
            Membership::In(pool) => pool.drain_settings(self.settings),
            Membership::Nowhere | Membership::Torn(_) => self.settings,
        }
    }

    /// One round over the pods of a node.
    async fn round(&self, seen: NodeFacts, drain: &mut Drain) -> kube::Result<Step> {
        let (client, nodes) = (&self.shared.client, &self.shared.nodes);
        let mut pods = pods::of_node(client, &seen.node.name).await?;
        self.installation.mark(client, &mut pods).await?;
        if drain::is_undecided(&seen.node, &pods) {
            let others = nodes.candidates().await?;
            let (change, says) = drain::decide(&seen.node, &pods, &others);
            nodes.write(&seen, &change).await?;
            self.announce(&seen, says);
            return Ok(Step::Again);
        }
        let (node, now) = (&seen.node, Timestamp::now());
        let settings = self.settings(node);
        let round = drain::evict(node, &pods, &drain.attempts, settings, now);
        if !round.write.is_empty() {
            nodes.write(&seen, &round.write).await?;
        }
        for says in round.notices {
            self.announce(&seen, says);
        }
        if round.is_over {
            self.metrics.drained(drain::took(node, now));
            return Ok(Step::Again);
        }
        let left = round.left.iter().map(|pod| pod.uid.clone()).collect();
        let attempts = &mut drain.attempts;
        let tell = |says| self.announce(&seen, says);
        let pods = round.evict.into_iter();
        let metrics = &self.metrics;
        let evicted =
            pods::evict(client, &node.name, pods, EVICTIONS, attempts, metrics, tell).await;
        Ok(Step::Wait(drain.progress(left, evicted > 0)))
    }

    fn announce(&self, seen: &NodeFacts, notice: Notice) {
        let events = &self.shared.events;
        events.notify(reference(seen), "Drain", notice);
    }
}

/// Some work has come to an end.
enum DrainDone {
    /// That on a node.
    Node {
        name: String,
        /// Which Node of that name it was at first.
        uid: String,
        end: End,
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

/// How the work on a node ended; before its end, if it is to be taken up again.
#[derive(Default)]
struct End {
    /// The node is gone.
    is_gone: bool,
    /// Its permit is over.
    is_over: bool,
}

/// How a step ended.
enum Step {
    /// There is another one to do at once.
    Again,
    /// There is another one to do after a pause.
    Wait(Duration),
    /// There is nothing more to do.
    Over(End),
}

/// What is remembered of a drain while it goes on. Whoever takes over does without.
struct Drain {
    attempts: BTreeMap<String, Attempt>,
    left: BTreeSet<String>,
    pauses: Backoff,
}

impl Drain {
    fn new() -> Self {
        Self {
            attempts: BTreeMap::new(),
            left: BTreeSet::new(),
            pauses: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        }
    }

    /// When to look again: soon while something moves, and less often while nothing does.
    fn progress(&mut self, left: BTreeSet<String>, has_evicted: bool) -> Duration {
        if has_evicted || left != self.left {
            self.pauses.reset();
        }
        self.attempts.retain(|uid, _| left.contains(uid));
        self.left = left;
        self.pauses.next_pause()
    }
}

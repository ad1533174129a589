//! Which nodes are worked on, who of those that ask gets a permit, and whose is over. One decision at a time for each
//! record; what is being written is waited for.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_plan::fleet::budget::DisruptionPermit;
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::fleet::permit;
use evenkeel_plan::fleet::requests::{self, FleetSnapshot, RequestState, Sharing};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;

use super::{Cluster, DrainDone};

use crate::fleet::permits::{Permitted, Record};

/// The work on some of all nodes.
pub(super) struct DrainedFleet {
    cluster: Cluster,
    pub(super) work: FuturesUnordered<LocalBoxFuture<'static, DrainDone>>,
    /// Nodes with work on them.
    busy: BTreeSet<String>,
    /// Records of permits that are being written: nobody decides on them meanwhile.
    writing: BTreeSet<Record>,
    /// Nodes whose permits are over, as they were read since their record is ours.
    over: BTreeSet<String>,
    /// What nodes were told that wait, or ask for something unknown: once is enough.
    told: BTreeMap<String, String>,
}

/// What is seen and decided at one moment.
struct DrainSnapshot {
    /// Those who ask for something.
    asking: Vec<NodeFacts>,
    /// Who of them gets a permit, and where that is recorded.
    answers: BTreeMap<String, (Record, DisruptionPermit)>,
    /// Nodes whose permit may be over.
    idle: Vec<NodeFacts>,
    /// Nodes with a permit that are not there any more, with where that is recorded.
    gone: Vec<(String, Record)>,
}

impl DrainedFleet {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            work: FuturesUnordered::new(),
            busy: BTreeSet::new(),
            writing: BTreeSet::new(),
            over: BTreeSet::new(),
            told: BTreeMap::new(),
        }
    }

    /// Some work has come to an end.
    pub(super) fn finished(&mut self, done: DrainDone) {
        match done {
            DrainDone::Node { name, uid, end } => {
                self.busy.remove(&name);
                if end.is_gone {
                    self.cluster.shared.nodes.store().remove(&name, &uid);
                }
                if end.is_over {
                    self.over.insert(name);
                }
            }
            DrainDone::Claimed(record) => {
                // Who was looked at before that is looked at again.
                self.over.clear();
                self.writing.remove(&record);
            }
            DrainDone::Recorded { record, returned } => {
                self.writing.remove(&record);
                self.over.retain(|name| !returned.contains(name));
            }
        }
    }

    /// Whether the nodes of a record are ours to decide on.
    fn is_active(&self, record: &Record) -> bool {
        let coexistence = &self.cluster.shared.coexistence;
        match record {
            Record::Pool(_) => !coexistence.is_idle(),
            Record::Windows => !coexistence.is_idle_for_windows(),
            Record::Rest => !coexistence.is_idle() || !coexistence.is_idle_for_windows(),
        }
    }

    /// Those who ask for something, and who of them has a permit.
    fn view(&self) -> DrainSnapshot {
        let shared = &self.cluster.shared;
        let (windows, permits) = (&shared.windows, &shared.permits);
        let (coexistence, claims) = (&shared.coexistence, windows.claims());
        let mut granted = permits.granted();
        granted.retain(|name, _| !self.over.contains(name));
        let pools = shared.pools.wanted();
        let seen = windows.seen();
        let updating = seen.map(|it| it.status.updating).unwrap_or_default();
        shared.nodes.store().look(|all| {
            let permitted = Permitted::of(granted.keys(), all);
            let snapshot = FleetSnapshot {
                nodes: all.values().map(|seen| permitted.node(seen)).collect(),
                pools: &pools,
                cares_for_linux: !coexistence.is_idle(),
                cares_for_windows: shared.knows_windows_pool()
                    && !coexistence.is_idle_for_windows(),
                claims: &claims,
                windows_budget: windows.budget(),
                updating: &updating,
            };
            let gone = || granted.iter().filter(|(name, _)| !all.contains_key(*name));
            let requests = snapshot.requests(|sharing| {
                let record = match sharing {
                    Sharing::Pool(pool) => Record::Pool(pool.to_owned()),
                    Sharing::Windows => Record::Windows,
                    Sharing::Others => Record::Rest,
                };
                let away = gone().filter(|(_, it)| **it == record);
                away.map(|(name, _)| name.as_str()).collect()
            });
            let answers = requests
                .answers
                .into_iter()
                .map(|(name, (sharing, permit))| {
                    let record = match sharing {
                        Sharing::Pool(pool) => permits.of_pool(pool),
                        Sharing::Windows => permits.of_windows(),
                        Sharing::Others => Record::Rest,
                    };
                    (name, (record, permit))
                });
            let seen = |node: &&Node| {
                let mut seen = all.get(&node.name)?.clone();
                seen.node = (*node).clone();
                Some(seen)
            };
            DrainSnapshot {
                asking: requests.asking.iter().filter_map(seen).collect(),
                answers: answers.collect(),
                idle: requests.idle.iter().filter_map(seen).collect(),
                gone: gone()
                    .map(|(name, it)| (name.clone(), it.clone()))
                    .collect(),
            }
        })
    }

    /// Begins whatever can begin now.
    pub(super) fn go_on(&mut self) {
        if !self.cluster.shared.is_listed() {
            return;
        }
        let view = self.view();
        self.keep_records(&view);
        let mut waiting = 0;
        let mut begin = Vec::new();
        let mut told = BTreeMap::new();
        for seen in &view.asking {
            let name = &seen.node.name;
            if self.busy.contains(name) {
                continue;
            }
            let answer = view.answers.get(name).map(|(_, permit)| permit);
            let says = match requests::state_of(&seen.node, answer) {
                RequestState::NotYet => continue,
                RequestState::Begins => {
                    begin.push(seen.clone());
                    continue;
                }
                RequestState::Unknown(says) => says,
                RequestState::Waits(says) => {
                    waiting += 1;
                    says
                }
            };
            // For whom it waits changes often; that it waits is said once for each request.
            let request = seen.node.desired_drain.clone().unwrap_or_default();
            if self.told.get(name) != Some(&request) {
                self.cluster.announce(seen, says);
            }
            told.insert(name.clone(), request);
        }
        self.told = told;
        begin.extend(view.idle);
        for seen in begin {
            self.begin(seen.node.name, seen.uid);
        }
        for (name, record) in view.gone {
            if self.is_active(&record) {
                self.begin(name, String::new());
            }
        }
        self.cluster.crowd.set(self.busy.len());
        self.cluster.metrics.nodes(self.busy.len(), waiting);
    }

    fn begin(&mut self, name: String, uid: String) {
        if self.busy.insert(name.clone()) {
            let care = self.cluster.clone().care_for(name, uid);
            self.work.push(care.boxed_local());
        }
    }

    /// Claims records that are not ours yet, and records who gets a permit and whose is over.
    fn keep_records(&mut self, view: &DrainSnapshot) {
        let permits = &self.cluster.shared.permits;
        let pools = self.cluster.shared.pools.wanted();
        let mut records: BTreeSet<Record> =
            pools.iter().map(|it| permits.of_pool(&it.name)).collect();
        records.insert(permits.of_windows());
        // Where nobody ever asks, there is no ConfigMap.
        let is_asked = view.answers.values().any(|(it, _)| *it == Record::Rest);
        if !is_asked && permits.page(&Record::Rest).is_none() {
            records.remove(&Record::Rest);
        } else {
            records.insert(Record::Rest);
        }
        for record in records {
            if self.writing.contains(&record) || !self.is_active(&record) {
                continue;
            }
            let cluster = self.cluster.clone();
            let (Some(epoch), Some(page)) = (permits.epoch(&record), permits.page(&record)) else {
                self.writing.insert(record.clone());
                self.work.push(cluster.claim(record).boxed_local());
                continue;
            };
            let is_new = |name: &&String| {
                let is_busy = self.busy.contains(*name);
                !is_busy
                    && view.answers.get(*name) == Some(&(record.clone(), DisruptionPermit::Granted))
            };
            let granted = view.answers.keys().filter(is_new).map(String::as_str);
            let is_over = |name: &str| self.over.contains(name);
            let before = page.permits.clone().unwrap_or_default();
            let now = Timestamp::now();
            let returned = before.granted.iter().filter(|it| is_over(&it.node));
            let returned = returned.map(|it| it.node.clone()).collect();
            match permit::change(&before, epoch, is_over, granted, now) {
                Some(after) => {
                    self.writing.insert(record.clone());
                    let write = cluster.record(record, page, after, returned);
                    self.work.push(write.boxed_local());
                }
                // They ask again, and were granted the same again.
                None => self.over.retain(|name| !returned.contains(name)),
            }
        }
    }
}

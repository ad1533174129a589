//! Rules of node-readiness-controller, where its kind is installed: what they say, the finalizer that keeps one until its taint is off
//! all nodes, their status, and whether that controller itself leads. While it does, its rules are its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_api::field::Field;
use evenkeel_api::readiness::{
    KIND, NRC_FINALIZER, NRC_GROUP, NRC_LEASE, NrcRule, NrcStatus, PLURAL, ReadinessRule, VERSION,
};
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::fleet::coexistence::{Leases, Life, OperatorSnapshot};
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::Object;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Done, ReadinessController};
use crate::fleet::nodes::watching;
use crate::kinds::Kind;
use crate::objects::{Objects, resource};
use crate::store::{Identity, Kept, Store};
use crate::triggers;

type NrcObject = Object<Value, Field<NrcStatus>>;

/// A rule of that kind, as it was at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedNrcRule {
    pub(crate) name: String,
    pub(crate) uid: String,
    version: String,
    pub(crate) generation: i64,
    /// What it says, or what is wrong with that.
    pub(crate) rule: Result<NrcRule, String>,
    pub(crate) status: NrcStatus,
    /// Whether somebody has deleted it.
    pub(crate) is_ending: bool,
    finalizers: Vec<String>,
}

impl From<NrcObject> for ObservedNrcRule {
    fn from(object: NrcObject) -> Self {
        let metadata = object.metadata;
        let name = metadata.name.unwrap_or_default();
        Self {
            rule: NrcRule::from_spec(&name, &object.spec).map_err(|it| it.to_string()),
            name,
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            status: object.status.and_then(Field::valid).unwrap_or_default(),
            is_ending: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.unwrap_or_default(),
        }
    }
}

impl Kept for ObservedNrcRule {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        let all = |it: &Self| (it.generation, it.is_ending, it.finalizers.clone());
        (all(self), &self.rule, &self.status) == (all(other), &other.rule, &other.status)
    }
}

impl ObservedNrcRule {
    /// How an Event names this rule.
    pub(crate) fn reference(&self) -> ObjectReference {
        let api_version = format!("{NRC_GROUP}/{VERSION}");
        self.identity().reference(api_version, KIND)
    }

    /// Whether it stays until its taint is off all nodes.
    pub(crate) fn is_kept(&self) -> bool {
        self.finalizers.iter().any(|it| it == NRC_FINALIZER)
    }
}

/// Whether node-readiness-controller leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NrcLeader {
    /// Nobody has looked yet, or it may be.
    Unknown,
    /// This one does.
    Leads(String),
    /// Nobody does.
    Nobody,
}

/// All rules of that kind. Clones are the same.
#[derive(Clone)]
pub(crate) struct NrcRules {
    objects: Objects<NrcObject, ObservedNrcRule>,
    client: Client,
    leader: watch::Sender<NrcLeader>,
}

impl NrcRules {
    pub(crate) fn new(client: Client) -> Self {
        let kind = resource(NRC_GROUP, VERSION, KIND, PLURAL);
        Self {
            objects: Objects::new(Api::all_with(client.clone(), &kind)),
            client,
            leader: watch::Sender::new(NrcLeader::Unknown),
        }
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<ObservedNrcRule> {
        self.objects.store()
    }

    /// Whether node-readiness-controller leads.
    pub(crate) fn leader(&self) -> NrcLeader {
        self.leader.borrow().clone()
    }

    /// Tells when that changes.
    pub(crate) fn leader_changes(&self) -> watch::Receiver<NrcLeader> {
        self.leader.subscribe()
    }

    /// Those that can be followed, as they are decided on. While they are another's, they leave everything as it is.
    pub(crate) fn rules(&self) -> Vec<ReadinessRule> {
        let suspend = self.leader() != NrcLeader::Nobody;
        self.store().look(|all| {
            let rules = all.values().filter_map(|seen| {
                let rule = seen.rule.as_ref().ok()?;
                let rule = rule.to_rule(&seen.uid, seen.is_ending);
                Some(ReadinessRule { suspend, ..rule })
            });
            rules.collect()
        })
    }

    /// Keeps them, those with `labels` only, until the program is asked to stop.
    pub(crate) async fn keep(&self, labels: Option<&str>, check: Check, stop: &Stop) {
        let definition = resource(NRC_GROUP, VERSION, KIND, PLURAL);
        let kind = Kind::new(self.client.clone(), &definition);
        let changes = || watcher(self.objects.api().clone(), watching(labels));
        let what = "nodereadinessrules of node-readiness-controller";
        self.store()
            .keep_if_known(what, &kind, changes, check, stop)
            .await;
    }

    /// Looks for its leader until the program is asked to stop.
    pub(crate) async fn follow_leader(&self, stop: &Stop) {
        tokio::select! {
            () = stop.stopped() => {}
            () = self.look_for_leader() => {}
        }
    }

    async fn look_for_leader(&self) {
        let api: Api<Lease> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={NRC_LEASE}"));
        let mut changes = watcher(api, config).default_backoff().boxed();
        let began = Instant::now();
        let mut seen = SeenLeases::default();
        loop {
            let (leader, left) = seen.leader(began.elapsed());
            self.note(leader);
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(change)) => seen.note(change),
                    Some(Err(error)) => {
                        tracing::warn!("cannot watch the Lease of node-readiness-controller, will retry: {error}");
                    }
                    None => return,
                },
                () = triggers::after(left) => {}
            }
        }
    }

    fn note(&self, leader: NrcLeader) {
        self.leader.send_if_modified(|known| {
            if *known == leader {
                return false;
            }
            match &leader {
                NrcLeader::Leads(holder) => tracing::info!(
                    "node-readiness-controller leads ({holder}): its rules are left to it"
                ),
                NrcLeader::Nobody => {
                    tracing::info!(
                        "node-readiness-controller does not lead: its rules are followed"
                    );
                }
                NrcLeader::Unknown => {}
            }
            *known = leader;
            true
        });
    }

    /// Writes what is said of a rule.
    pub(crate) async fn say(&self, seen: &ObservedNrcRule, status: &NrcStatus) -> kube::Result<()> {
        let said = self.objects.merge_status_as_seen(seen, status).await;
        said.map(|_| ())
    }

    /// Has a rule stay until its taint is off all nodes, or lets it go.
    pub(crate) async fn hold(&self, seen: &ObservedNrcRule, is_held: bool) -> kube::Result<()> {
        let mut finalizers = seen.finalizers.clone();
        finalizers.retain(|it| it != NRC_FINALIZER);
        if is_held {
            finalizers.push(NRC_FINALIZER.to_owned());
        }
        let body = json!({ "metadata": { "finalizers": finalizers } });
        self.objects.merge_as_seen(seen, body).await.map(|_| ())
    }
}

/// Its Leases, by namespace.
#[derive(Default)]
struct SeenLeases {
    is_listed: bool,
    found: BTreeMap<String, LeaseSpec>,
    listing: BTreeMap<String, LeaseSpec>,
    known: Leases,
}

impl SeenLeases {
    fn note(&mut self, change: watcher::Event<Lease>) {
        let read = |lease: Lease| {
            let namespace = lease.namespace().unwrap_or_default();
            (namespace, lease.spec.unwrap_or_default())
        };
        match change {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(lease) => self.listing.extend([read(lease)]),
            watcher::Event::InitDone => {
                self.found = std::mem::take(&mut self.listing);
                self.is_listed = true;
            }
            watcher::Event::Apply(lease) => self.found.extend([read(lease)]),
            watcher::Event::Delete(lease) => drop(self.found.remove(&read(lease).0)),
        }
    }

    /// Who leads, and for how long that is known if nothing more is seen.
    fn leader(&mut self, at: Duration) -> (NrcLeader, Option<Duration>) {
        if !self.is_listed {
            return (NrcLeader::Unknown, None);
        }
        let now = Timestamp::now();
        let mut leader = (NrcLeader::Nobody, None);
        for (namespace, spec) in &self.found {
            let lasts = spec
                .lease_duration_seconds
                .and_then(|it| u64::try_from(it).ok());
            let holder = spec.holder_identity.as_deref();
            let snapshot = OperatorSnapshot {
                holder,
                renewed: spec.renew_time.as_ref().map(|it| it.0),
                lasts: lasts.map(Duration::from_secs),
            };
            match self.known.look(namespace, snapshot, now, at) {
                Life::Alive(left) => {
                    let holder = holder.unwrap_or_default();
                    leader = (
                        NrcLeader::Leads(format!("{namespace}/{holder}")),
                        Some(left),
                    );
                }
                Life::Unsure(left) if leader.0 == NrcLeader::Nobody => {
                    leader = (NrcLeader::Unknown, Some(left));
                }
                Life::Unsure(_) | Life::Gone => {}
            }
        }
        leader
    }
}

impl ReadinessController<'_> {
    /// The statuses of these rules, and which of them stay until their taints are off all nodes.
    pub(super) fn report_theirs(&mut self) {
        let Some(rules) = self.needs.nrc else { return };
        let leader = rules.leader();
        let all = rules
            .store()
            .look(|all| all.values().cloned().collect::<Vec<_>>());
        self.released
            .retain(|uid| all.iter().any(|it| it.uid == *uid));
        for seen in all {
            let events = &self.shared.events;
            self.reporter.announce_theirs(&seen, &leader, events);
            let is_in_hand = self.holding.contains(&seen.uid) || self.released.contains(&seen.uid);
            if leader != NrcLeader::Nobody || is_in_hand {
                continue;
            }
            let is_followed = seen.rule.is_ok();
            let is_wanted = if seen.is_ending {
                is_followed && !self.readiness.has_left(&seen.name)
            } else {
                is_followed || seen.is_kept()
            };
            if seen.is_kept() != is_wanted && !(seen.is_ending && is_wanted) {
                self.hold(rules.clone(), seen, is_wanted);
            } else if !seen.is_ending
                && let Some(status) = self
                    .reporter
                    .nrc_status(&seen, &self.readiness, &self.failed)
            {
                let rules = rules.clone();
                let work = async move {
                    // Who was quicker is seen at the next look.
                    if let Err(error) = rules.say(&seen, &status).await {
                        let rule = seen.name;
                        tracing::debug!(rule, "cannot write the rule's status: {error}");
                    }
                    Done::Said
                };
                self.work.push(work.boxed_local());
            }
        }
    }

    fn hold(&mut self, rules: NrcRules, seen: ObservedNrcRule, is_held: bool) {
        self.holding.insert(seen.uid.clone());
        // From here on it may be gone at any time, and takes nothing off a node any more.
        if !is_held && self.released.insert(seen.uid.clone()) {
            self.are_rules_set = false;
        }
        let work = async move {
            let held = rules.hold(&seen, is_held).await;
            if let Err(error) = &held {
                let rule = &seen.name;
                tracing::warn!(
                    rule,
                    "cannot write the rule's finalizers, will retry: {error}"
                );
            }
            Done::Held {
                uid: seen.uid,
                is_done: held.is_ok(),
            }
        };
        self.work.push(work.boxed_local());
    }
}

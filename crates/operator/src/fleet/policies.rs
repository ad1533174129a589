//! Policies of rollouts, as pools name them, and the moments at which they open and close. Whoever decides by a policy is
//! woken at those moments, and asks nobody in between.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::field::Field;
use evenkeel_api::fleet::rollout_policy::{KIND, PLURAL, RolloutPolicySpec, VERSION};
use evenkeel_api::names::group;
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::fleet::policy::{PolicyLookup, PolicyReference, RolloutPolicy};
use evenkeel_plan::fleet::pool::Pool;
use evenkeel_plan::windows::windows_pool::WindowsPool;
use jiff::Timestamp;
use kube::core::Object;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::watch;

use crate::objects::{Objects, resource};
use crate::store::{Identity, Kept};

/// How long is slept at most until the clock is looked at again: somebody may set it meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_mins(10);

/// A policy as the API server has it. It has no status.
type PolicyObject = Object<Field<RolloutPolicySpec>, Value>;

/// A policy as it was at one version.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservedPolicy {
    name: String,
    uid: String,
    version: String,
    policy: RolloutPolicy,
}

impl From<PolicyObject> for ObservedPolicy {
    fn from(object: PolicyObject) -> Self {
        let metadata = object.metadata;
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            policy: RolloutPolicy::read(&object.spec),
        }
    }
}

impl Kept for ObservedPolicy {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        self.policy == other.policy
    }
}

/// All policies. Clones are the same.
#[derive(Clone)]
pub(crate) struct Policies {
    objects: Objects<PolicyObject, ObservedPolicy>,
    changes: watch::Sender<()>,
}

impl Policies {
    pub(crate) fn new(client: Client) -> Self {
        let kind = resource(group::EVENKEEL, VERSION, KIND, PLURAL);
        Self {
            objects: Objects::new(Api::all_with(client, &kind)),
            changes: watch::Sender::new(()),
        }
    }

    /// Keeps them, until the program is asked to stop.
    pub(crate) async fn keep(&self, check: Check, stop: &Stop) {
        let all = watcher::Config::default();
        tokio::join!(
            self.objects.keep(PLURAL, all, check, stop),
            self.follow_the_clock(stop)
        );
    }

    /// Tells of every change that matters: of a policy, and of what it allows at that moment.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// A pool as its policy lets it be now.
    pub(crate) fn held(&self, pool: Pool) -> Pool {
        let name = pool.policy.name.clone();
        self.look(name.as_deref(), |policy| {
            pool.held_to(policy, Timestamp::now())
        })
    }

    /// The Windows pool as its policy lets it be now.
    pub(crate) fn held_windows(&self, pool: WindowsPool) -> WindowsPool {
        let name = pool.policy.name.clone();
        self.look(name.as_deref(), |policy| {
            pool.held_to(policy, Timestamp::now())
        })
    }

    /// What is to be said of the windows of a pool's policy that are shorter than this.
    pub(crate) fn short_windows(
        &self,
        reference: &PolicyReference,
        drain_timeout: Duration,
    ) -> Option<String> {
        let name = reference.name.as_deref();
        self.look(name, |policy| match policy {
            PolicyLookup::Found(policy) => {
                let why = policy.short_windows(drain_timeout)?;
                Some(format!("RolloutPolicy {}: {why}", name.unwrap_or_default()))
            }
            PolicyLookup::Unread | PolicyLookup::Missing => None,
        })
    }

    fn look<R>(&self, name: Option<&str>, look: impl FnOnce(PolicyLookup<'_>) -> R) -> R {
        let store = self.objects.store();
        let is_listed = store.is_listed();
        store.look(|all| {
            look(match name.and_then(|name| all.get(name)) {
                Some(seen) => PolicyLookup::Found(&seen.policy),
                None if is_listed => PolicyLookup::Missing,
                None => PolicyLookup::Unread,
            })
        })
    }

    /// Passes on what changes, and wakes everybody when a window opens or closes.
    async fn follow_the_clock(&self, stop: &Stop) {
        let mut changes = self.objects.store().changes();
        loop {
            let next = self.next_change(Timestamp::now());
            tokio::select! {
                () = stop.stopped() => return,
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                () = reached(next) => {}
            }
            self.changes.send_replace(());
        }
    }

    /// When any of them allows another thing than at `now`.
    fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let next = |all: &BTreeMap<String, ObservedPolicy>| {
            let policies = all.values().map(|it| &it.policy.calendar);
            policies.filter_map(|it| it.next_change(now)).min()
        };
        self.objects.store().look(next)
    }
}

/// Waits until the clock has reached that moment, or for ever if there is none.
async fn reached(moment: Option<Timestamp>) {
    let Some(moment) = moment else {
        return std::future::pending().await;
    };
    while let Ok(left) = Duration::try_from(moment.duration_since(Timestamp::now()))
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}

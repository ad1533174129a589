//! What all controllers of Windows nodes look at together: their pool, what instances get, who is ours,
//! and why nothing may be done.

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_api::field::Field;
use evenkeel_api::fleet::permits::Permits;
use evenkeel_api::names::{group, object};
use evenkeel_api::windows::windows_pool::{
    KIND, PLURAL, VERSION, WindowsPoolSpec, WindowsPoolStatus,
};
use evenkeel_api::windows::worker::Worker;
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::fleet::budget::DisruptionBudget;
use evenkeel_plan::windows::payload::Composed;
use evenkeel_plan::windows::windows_pool::{Grant, OwnedNodes, PoolFailure, WindowsPool};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::Object;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fleet::policies::Policies;
use crate::objects::{Objects, resource};
use crate::store::{Identity, Kept, Store};
use crate::triggers::Triggers;
use crate::windows::payload::Payload;

/// The pool as the API server has it, field by field.
type WindowsPoolObject = Object<Field<WindowsPoolSpec>, Field<WindowsPoolStatus>>;

/// The pool as it was at one version.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservedWindowsPool {
    name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) generation: i64,
    pub(crate) pool: WindowsPool,
    pub(crate) status: WindowsPoolStatus,
}

impl From<WindowsPoolObject> for ObservedWindowsPool {
    fn from(object: WindowsPoolObject) -> Self {
        let metadata = object.metadata;
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            pool: WindowsPool::read(&object.spec.valid().unwrap_or_default())
                .with_annotations(&metadata.annotations.unwrap_or_default()),
            status: object.status.unwrap_or_default().recorded(),
        }
    }
}

impl Kept for ObservedWindowsPool {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        // A status that somebody else has written is written anew.
        (&self.pool, self.generation, &self.status)
            == (&other.pool, other.generation, &other.status)
    }
}

/// What instances get, if anybody knows.
#[derive(Clone, Default)]
pub(crate) enum Offer {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// Nothing, and why.
    Nothing(PoolFailure),
    /// This.
    Ready(Rc<Ready>),
}

/// Everything that an instance gets, and how it reaches the cluster.
pub(crate) struct Ready {
    pub(crate) payload: Rc<Payload>,
    pub(crate) composed: Composed,
    pub(crate) worker: Worker,
}

impl Ready {
    /// What nodes are to run.
    pub(crate) fn grant(&self) -> Grant {
        Grant {
            version: self.composed.version.clone(),
            hash: self.composed.hash.clone(),
        }
    }
}

/// What is known of Windows nodes besides the nodes. Clones are the same.
#[derive(Clone)]
pub(crate) struct Windows {
    objects: Objects<WindowsPoolObject, ObservedWindowsPool>,
    name: Rc<str>,
    policies: Policies,
    offer: watch::Sender<Offer>,
    /// What instances got last, whatever has gone wrong since.
    last: Rc<RefCell<Option<Rc<Ready>>>>,
    newer: watch::Sender<Option<PoolFailure>>,
    claims: watch::Sender<OwnedNodes>,
}

impl Windows {
    /// With the pool of that name.
    pub(crate) fn new(client: Client, name: &str, policies: &Policies) -> Self {
        let kind = resource(group::EVENKEEL, VERSION, KIND, PLURAL);
        Self {
            objects: Objects::new(Api::all_with(client, &kind)),
            name: name.into(),
            policies: policies.clone(),
            offer: watch::Sender::default(),
            last: Rc::default(),
            newer: watch::Sender::new(None),
            claims: watch::Sender::new(OwnedNodes::default()),
        }
    }

    /// What is known of the pool.
    pub(crate) fn store(&self) -> &Store<ObservedWindowsPool> {
        self.objects.store()
    }

    /// Keeps the pool, until the program is asked to stop.
    pub(crate) async fn keep(&self, check: Check, stop: &Stop) {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        self.objects.keep(PLURAL, only, check, stop).await;
    }

    /// The pool, if there is one, held to its policy.
    pub(crate) fn seen(&self) -> Option<ObservedWindowsPool> {
        let mut seen = self.store().look(|all| all.get(&*self.name).cloned())?;
        seen.pool = self.policies.held_windows(seen.pool);
        Some(seen)
    }

    /// What its owner wants; without a pool the defaults hold.
    pub(crate) fn pool(&self) -> WindowsPool {
        self.seen().map(|it| it.pool).unwrap_or_default()
    }

    /// How many Windows nodes may be down at once.
    pub(crate) fn budget(&self) -> DisruptionBudget {
        self.pool().budget
    }

    /// How an Event names the pool, whether there is one or not.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{}/{VERSION}", group::EVENKEEL)),
            kind: Some(KIND.to_owned()),
            name: Some(self.name.to_string()),
            uid: self.seen().map(|it| it.uid),
            ..ObjectReference::default()
        }
    }

    /// How an object says that the pool owns it.
    pub(crate) fn owner(&self, uid: &str) -> Value {
        json!({
            "apiVersion": format!("{}/{VERSION}", group::EVENKEEL),
            "kind": KIND,
            "name": &*self.name,
            "uid": uid,
        })
    }

    /// The pool as it is now, if there is one.
    pub(crate) async fn read(&self) -> kube::Result<Option<ObservedWindowsPool>> {
        self.objects.read(&self.name).await
    }

    /// Writes which nodes may be disrupted, and nothing else of its status.
    pub(crate) async fn record(
        &self,
        seen: &ObservedWindowsPool,
        permits: &Permits,
    ) -> kube::Result<ObservedWindowsPool> {
        let status = json!({ "permits": permits });
        self.objects.merge_status_as_seen(seen, &status).await
    }

    /// Writes what is said of the pool. Permits are not said, but recorded.
    pub(crate) async fn say(
        &self,
        seen: &ObservedWindowsPool,
        status: &WindowsPoolStatus,
    ) -> kube::Result<()> {
        let status = WindowsPoolStatus {
            permits: None,
            ..status.clone()
        };
        let said = self.objects.merge_status_as_seen(seen, &status);
        said.await.map(|_| ())
    }

    /// What instances get now.
    pub(crate) fn offer(&self) -> Offer {
        self.offer.borrow().clone()
    }

    /// What instances got last: what the services ConfigMap says, also while nobody knows what is next.
    pub(crate) fn last(&self) -> Option<Rc<Ready>> {
        self.last.borrow().clone()
    }

    /// Takes note of what instances get, if it is another thing than before.
    pub(crate) fn offers(&self, offer: Offer) {
        if let Offer::Ready(ready) = &offer {
            *self.last.borrow_mut() = Some(Rc::clone(ready));
        }
        self.offer.send_if_modified(|known| {
            let is_same = match (&*known, &offer) {
                (Offer::Nothing(known), Offer::Nothing(new)) => known == new,
                (Offer::Ready(known), Offer::Ready(new)) => {
                    known.composed == new.composed && known.worker == new.worker
                }
                _ => false,
            };
            if !is_same {
                *known = offer;
            }
            !is_same
        });
    }

    /// Why nothing is done although it could be: a newer version is installed.
    pub(crate) fn newer(&self) -> Option<PoolFailure> {
        self.newer.borrow().clone()
    }

    /// Takes note of whether a newer version is installed.
    pub(crate) fn finds_newer(&self, trouble: Option<PoolFailure>) {
        self.newer.send_if_modified(|known| {
            let differs = *known != trouble;
            *known = trouble;
            differs
        });
    }

    /// What nodes are to run, if anybody knows and nothing stands in the way; or what does.
    pub(crate) fn target(&self) -> Result<Grant, Option<PoolFailure>> {
        if let Some(trouble) = self.newer() {
            return Err(Some(trouble));
        }
        match &*self.offer.borrow() {
            Offer::Unknown => Err(None),
            Offer::Nothing(trouble) => Err(Some(trouble.clone())),
            Offer::Ready(ready) => Ok(ready.grant()),
        }
    }

    /// Who is named as ours.
    pub(crate) fn claims(&self) -> watch::Ref<'_, OwnedNodes> {
        self.claims.borrow()
    }

    /// Takes note of who is named as ours.
    pub(crate) fn claim(&self, claims: OwnedNodes) {
        self.claims.send_if_modified(|known| {
            let differs = *known != claims;
            *known = claims;
            differs
        });
    }

    /// Adds to `triggers` what may change about Windows nodes: the pool, offer, newer version, claims.
    pub(crate) fn wake<'s>(&self, triggers: Triggers<'s>) -> Triggers<'s> {
        triggers
            .and(self.store().changes())
            .and(self.policies.changes())
            .and(self.offer.subscribe())
            .and(self.newer.subscribe())
            .and(self.claims.subscribe())
    }
}

/// The name of the pool, unless somebody says otherwise.
pub(crate) const DEFAULT_POOL: &str = object::WINDOWS_POOL;

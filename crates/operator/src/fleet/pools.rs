//! Pools, as the controllers use them: what their owners want, what was said of them last, and how
//! both are written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_api::field::Field;
use evenkeel_api::fleet::machine_config_pool::{Configuration, KIND, PLURAL, PoolSpec, PoolStatus};
use evenkeel_api::fleet::permits::Permits;
use evenkeel_api::names::group;
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::fleet::pool::Pool;
use evenkeel_plan::fleet::render::RenderProblem;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::Object;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use crate::fleet::nodes::watching;
use crate::fleet::policies::Policies;
use crate::objects::{Objects, resource};
use crate::store::{Identity, Kept, Store};

/// A pool as the API server has it, field by field.
type PoolObject = Object<Field<PoolSpec>, Field<PoolStatus>>;

/// A pool as it was at one version.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservedPool {
    pub(crate) pool: Pool,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) generation: i64,
    /// What it is to run, with its sources.
    pub(crate) configuration: Configuration,
    pub(crate) status: PoolStatus,
}

impl From<PoolObject> for ObservedPool {
    fn from(object: PoolObject) -> Self {
        let metadata = object.metadata;
        let name = metadata.name.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        let spec = object.spec.valid().unwrap_or_default();
        Self {
            pool: Pool::read(&name, &annotations, &spec),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            // Nobody but us writes these two: what makes no sense is written anew.
            configuration: spec.configuration.valid().unwrap_or_default(),
            status: object.status.unwrap_or_default().recorded(),
        }
    }
}

impl Kept for ObservedPool {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.pool.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        // A status that somebody else has written is written anew.
        (
            &self.pool,
            self.generation,
            &self.configuration,
            &self.status,
        ) == (
            &other.pool,
            other.generation,
            &other.configuration,
            &other.status,
        )
    }
}

impl ObservedPool {
    /// How an Event names this pool.
    pub(crate) fn reference(&self) -> ObjectReference {
        let api_version = format!("{}/v1", group::MACHINE_CONFIGURATION);
        self.identity().reference(api_version, KIND)
    }
}

/// All pools that we care for: one store for all controllers.
#[derive(Clone)]
pub(crate) struct Pools {
    objects: Objects<PoolObject, ObservedPool>,
    policies: Policies,
    problems: Rc<RefCell<BTreeMap<String, RenderProblem>>>,
    rendered: watch::Sender<()>,
}

impl Pools {
    pub(crate) fn new(client: Client, policies: &Policies) -> Self {
        let kind = resource(group::MACHINE_CONFIGURATION, "v1", KIND, PLURAL);
        Self {
            objects: Objects::new(Api::all_with(client, &kind)),
            policies: policies.clone(),
            problems: Rc::default(),
            rendered: watch::Sender::new(()),
        }
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<ObservedPool> {
        self.objects.store()
    }

    /// Keeps them, those with `labels` only, until the program is asked to stop.
    pub(crate) async fn keep(&self, labels: Option<&str>, check: Check, stop: &Stop) {
        let kept = self.objects.keep(PLURAL, watching(labels), check, stop);
        kept.await;
    }

    /// What their owners want now, by name, each held to its policy.
    pub(crate) fn wanted(&self) -> Vec<Pool> {
        self.held().into_iter().map(|it| it.pool).collect()
    }

    /// All of them now, by name, each held to its policy.
    pub(crate) fn held(&self) -> Vec<ObservedPool> {
        let held = |seen: &ObservedPool| ObservedPool {
            pool: self.policies.held(seen.pool.clone()),
            ..seen.clone()
        };
        self.store().look(|all| all.values().map(held).collect())
    }

    /// Takes note of whether the configuration of a pool can be made.
    pub(crate) fn rendered(&self, pool: &str, problem: Option<&RenderProblem>) {
        let mut problems = self.problems.borrow_mut();
        let before = match problem {
            Some(problem) => problems.insert(pool.to_owned(), problem.clone()),
            None => problems.remove(pool),
        };
        if before.as_ref() != problem {
            self.rendered.send_replace(());
        }
    }

    /// Tells when that has changed for any.
    pub(crate) fn renderings(&self) -> watch::Receiver<()> {
        self.rendered.subscribe()
    }

    /// Why the configuration of a pool cannot be made, if it cannot.
    pub(crate) fn problem(&self, pool: &str) -> Option<RenderProblem> {
        self.problems.borrow().get(pool).cloned()
    }

    /// Writes what a pool is to run.
    pub(crate) async fn configure(
        &self,
        seen: &ObservedPool,
        configuration: &Configuration,
    ) -> kube::Result<()> {
        let body = json!({ "spec": { "configuration": configuration } });
        self.objects.merge_as_seen(seen, body).await.map(|_| ())
    }

    /// The pool as it is now, if there is one.
    pub(crate) async fn read(&self, name: &str) -> kube::Result<Option<ObservedPool>> {
        self.objects.read(name).await
    }

    /// Writes which of its nodes may be disrupted, and nothing else of its status.
    pub(crate) async fn record(
        &self,
        seen: &ObservedPool,
        permits: &Permits,
    ) -> kube::Result<ObservedPool> {
        let status = json!({ "permits": permits });
        self.objects.merge_status_as_seen(seen, &status).await
    }

    /// Writes what is said of a pool. Permits are not said, but recorded.
    pub(crate) async fn say(&self, seen: &ObservedPool, status: &PoolStatus) -> kube::Result<()> {
        let status = PoolStatus {
            permits: None,
            ..status.clone()
        };
        let said = self.objects.merge_status_as_seen(seen, &status);
        said.await.map(|_| ())
    }
}

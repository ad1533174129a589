//! What is seen of one of OpenShift's operators: its namespace, its leaders' Leases, and the lock of older releases.
//! `evenkeel_plan::fleet::coexistence` tells what that means.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_api::names::openshift;
use evenkeel_plan::fleet::coexistence::{Half, Leases, Life, OperatorSnapshot, Presence};
use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll, select_all};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

/// Where an operator's leaders' locks are, and what they are called.
fn leases(half: Half) -> (&'static str, &'static [&'static str]) {
    match half {
        Half::MachineConfig => (openshift::NAMESPACE, &openshift::LEASES),
        Half::Windows => (openshift::WINDOWS_NAMESPACE, &[openshift::WINDOWS_LEASE]),
    }
}

/// What a watch has to say.
pub(super) enum Observation {
    /// Whether its namespace is there.
    Namespace(bool),
    Lease(&'static str, Option<LeaseSpec>),
    /// Whether the lock of older releases is there.
    Lock(bool),
    Failed(watcher::Error),
}

/// Observes one of OpenShift's operators.
pub(super) struct Observer {
    half: Half,
    client: Client,
    began: Instant,
    namespace: Option<bool>,
    leases: Leases,
    /// The Leases as they were observed last.
    observed: BTreeMap<&'static str, Option<LeaseSpec>>,
    lock: Option<bool>,
    /// Whether the API server may have been away since a Lease was renewed: its holder could not renew it.
    was_blind: bool,
}

impl Observer {
    pub(super) fn new(half: Half, client: Client) -> Self {
        Self {
            half,
            client,
            began: Instant::now(),
            namespace: None,
            leases: Leases::default(),
            observed: BTreeMap::new(),
            lock: match half {
                Half::MachineConfig => Some(false),
                Half::Windows => None,
            },
            was_blind: false,
        }
    }

    fn locks(&self) -> Api<PartialObjectMeta<ConfigMap>> {
        Api::namespaced(self.client.clone(), leases(self.half).0)
    }

    fn namespaces(&self) -> Api<PartialObjectMeta<Namespace>> {
        Api::all(self.client.clone())
    }

    /// Every change of its namespace and of every lock.
    pub(super) fn changes(&self) -> SelectAll<BoxStream<'static, Observation>> {
        let (namespace, names) = leases(self.half);
        let leases = names.iter().map(|name| {
            let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
            let changes = watcher::watch_object(api, name).default_backoff();
            let observed = changes.map(|change| match change {
                Ok(lease) => Observation::Lease(name, lease.map(|it| it.spec.unwrap_or_default())),
                Err(error) => Observation::Failed(error),
            });
            observed.boxed()
        });
        let mut changes = select_all(leases);
        let found = watcher::watch_object(self.namespaces(), namespace);
        let observed = found.default_backoff().map(|change| match change {
            Ok(found) => Observation::Namespace(found.is_some()),
            Err(error) => Observation::Failed(error),
        });
        changes.push(observed.boxed());
        if self.lock.is_none() {
            let locks = watcher::watch_object(self.locks(), openshift::WINDOWS_LEASE);
            let observed = locks.default_backoff().map(|change| match change {
                Ok(lock) => Observation::Lock(lock.as_ref().is_some_and(is_held)),
                Err(error) => Observation::Failed(error),
            });
            changes.push(observed.boxed());
        }
        changes
    }

    /// Takes note of a change.
    pub(super) fn note(&mut self, observation: Observation) {
        match observation {
            Observation::Namespace(is_there) => self.namespace = Some(is_there),
            Observation::Lease(name, lease) => {
                let renewed = |it: &LeaseSpec| it.renew_time.clone();
                let before = self
                    .observed
                    .get(name)
                    .and_then(|it| it.as_ref().map(renewed));
                if before != lease.as_ref().map(renewed) {
                    self.was_blind = false;
                }
                self.observed.insert(name, lease);
            }
            Observation::Lock(is_there) => self.lock = Some(is_there),
            Observation::Failed(error) => {
                self.was_blind = true;
                let name = self.half.operator();
                tracing::warn!("cannot watch {name}, will retry: {error}");
            }
        }
    }

    /// How it is, if everything is known that tells; and for how long, if nothing more is observed.
    pub(super) fn presence(&mut self) -> Option<(Presence, Option<Duration>)> {
        let (_, names) = leases(self.half);
        let (namespace, lock) = (self.namespace?, self.lock?);
        if names.iter().any(|name| !self.observed.contains_key(name)) {
            return None;
        }
        let (now, at) = (Timestamp::now(), self.began.elapsed());
        let mut life = Life::Gone;
        for (name, lease) in &self.observed {
            let Some(spec) = lease else { continue };
            let lasts = spec
                .lease_duration_seconds
                .and_then(|it| u64::try_from(it).ok());
            let snapshot = OperatorSnapshot {
                holder: spec.holder_identity.as_deref(),
                renewed: spec.renew_time.as_ref().map(|it| it.0),
                lasts: lasts.map(Duration::from_secs),
            };
            life = life.max(self.leases.look(name, snapshot, now, at));
        }
        let is_there = namespace || self.observed.values().any(Option::is_some);
        Some(Presence::of(is_there, lock, life))
    }

    /// Reads everything that tells, as it is now.
    pub(super) async fn read(&mut self) -> kube::Result<()> {
        let read = self.read_all().await;
        if read.is_err() {
            self.was_blind = true;
        } else if std::mem::take(&mut self.was_blind) {
            let at = self.began.elapsed();
            for (name, _) in self.observed.iter().filter(|(_, lease)| lease.is_some()) {
                self.leases.excuse(name, at);
            }
        }
        read
    }

    async fn read_all(&mut self) -> kube::Result<()> {
        let (namespace, names) = leases(self.half);
        let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        for name in names {
            let found = api.get_opt(name).await?;
            let spec = found.map(|it| it.spec.unwrap_or_default());
            self.observed.insert(name, spec);
        }
        if let Half::Windows = self.half {
            let lock = self.locks().get_opt(openshift::WINDOWS_LEASE).await?;
            self.lock = Some(lock.as_ref().is_some_and(is_held));
        }
        let found = self.namespaces().get_opt(namespace).await?;
        self.namespace = Some(found.is_some());
        Ok(())
    }
}

/// Whether a lock is not on its way out.
fn is_held(lock: &PartialObjectMeta<ConfigMap>) -> bool {
    lock.metadata.deletion_timestamp.is_none()
}

//! Whether OpenShift's own operators are alive on this cluster: beside its machine-config operator pools and
//! Linux nodes are that one's, beside its operator for Windows the Windows nodes are. That half of ours
//! stays idle. `evenkeel_plan::beside` tells who is alive; here is who watches.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_api::names::openshift;
use evenkeel_daemon::Stop;
use evenkeel_plan::beside::{Leases, Sight};
use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll, select_all};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::controllers::again;

/// How long after nobody could be asked whether one is really gone it is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// What is known of the other operators. Clones are the same.
#[derive(Clone)]
pub(crate) struct Beside {
    state: watch::Sender<State>,
}

/// Who is alive; nobody knows before somebody has looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct State {
    machine_configs: Option<bool>,
    windows: Option<bool>,
}

/// One of OpenShift's operators.
#[derive(Debug, Clone, Copy)]
enum Other {
    MachineConfigs,
    Windows,
}

impl Other {
    fn name(self) -> &'static str {
        match self {
            Self::MachineConfigs => "OpenShift's machine-config operator",
            Self::Windows => "OpenShift's operator for Windows nodes",
        }
    }

    /// Where its leaders' locks are, and what they are called.
    fn leases(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::MachineConfigs => (openshift::NAMESPACE, &openshift::LEASES),
            Self::Windows => (openshift::WINDOWS_NAMESPACE, &[openshift::WINDOWS_LEASE]),
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::MachineConfigs => "pools and Linux nodes",
            Self::Windows => "Windows nodes",
        }
    }

    fn in_state(self, state: &mut State) -> &mut Option<bool> {
        match self {
            Self::MachineConfigs => &mut state.machine_configs,
            Self::Windows => &mut state.windows,
        }
    }
}

impl Beside {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::new(State::default()),
        }
    }

    /// Whether somebody has looked for the machine-config operator.
    pub(crate) fn is_known(&self) -> bool {
        self.state.borrow().machine_configs.is_some()
    }

    /// Whether somebody has looked for the operator for Windows nodes.
    pub(crate) fn is_known_for_windows(&self) -> bool {
        self.state.borrow().windows.is_some()
    }

    /// Whether we leave pools and Linux nodes alone.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.borrow().machine_configs != Some(false)
    }

    /// Whether we leave Windows nodes alone.
    pub(crate) fn is_idle_for_windows(&self) -> bool {
        self.state.borrow().windows != Some(false)
    }

    /// Tells when any of that has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.state.subscribe()
    }

    /// Follows their locks, until the program is asked to stop.
    pub(crate) async fn keep(&self, client: Client, stop: &Stop) {
        let both = async {
            tokio::join!(
                self.follow(Other::MachineConfigs, client.clone()),
                self.follow(Other::Windows, client.clone()),
            )
        };
        tokio::select! {
            () = stop.stopped() => {}
            _ = both => {}
        }
    }

    async fn follow(&self, other: Other, client: Client) {
        let mut look = Look::new(other, client);
        let mut changes = look.changes();
        loop {
            let mut life = look.life();
            let mut pause = None;
            // That one is gone is believed only to a fresh answer: a watch may be late, or broken.
            if life == Some(Life::Gone) && self.is_alive(other) {
                match look.read().await {
                    Ok(()) => life = look.life(),
                    Err(error) => {
                        tracing::warn!("cannot look for {}, and try again: {error}", other.name());
                        (life, pause) = (None, Some(AGAIN));
                    }
                }
            }
            match life {
                // What was known stays: if the API server is away, nothing can be done anyway.
                None => {}
                Some(Life::Gone) => self.note(other, false),
                Some(Life::Alive(left)) => {
                    self.note(other, true);
                    pause = left;
                }
            }
            tokio::select! {
                Some(heard) = changes.next() => look.hear(heard),
                () = again(pause) => {}
            }
        }
    }

    fn is_alive(&self, other: Other) -> bool {
        let mut state = *self.state.borrow();
        *other.in_state(&mut state) == Some(true)
    }

    fn note(&self, other: Other, is_alive: bool) {
        let (name, what) = (other.name(), other.what());
        let mut before = None;
        self.state.send_if_modified(|state| {
            before = other.in_state(state).replace(is_alive);
            before != Some(is_alive)
        });
        if is_alive && before != Some(true) {
            tracing::warn!("{name} is alive: {what} are left to it");
        } else if !is_alive && before == Some(true) {
            tracing::info!("{name} is not alive any more: {what} are ours");
        }
    }
}

/// How one of the other operators is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Alive, and until when if nothing more is heard; nothing if it says when it goes.
    Alive(Option<Duration>),
    Gone,
}

/// What a watch has to say.
enum Heard {
    Lease(&'static str, Option<LeaseSpec>),
    /// Whether the lock of older releases is there.
    Lock(bool),
    Failed(watcher::Error),
}

/// Looks for one of the other operators.
struct Look {
    other: Other,
    client: Client,
    began: Instant,
    leases: Leases,
    /// The Leases as they were heard of last.
    heard: BTreeMap<&'static str, Option<LeaseSpec>>,
    lock: Option<bool>,
    /// Whether the API server may have been away since a Lease was heard to be renewed: its holder could not renew it.
    was_blind: bool,
}

impl Look {
    fn new(other: Other, client: Client) -> Self {
        Self {
            other,
            client,
            began: Instant::now(),
            leases: Leases::default(),
            heard: BTreeMap::new(),
            lock: match other {
                Other::MachineConfigs => Some(false),
                Other::Windows => None,
            },
            was_blind: false,
        }
    }

    fn locks(&self) -> Api<PartialObjectMeta<ConfigMap>> {
        Api::namespaced(self.client.clone(), self.other.leases().0)
    }

    /// Every change of every lock.
    fn changes(&self) -> SelectAll<BoxStream<'static, Heard>> {
        let (namespace, names) = self.other.leases();
        let leases = names.iter().map(|name| {
            let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
            let changes = watcher::watch_object(api, name).default_backoff();
            let heard = changes.map(|change| match change {
                Ok(lease) => Heard::Lease(name, lease.map(|it| it.spec.unwrap_or_default())),
                Err(error) => Heard::Failed(error),
            });
            heard.boxed()
        });
        let mut changes = select_all(leases);
        if self.lock.is_none() {
            let locks = watcher::watch_object(self.locks(), openshift::WINDOWS_LEASE);
            let heard = locks.default_backoff().map(|change| match change {
                Ok(lock) => Heard::Lock(lock.as_ref().is_some_and(is_held)),
                Err(error) => Heard::Failed(error),
            });
            changes.push(heard.boxed());
        }
        changes
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Lease(name, lease) => {
                let renewed = |it: &LeaseSpec| it.renew_time.clone();
                let before = self.heard.get(name).and_then(|it| it.as_ref().map(renewed));
                if before != lease.as_ref().map(renewed) {
                    self.was_blind = false;
                }
                self.heard.insert(name, lease);
            }
            Heard::Lock(is_there) => self.lock = Some(is_there),
            Heard::Failed(error) => {
                self.was_blind = true;
                let name = self.other.name();
                tracing::warn!("cannot watch for {name}, and try again: {error}");
            }
        }
    }

    /// How it is, if everything was heard of that tells.
    fn life(&mut self) -> Option<Life> {
        let (_, names) = self.other.leases();
        let lock = self.lock?;
        if names.iter().any(|name| !self.heard.contains_key(name)) {
            return None;
        }
        let (now, at) = (Timestamp::now(), self.began.elapsed());
        let mut left = None;
        for (name, lease) in &self.heard {
            let Some(spec) = lease else { continue };
            let lasts = spec
                .lease_duration_seconds
                .and_then(|it| u64::try_from(it).ok());
            let sight = Sight {
                holder: spec.holder_identity.as_deref(),
                renewed: spec.renew_time.as_ref().map(|it| it.0),
                lasts: lasts.map(Duration::from_secs),
            };
            left = left.max(self.leases.alive_for(name, sight, now, at));
        }
        Some(match (lock, left) {
            // The lock of older releases lives as long as the pod that holds it, and is never renewed.
            (true, _) => Life::Alive(None),
            (false, Some(left)) => Life::Alive(Some(left)),
            (false, None) => Life::Gone,
        })
    }

    /// Reads every lock, as it is now.
    async fn read(&mut self) -> kube::Result<()> {
        let read = self.read_all().await;
        if read.is_err() {
            self.was_blind = true;
        } else if std::mem::take(&mut self.was_blind) {
            let at = self.began.elapsed();
            for (name, _) in self.heard.iter().filter(|(_, lease)| lease.is_some()) {
                self.leases.excuse(name, at);
            }
        }
        read
    }

    async fn read_all(&mut self) -> kube::Result<()> {
        let (namespace, names) = self.other.leases();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        for name in names {
            let found = leases.get_opt(name).await?;
            let spec = found.map(|it| it.spec.unwrap_or_default());
            self.heard.insert(name, spec);
        }
        if let Other::Windows = self.other {
            let lock = self.locks().get_opt(openshift::WINDOWS_LEASE).await?;
            self.lock = Some(lock.as_ref().is_some_and(is_held));
        }
        Ok(())
    }
}

/// Whether a lock is not on its way out.
fn is_held(lock: &PartialObjectMeta<ConfigMap>) -> bool {
    lock.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_before_somebody_has_looked_and_each_half_is_idle_by_itself() {
        let beside = Beside::new();
        assert!(beside.is_idle() && beside.is_idle_for_windows() && !beside.is_known());
        beside.note(Other::MachineConfigs, false);
        assert!(!beside.is_idle() && beside.is_idle_for_windows());
        assert!(beside.is_known() && !beside.is_known_for_windows());
        beside.note(Other::Windows, true);
        assert!(beside.is_idle_for_windows() && beside.is_known_for_windows());
        beside.note(Other::Windows, false);
        assert!(!beside.is_idle_for_windows());
    }
}

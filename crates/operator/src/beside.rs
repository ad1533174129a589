//! Whether OpenShift's own operators are alive on this cluster: beside its machine-config operator pools and
//! Linux nodes are that one's, beside its operator for Windows the Windows nodes are. That half of ours
//! stays idle. `evenkeel_plan::beside` tells who is alive; here is who looks.

use std::time::{Duration, Instant};

use evenkeel_api::names::openshift;
use evenkeel_daemon::Stop;
use evenkeel_plan::beside::{Leases, Sight};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use tokio::sync::watch;

/// The time between two looks.
const PAUSE: Duration = Duration::from_secs(5);

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

    /// Looks now and then, until the program is asked to stop.
    pub(crate) async fn keep(&self, client: Client, stop: &Stop) {
        let mut look = Look::new(client);
        loop {
            let found = look.machine_configs().await;
            self.note(Other::MachineConfigs, found);
            let found = look.windows().await;
            self.note(Other::Windows, found);
            tokio::select! {
                () = stop.stopped() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    fn note(&self, other: Other, found: kube::Result<bool>) {
        let (name, what) = (other.name(), other.what());
        let is_alive = match found {
            Ok(is_alive) => is_alive,
            // What was known stays: if the API server is away, nothing can be done anyway.
            Err(error) => {
                tracing::warn!("cannot look for {name}: {error}");
                return;
            }
        };
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

/// Looks for the other operators.
struct Look {
    client: Client,
    began: Instant,
    leases: Leases,
}

impl Look {
    fn new(client: Client) -> Self {
        Self {
            client,
            began: Instant::now(),
            leases: Leases::default(),
        }
    }

    async fn machine_configs(&mut self) -> kube::Result<bool> {
        let mut is_alive = false;
        for name in openshift::LEASES {
            is_alive |= self.lease(openshift::NAMESPACE, name).await?;
        }
        Ok(is_alive)
    }

    async fn windows(&mut self) -> kube::Result<bool> {
        let (namespace, name) = (openshift::WINDOWS_NAMESPACE, openshift::WINDOWS_LEASE);
        if self.lease(namespace, name).await? {
            return Ok(true);
        }
        // The lock of older releases lives as long as the pod that holds it, and is never renewed.
        let locks: Api<PartialObjectMeta<ConfigMap>> =
            Api::namespaced(self.client.clone(), namespace);
        let lock = locks.get_metadata_opt(name).await?;
        Ok(lock.is_some_and(|it| it.metadata.deletion_timestamp.is_none()))
    }

    async fn lease(&mut self, namespace: &str, name: &str) -> kube::Result<bool> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let Some(lease) = leases.get_opt(name).await? else {
            return Ok(false);
        };
        let spec = lease.spec.unwrap_or_default();
        let lasts = spec
            .lease_duration_seconds
            .and_then(|it| u64::try_from(it).ok());
        let sight = Sight {
            holder: spec.holder_identity.as_deref(),
            renewed: spec.renew_time.map(|it| it.0),
            lasts: lasts.map(Duration::from_secs),
        };
        let name = format!("{namespace}/{name}");
        let at = self.began.elapsed();
        Ok(self.leases.is_alive(&name, sight, Timestamp::now(), at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_before_somebody_has_looked_and_each_half_is_idle_by_itself() {
        let beside = Beside::new();
        assert!(beside.is_idle() && beside.is_idle_for_windows() && !beside.is_known());
        beside.note(Other::MachineConfigs, Ok(false));
        assert!(!beside.is_idle() && beside.is_idle_for_windows());
        assert!(beside.is_known() && !beside.is_known_for_windows());
        beside.note(Other::Windows, Ok(true));
        assert!(beside.is_idle_for_windows() && beside.is_known_for_windows());
        beside.note(Other::Windows, Ok(false));
        assert!(!beside.is_idle_for_windows());
    }
}

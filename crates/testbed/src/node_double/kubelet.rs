//! The kubelet of one node: what it believes about its machine, and how it tells the API server.
//! When it does so is decided in [`super::rounds`]; the pods are in [`super::pods`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::description::{NodeDescription, uuid};
use crate::kubeconfig::Kubeconfig;
use crate::{Doing, Result};

/// How often a kubelet reports a status that has not changed.
const STATUS_INTERVAL: Duration = Duration::from_mins(5);
/// What a kubelet asks for: after this long without renewal others may think it dead.
const LEASE_SECONDS: u32 = 40;
const LEASES: &str = "kube-node-lease";

/// Whether anybody is home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Up,
    /// Writes nothing for now.
    Paused,
    /// Writes nothing any more.
    Gone,
}

#[derive(Debug, Clone)]
struct Belief {
    condition: String,
    status: String,
    since: Time,
}

#[derive(Debug)]
struct KubeletState {
    boot_id: String,
    beliefs: Vec<Belief>,
    /// When the status was last posted as it is now.
    posted: Option<Instant>,
    uid: Option<String>,
    pods: HashMap<String, Stage>,
}

/// What the kubelet is doing with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Started,
    /// It ends when this many seconds are over.
    Ending(i64),
}

pub(super) struct Kubelet {
    description: NodeDescription,
    pub(super) login: Arc<Kubeconfig>,
    pub(super) client: Client,
    presence: watch::Sender<Presence>,
    /// Held while the rounds are here.
    visited: tokio::sync::Mutex<()>,
    state: Mutex<KubeletState>,
}

impl Kubelet {
    pub(super) fn new(
        description: NodeDescription,
        (login, client): (Arc<Kubeconfig>, Client),
    ) -> Self {
        let since = Time(Timestamp::now());
        let beliefs = [
            ("MemoryPressure", "False"),
            ("DiskPressure", "False"),
            ("PIDPressure", "False"),
            ("Ready", "True"),
        ]
        .map(|(condition, status)| Belief {
            condition: condition.to_owned(),
            status: status.to_owned(),
            since: since.clone(),
        });
        let state = KubeletState {
            boot_id: description.boot_id.clone(),
            beliefs: beliefs.to_vec(),
            posted: None,
            uid: None,
            pods: HashMap::new(),
        };
        Self {
            description,
            login,
            client,
            presence: watch::Sender::new(Presence::Up),
            visited: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.description.name()
    }

    pub(super) fn host_ip(&self) -> String {
        self.description.internal_ip()
    }

    pub(super) fn boot_id(&self) -> String {
        self.state().boot_id.clone()
    }

    pub(super) fn reboot(&self) {
        let mut state = self.state();
        state.boot_id = uuid();
        state.posted = None;
    }

    /// From now on reports `status` for `condition`; returns what it reported before.
    pub(super) fn believe(&self, condition: &str, status: &str) -> Option<String> {
        let mut state = self.state();
        state.posted = None;
        let known = state
            .beliefs
            .iter_mut()
            .find(|it| it.condition == condition);
        let Some(belief) = known else {
            state.beliefs.push(Belief {
                condition: condition.to_owned(),
                status: status.to_owned(),
                since: Time(Timestamp::now()),
            });
            return None;
        };
        if belief.status != status {
            belief.since = Time(Timestamp::now());
        }
        Some(std::mem::replace(&mut belief.status, status.to_owned()))
    }

    pub(super) fn turn(&self, presence: Presence) {
        // Gone is for good.
        self.presence.send_if_modified(|now| {
            let changes = *now != Presence::Gone;
            if changes {
                *now = presence;
            }
            changes
        });
    }

    pub(super) fn is_up(&self) -> bool {
        *self.presence.borrow() == Presence::Up
    }

    pub(super) fn is_gone(&self) -> bool {
        *self.presence.borrow() == Presence::Gone
    }

    /// Waits while it is paused; then says whether it may write.
    pub(super) async fn may_write(&self) -> bool {
        let mut presence = self.presence.subscribe();
        let settled = presence.wait_for(|now| *now != Presence::Paused).await;
        settled.is_ok_and(|now| *now == Presence::Up)
    }

    /// Which pods it has in hand, by uid.
    pub(super) fn with_pods<T>(&self, work: impl FnOnce(&mut HashMap<String, Stage>) -> T) -> T {
        work(&mut self.state().pods)
    }

    /// Creates its Node, or brings an existing one up to date, and renews its Lease.
    pub(super) async fn register(&self) -> Result<()> {
        if !self.is_up() {
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut whole = self.description.registration();
        whole["status"] = self.status();
        let node: Node = serde_json::from_value(whole).doing(|| "cannot put a node together")?;
        match nodes.create(&PostParams::default(), &node).await {
            Err(kube::Error::Api(answer)) if answer.code == 409 => {
                let labels = json!({ "metadata": { "labels": self.description.all_labels() } });
                let patch = Patch::Merge(labels);
                let patched = nodes
                    .patch(self.name(), &PatchParams::default(), &patch)
                    .await;
                self.state().uid = patched.doing(|| self.unregistered())?.metadata.uid;
                self.post_status().await?;
                self.renew_lease().await
            }
            made => {
                self.state().uid = made.doing(|| self.unregistered())?.metadata.uid;
                self.state().posted = Some(Instant::now());
                match self.create_lease().await {
                    Err(kube::Error::Api(answer)) if answer.code == 409 => self.renew_lease().await,
                    other => other.doing(|| self.unregistered()),
                }
            }
        }
    }

    /// What is due when the rounds come by. One at a time: a kubelet does not renew a second time before
    /// the first renewal was answered.
    pub(super) async fn visit(&self) -> Result<()> {
        let Ok(_alone) = self.visited.try_lock() else {
            return Ok(());
        };
        if !self.is_up() || self.state().uid.is_none() {
            return Ok(());
        }
        self.renew_lease().await?;
        let due = self
            .state()
            .posted
            .is_none_or(|posted| posted.elapsed() >= STATUS_INTERVAL);
        if due {
            self.post_status().await
        } else {
            Ok(())
        }
    }

    pub(super) async fn post_status(&self) -> Result<()> {
        if !self.is_up() {
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Strategic(json!({ "status": self.status() }));
        let before = self.state().posted.replace(Instant::now());
        let posted = nodes
            .patch_status(self.name(), &PatchParams::default(), &patch)
            .await;
        if posted.is_err() {
            self.state().posted = before;
        }
        posted
            .map(|_| ())
            .doing(|| format!("cannot post the status of node {}", self.name()))
    }

    /// Patched without being read first: a thousand of them a round cost one request each.
    pub(super) async fn renew_lease(&self) -> Result<()> {
        if !self.is_up() {
            return Ok(());
        }
        let patch = Patch::Merge(json!({ "spec": self.lease_spec() }));
        let renewed = self
            .leases()
            .patch(self.name(), &PatchParams::default(), &patch)
            .await;
        let renewed = match renewed {
            Err(kube::Error::Api(answer)) if answer.code == 404 => self.create_lease().await,
            other => other.map(|_| ()),
        };
        renewed.doing(|| format!("cannot renew the lease of node {}", self.name()))
    }

    /// Its Lease goes when its Node goes.
    async fn create_lease(&self) -> kube::Result<()> {
        let owners: Vec<Value> = self
            .state()
            .uid
            .iter()
            .map(|uid| json!({ "apiVersion": "v1", "kind": "Node", "name": self.name(), "uid": uid }))
            .collect();
        let metadata = json!({ "name": self.name(), "ownerReferences": owners });
        let lease = json!({ "metadata": metadata, "spec": self.lease_spec() });
        let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
        let made = self.leases().create(&PostParams::default(), &lease).await;
        made.map(|_| ())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), LEASES)
    }

    fn lease_spec(&self) -> Value {
        json!({
            "holderIdentity": self.name(),
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": MicroTime(Timestamp::now()),
        })
    }

    fn unregistered(&self) -> String {
        format!("cannot register node {}", self.name())
    }

    fn status(&self) -> Value {
        let state = self.state();
        let now = Time(Timestamp::now());
        let conditions: Vec<Value> = state
            .beliefs
            .iter()
            .map(|belief| {
                let (reason, message) = reason(&belief.condition, &belief.status);
                json!({
                    "type": belief.condition,
                    "status": belief.status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": belief.since,
                })
            })
            .collect();
        let mut status = self.description.status(&state.boot_id);
        status["conditions"] = Value::Array(conditions);
        status
    }

    fn state(&self) -> MutexGuard<'_, KubeletState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Kubelet {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Kubelet of {}", self.name())
    }
}

/// The words a kubelet has for a condition.
fn reason(condition: &str, status: &str) -> (String, String) {
    let (reason, message) = match (condition, status) {
        ("Ready", "True") => ("KubeletReady", "kubelet is posting ready status"),
        ("Ready", _) => ("KubeletNotReady", "container runtime is down"),
        ("MemoryPressure", "False") => (
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        ("DiskPressure", "False") => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False") => (
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        _ => {
            return (
                format!("{condition}{status}"),
                "the test bed says so".to_owned(),
            );
        }
    };
    (reason.to_owned(), message.to_owned())
}

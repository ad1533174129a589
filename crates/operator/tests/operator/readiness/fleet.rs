//! Many nodes with an extension each, whoever of them falls silent, and a record of who was tainted when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_testbed::node_double::{NodeDouble, NodeFleet};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use futures::StreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::bed::{is_tainted, renew};
use crate::scene::Scene;

/// How many renewals are under way at once.
const AT_ONCE: usize = 16;
/// How long one may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(3);

/// Nodes whose extension `dp` renews its Lease.
pub(crate) struct Crowd {
    pub(crate) nodes: Vec<NodeDouble>,
    pub(crate) names: Vec<String>,
    silent: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Crowd {
    /// So many nodes, one after the other in these zones; each extension renews `every` so long, and each
    /// of the `kubelets`.
    pub(crate) async fn gather(
        scene: &Scene,
        count: usize,
        zones: &[&str],
        every: Duration,
        kubelets: Duration,
    ) -> Result<Self> {
        let described = (0..count).map(|number| {
            let node = scene.describe(&format!("n{number:04}"));
            node.zone(zones[number % zones.len()])
                .lease_interval(kubelets)
        });
        let described: Vec<_> = described.collect();
        let names: Vec<String> = described.iter().map(|it| it.name().to_owned()).collect();
        let login = scene.control_plane.admin_kubeconfig();
        let nodes = NodeFleet::start(described, &login).await?.into_nodes();
        let silent = Arc::<Mutex<BTreeSet<String>>>::default();
        let renewals = go_round(scene.leases(), names.clone(), Arc::clone(&silent), every);
        let task = tokio::spawn(renewals);
        Ok(Self {
            nodes,
            names,
            silent,
            task,
        })
    }

    /// These extensions renew no more, and no others.
    pub(crate) fn silence(&self, names: &[String]) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        *silent = names.iter().cloned().collect();
    }

    /// Kubelets and extensions are cut off from the API server.
    pub(crate) fn cut_off(&self) {
        self.silence(&self.names);
        self.nodes.iter().for_each(NodeDouble::pause);
    }

    /// They are back.
    pub(crate) async fn connect(&self) -> Result<()> {
        self.silence(&[]);
        let back = futures::stream::iter(&self.nodes).map(NodeDouble::resume);
        let back: Vec<Result<()>> = back.buffer_unordered(AT_ONCE).collect().await;
        back.into_iter().collect()
    }

    /// Waits until all are ready, as the operator says.
    pub(crate) async fn are_ready(&self, scene: &Scene, rule: &str) -> Result<()> {
        let count = self.names.len();
        until_async("all to be ready", Duration::from_mins(5), async || {
            let rule = scene.rules().get(&scene.called(rule)).await;
            let status = rule.doing(|| "no rule")?.data["status"].clone();
            Ok(if status["nodes"]["ready"] == count {
                Look::Found(())
            } else {
                let log = scene.log();
                let lines: Vec<_> = log.lines().rev().take(5).collect();
                Look::NotYet(format!("{status} {lines:#?}"))
            })
        })
        .await
    }
}

/// Renews one Lease after the other, so that a round takes as long as it should, for ever.
async fn go_round(
    api: Api<Lease>,
    names: Vec<String>,
    silent: Arc<Mutex<BTreeSet<String>>>,
    every: Duration,
) {
    let step = every / u32::try_from(names.len()).unwrap_or(u32::MAX).max(1);
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let mut renewals = JoinSet::new();
    let mut due = tokio::time::Instant::now();
    for name in names.iter().cycle() {
        // After a time without answers it goes on from now; it does not catch up.
        due = (due + step).max(tokio::time::Instant::now());
        tokio::time::sleep_until(due).await;
        let is_silent = || {
            let silent = silent.lock().unwrap_or_else(PoisonError::into_inner);
            silent.contains(name)
        };
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        if !is_silent() {
            let (api, name) = (api.clone(), name.clone());
            renewals.spawn(async move {
                let once = renew(&api, &name, "dp", SignedDuration::ZERO);
                _ = tokio::time::timeout(PATIENCE, once).await;
                drop(slot);
            });
        }
        while renewals.try_join_next().is_some() {}
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whose taint came or went, and when.
type Turns = Vec<(Instant, String, bool)>;

/// Who was tainted when.
pub(crate) struct Record {
    turns: Arc<Mutex<Turns>>,
    task: JoinHandle<()>,
}

impl Record {
    /// Of the nodes of a scene, none of which is tainted now.
    pub(crate) fn of(scene: &Scene) -> Self {
        let api: Api<Node> = scene.nodes();
        let config = watcher::Config::default().labels(&format!("place={}", scene.name));
        let turns = Arc::<Mutex<Turns>>::default();
        let written = Arc::clone(&turns);
        let task = tokio::spawn(async move {
            let changes = watcher(api, config).default_backoff().applied_objects();
            let mut changes = std::pin::pin!(changes);
            let mut known: BTreeMap<String, bool> = BTreeMap::new();
            while let Some(change) = changes.next().await {
                let Ok(node) = change else { continue };
                let (name, now) = (node.name_any(), is_tainted(&node));
                if known.insert(name.clone(), now).unwrap_or_default() != now {
                    let mut turns = written.lock().unwrap_or_else(PoisonError::into_inner);
                    turns.push((Instant::now(), name, now));
                }
            }
        });
        Self { turns, task }
    }

    /// Whose taint came since `start`, and when.
    pub(crate) fn tainted(&self, start: Instant) -> Vec<(Instant, String)> {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let came = turns.iter().filter(|(at, _, now)| *now && *at >= start);
        came.map(|(at, name, _)| (*at, name.clone())).collect()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.task.abort();
    }
}

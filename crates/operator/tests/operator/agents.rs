//! Agents of many nodes in one process: the engine of the real agent (`plan::phase`, `host::observe`,
//! `host::execute`) on simulated machines, one for each node double. Each has the login of its node's agent,
//! with the rights and under the policies of the chart. What the real agent adds is its queue and its
//! watches on the disk; the real program runs in `systemd.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_api::document::{self, Document};
use evenkeel_api::names::{annotation, linux};
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::simulated::SimulatedHost;
use evenkeel_host::{observe, verify};
use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::linux_node::Report;
use evenkeel_plan::machine::phase::{AgentSnapshot, Drain, Failed, OnDrift, Phase, Reason, Wanted};
use evenkeel_plan::machine::voucher::DesiredConfig;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::{Doing, Error, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinSet;

use crate::pools::file;
use crate::scene::Scene;

type Annotations = BTreeMap<String, String>;

/// What the agents of a test have in common.
#[derive(Default)]
struct Common {
    /// Configurations by name: all nodes have the same.
    configs: AsyncMutex<BTreeMap<String, Arc<(Desired, Contents)>>>,
    /// Nodes whose disk is full.
    broken: Mutex<BTreeSet<String>>,
    /// No machine boots for now.
    held: watch::Sender<bool>,
    /// What no agent may ever see.
    violations: Mutex<Vec<String>>,
    boots: AtomicUsize,
}

/// The agents of a scene's nodes. They end when this is dropped.
pub(crate) struct Agents {
    common: Arc<Common>,
    machines: BTreeMap<String, Arc<SimulatedHost>>,
    _tasks: JoinSet<()>,
}

impl Agents {
    /// Starts an agent for each of `nodes`.
    pub(crate) async fn start(scene: &Scene, nodes: &Arc<Vec<NodeDouble>>) -> Result<Self> {
        scene.let_agents_in()?;
        let common = Arc::new(Common::default());
        let mut tasks = JoinSet::new();
        let mut machines = BTreeMap::new();
        let mut news = BTreeMap::new();
        for (at, node) in nodes.iter().enumerate() {
            let machine = Arc::new(SimulatedHost::new());
            let (told, hears) = watch::channel(None);
            let agent = Agent {
                client: scene.agent_login(node.name())?.client().await?,
                common: Arc::clone(&common),
                machine: Arc::clone(&machine),
                state: State::at(linux::OWN_STATE),
                nodes: Arc::clone(nodes),
                at,
            };
            tasks.spawn(agent.live(hears));
            news.insert(node.name().to_owned(), told);
            machines.insert(node.name().to_owned(), machine);
        }
        tasks.spawn(deliver(scene.client.clone(), scene.name.clone(), news));
        Ok(Self {
            common,
            machines,
            _tasks: tasks,
        })
    }

    /// Fills the disk of a node, or makes room again.
    pub(crate) fn break_disk(&self, node: &str, is_full: bool) {
        let mut broken = lock(&self.common.broken);
        if is_full {
            broken.insert(node.to_owned());
        } else {
            broken.remove(node);
        }
    }

    /// Lets no machine boot, or all again.
    pub(crate) fn hold_boots(&self, are_held: bool) {
        self.common.held.send_replace(are_held);
    }

    /// How often machines booted.
    pub(crate) fn boots(&self) -> usize {
        self.common.boots.load(Ordering::SeqCst)
    }

    /// What a file of a node says.
    pub(crate) fn file(&self, node: &str, path: &str) -> Option<String> {
        let contents = self.machines[node].disk().read(path).ok().flatten()?;
        String::from_utf8(contents).ok()
    }

    /// An error if any agent saw what may never be.
    pub(crate) fn check_violations(&self) -> Result<()> {
        let violations = lock(&self.common.violations);
        if violations.is_empty() {
            Ok(())
        } else {
            Err(Error::failed(violations.join("; ")))
        }
    }
}

impl Scene {
    /// A pool `web` with that spec, its nodes with their agents, and one MachineConfig that says 1 in
    /// `/etc/base`.
    pub(crate) async fn web(
        &self,
        count: usize,
        zones: usize,
        spec: Value,
    ) -> Result<(Arc<Vec<NodeDouble>>, Agents)> {
        let nodes = self.fleet("web", count, zones).await?;
        let agents = Agents::start(self, &nodes).await?;
        self.config("web", "00-base", file("/etc/base", "1"))
            .await?;
        self.pool("web", spec).await?;
        Ok((nodes, agents))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives each agent the annotations of its own Node, from one watch.
async fn deliver(
    client: Client,
    place: String,
    news: BTreeMap<String, watch::Sender<Option<Annotations>>>,
) {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client);
    let config = watcher::Config::default().labels(&format!("place={place}"));
    let mut changes = watcher(nodes, config)
        .default_backoff()
        .applied_objects()
        .boxed();
    while let Some(change) = changes.next().await {
        let Ok(node) = change else { continue };
        let name = node.metadata.name.unwrap_or_default();
        if let Some(told) = news.get(&name) {
            told.send_replace(node.metadata.annotations);
        }
    }
}

struct Agent {
    client: Client,
    common: Arc<Common>,
    machine: Arc<SimulatedHost>,
    state: State,
    nodes: Arc<Vec<NodeDouble>>,
    at: usize,
}

impl Agent {
    async fn live(self, mut news: watch::Receiver<Option<Annotations>>) {
        while news.changed().await.is_ok() {
            loop {
                let Some(annotations) = news.borrow_and_update().clone() else {
                    break;
                };
                match self.reconcile(annotations).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    // The API server did not answer: the same once more.
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
                }
            }
        }
    }

    /// Observes, plans, applies and reports, once, as the worker of the real agent does. Says whether
    /// there is more to do at once.
    async fn reconcile(&self, mut annotations: Annotations) -> Result<bool> {
        let said = |name: &str| annotations.get(name).map(String::as_str);
        let (current, awaits_boot, drift) = self.settle()?;
        let desired =
            DesiredConfig::of(said(annotation::DESIRED_CONFIG), said(annotation::VOUCHER));
        // What nobody of ours vouches for is somebody else's.
        if let DesiredConfig::Foreign(_) = desired {
            return Ok(false);
        }
        let desired = desired.vouched();
        let target = desired.filter(|it| !awaits_boot && current.as_deref() != Some(*it));
        let full = Reason::new("DiskFull", "the disk is full");
        let is_broken = lock(&self.common.broken).contains(self.nodes[self.at].name());
        let mut plan = None;
        if let Some(name) = target {
            plan = Some(match self.config(name).await? {
                Some(config) => {
                    let plan = observe::plan(&*self.machine, &self.state, &config.0, &config.1);
                    let plan = plan
                        .map_err(|error| engine(&error))?
                        .carried_out_in(self.machine.boot_id().map_err(|error| engine(&error))?);
                    Ok((config, plan))
                }
                None => Err(Reason::missing(name)),
            });
        }
        let snapshot = AgentSnapshot {
            current: current.as_deref(),
            settled: true,
            awaits_boot,
            lasting: &[],
            wanted: match (&plan, target) {
                (Some(Ok((_, plan))), Some(name)) => Wanted::Planned { name, plan },
                (Some(Err(reason)), _) => Wanted::Unfit(reason.clone()),
                _ => Wanted::AsItIs,
            },
            drift: &drift,
            on_drift: OnDrift::of(said(annotation::DRIFT)),
            forced: false,
            failed: (is_broken && target.is_some()).then_some(Failed {
                reason: &full,
                tries: 1,
            }),
            drain: Drain {
                asked: said(annotation::DESIRED_DRAIN),
                applied: said(annotation::LAST_APPLIED_DRAIN),
            },
        };
        let phase = Phase::next(&snapshot);
        let has_permit = annotations.contains_key(annotation::DRAIN_GRANTED);
        if let Some(report) = Report::of(&phase, &snapshot) {
            let changes = report.changes(&annotations);
            if !changes.is_empty() {
                let patch = json!({ "metadata": { "annotations": changes } });
                let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
                let name = self.nodes[self.at].name();
                nodes
                    .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                    .doing(|| "cannot report")?;
                let changes = changes
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
                let changes: Vec<_> = changes.collect();
                annotations.extend(changes);
            }
        }
        match (phase, plan) {
            (Phase::Apply { .. }, Some(Ok((config, plan)))) => {
                let claim =
                    Claim::take(&*self.machine, &self.state).map_err(|error| engine(&error))?;
                claim
                    .apply(&plan, &config.1, &mut |_| {})
                    .map_err(|error| engine(&error))?;
                Ok(true)
            }
            (Phase::Reboot, _) => {
                if !has_permit {
                    let name = self.nodes[self.at].name();
                    lock(&self.common.violations).push(format!("{name} boots without a permit"));
                }
                let mut held = self.common.held.subscribe();
                let released = held.wait_for(|are_held| !are_held).await;
                released.doing(|| "nobody releases it any more")?;
                self.nodes[self.at].restart_machine().await?;
                let claim =
                    Claim::take(&*self.machine, &self.state).map_err(|error| engine(&error))?;
                claim.is_told_to_boot().map_err(|error| engine(&error))?;
                drop(claim);
                self.machine.operating_system().boots();
                self.common.boots.fetch_add(1, Ordering::SeqCst);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The configuration of the machine, whether it awaits a boot, and what is not as it says.
    fn settle(&self) -> Result<(Option<String>, bool, Vec<String>)> {
        let claim = Claim::take(&*self.machine, &self.state).map_err(|error| engine(&error))?;
        let boot = self.machine.boot_id().map_err(|error| engine(&error))?;
        claim.take_note_of_boot().map_err(|error| engine(&error))?;
        let record = claim.record().map_err(|error| engine(&error))?;
        let found = verify::verify(&*self.machine, &record.targets(), &Contents::default());
        let drift = found.iter().map(|it| it.resource.to_string()).collect();
        Ok((record.config.clone(), record.awaits_boot(&boot), drift))
    }

    async fn config(&self, name: &str) -> Result<Option<Arc<(Desired, Contents)>>> {
        let mut configs = self.common.configs.lock().await;
        if let Some(known) = configs.get(name) {
            return Ok(Some(Arc::clone(known)));
        }
        let resource = crate::pools::resource("MachineConfig", "machineconfigs");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let Some(object) = api
            .get_opt(name)
            .await
            .doing(|| "cannot read a MachineConfig")?
        else {
            return Ok(None);
        };
        let text = serde_json::to_string(&object).doing(|| "no text")?;
        let read = document::read(name, text.as_bytes()).doing(|| "no MachineConfig")?;
        let Some(Document::MachineConfig(config)) = read.0.into_iter().next() else {
            return Ok(None);
        };
        let config = Arc::new(Desired::of(config));
        configs.insert(name.to_owned(), Arc::clone(&config));
        Ok(Some(config))
    }
}

fn engine(error: &evenkeel_host::Error) -> Error {
    Error::failed(error.with_causes())
}

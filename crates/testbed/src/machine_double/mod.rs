//! A machine controller without a cloud: `MachineSets` keep their replicas, a Machine becomes a
//! [`Body`], and one that is deleted is drained and gone before its object is.
//!
//! It does what the rest of a cluster can see of the real one, in one namespace: finalizers, life-cycle
//! hooks, addresses and the reference to the Node.

mod body;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

pub use self::body::{Body, Maker, Making, SimulatedMachine};
use crate::control_plane::ControlPlane;
use crate::kubeconfig::Kubeconfig;
use crate::process::tell;
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Result};

const GROUP: &str = "machine.openshift.io";
const VERSION: &str = "v1beta1";
/// Keeps a Machine until its machine is gone.
const FINALIZER: &str = "machine.machine.openshift.io";
const KINDS: &str = include_str!("kinds.yaml");
/// How long the API server may take to serve a new kind.
const SERVED: Duration = Duration::from_secs(30);
/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Lets the API server know Machines and `MachineSets`.
pub fn install_kinds(control_plane: &ControlPlane) -> Result<()> {
    let scratch = Scratch::new("kinds")?;
    let file = scratch.path().join("kinds.yaml");
    std::fs::write(&file, KINDS).doing(|| "cannot write the kinds of Machines")?;
    control_plane.kubectl(&["apply", "-f", &file.display().to_string()])?;
    // Established is not yet served.
    let kinds = "machines.machine.openshift.io,machinesets.machine.openshift.io";
    until("Machines to be served", SERVED, || {
        let served = control_plane.kubectl(&["get", kinds, "--all-namespaces"]);
        Ok(match served {
            Ok(_) => Look::Found(()),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
}

/// Machines of a namespace.
pub fn machines(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, "Machine");
    let kind = ApiResource::from_gvk_with_plural(&kind, "machines");
    Api::namespaced_with(client, namespace, &kind)
}

/// `MachineSets` of a namespace.
pub fn machine_sets(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, "MachineSet");
    let kind = ApiResource::from_gvk_with_plural(&kind, "machinesets");
    Api::namespaced_with(client, namespace, &kind)
}

/// A `MachineSet` of that name, whose Machines have `labels`.
pub fn machine_set(name: &str, replicas: usize, annotations: &Value, labels: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "MachineSet",
        "metadata": { "name": name, "annotations": annotations },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": {} },
        },
    })
}

/// Cares for the Machines of one namespace. When it is dropped, its machines are gone; their objects
/// stay.
pub struct MachineController {
    runtime: Option<Runtime>,
    world: Arc<World>,
}

/// What the controller works with.
struct World {
    client: Client,
    namespace: String,
    make: Maker,
    /// Machines that exist, by the uid of their object.
    bodies: Mutex<BTreeMap<String, Box<dyn Body>>>,
    /// Objects that are being worked on.
    busy: Mutex<BTreeSet<String>>,
    news: Notify,
}

impl std::fmt::Debug for MachineController {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "MachineController of {}", self.world.namespace)
    }
}

impl MachineController {
    /// Begins to care for the Machines of `namespace`, each of which becomes what `make` makes of it.
    pub async fn start(login: &Kubeconfig, namespace: &str, make: Maker) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("machines")
            .enable_all()
            .build()
            .doing(|| "cannot make the runtime of the machine controller")?;
        // Whoever makes a client ties it to the runtime that it is made on.
        let login = login.clone();
        let client = runtime
            .spawn(async move { login.client().await })
            .await
            .doing(|| "cannot log in")??;
        let world = Arc::new(World {
            client,
            namespace: namespace.to_owned(),
            make,
            bodies: Mutex::default(),
            busy: Mutex::default(),
            news: Notify::new(),
        });
        runtime.spawn(follow(world.clone()));
        runtime.spawn(run(world.clone()));
        Ok(Self {
            runtime: Some(runtime),
            world,
        })
    }
}

impl Drop for MachineController {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        locked(&self.world.bodies).clear();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells of every change of Machines, `MachineSets` and Nodes.
async fn follow(world: Arc<World>) {
    let config = watcher::Config::default();
    let client = || world.client.clone();
    let machines = watcher(machines(client(), &world.namespace), config.clone());
    let sets = watcher(machine_sets(client(), &world.namespace), config.clone());
    let nodes = watcher(Api::<Node>::all(client()), config);
    let mut changes = futures::stream::select_all([
        machines.default_backoff().map(|_| ()).boxed(),
        sets.default_backoff().map(|_| ()).boxed(),
        nodes.default_backoff().map(|_| ()).boxed(),
    ]);
    while changes.next().await.is_some() {
        world.news.notify_one();
    }
}

async fn run(world: Arc<World>) {
    loop {
        world.news.notified().await;
        if let Err(error) = world.round().await {
            tell(&format!("the machine controller retries: {error}"));
            tokio::time::sleep(AGAIN).await;
            world.news.notify_one();
        }
    }
}

impl World {
    /// Looks at everything once.
    async fn round(self: &Arc<Self>) -> Result<()> {
        let all = ListParams::default();
        let sets = self.sets().list(&all).await.doing(|| "no MachineSets")?;
        let found = self.machines().list(&all).await.doing(|| "no Machines")?;
        for set in &sets.items {
            if set.metadata.deletion_timestamp.is_none() {
                self.keep_replicas(set, &found.items).await?;
            }
        }
        for machine in found.items {
            if machine.metadata.deletion_timestamp.is_some() {
                self.begin(&machine, |world, machine| async move {
                    removal::remove(&world, &machine).await
                });
            } else if !has_finalizer(&machine) {
                let patch = json!({ "metadata": { "finalizers": [FINALIZER] } });
                self.patch(&machine, patch).await?;
            } else if machine.data["status"]["addresses"].is_null() {
                self.begin(&machine, |world, machine| async move {
                    world.make(&machine).await
                });
            } else if machine.data["status"]["nodeRef"].is_null() {
                self.link(&machine).await?;
            }
        }
        Ok(())
    }

    /// As many Machines as the set wants: those on their way out do not count.
    async fn keep_replicas(&self, set: &DynamicObject, machines: &[DynamicObject]) -> Result<()> {
        let uid = set.uid().unwrap_or_default();
        let own: Vec<_> = machines
            .iter()
            .filter(|it| is_owned_by(it, &uid))
            .filter(|it| it.metadata.deletion_timestamp.is_none())
            .collect();
        let wanted = set.data["spec"]["replicas"].as_u64().unwrap_or(1);
        let wanted = usize::try_from(wanted).unwrap_or_default();
        for _ in own.len()..wanted {
            self.make_object(set, &uid).await?;
        }
        for machine in own.iter().skip(wanted) {
            let deleted = self
                .machines()
                .delete(&machine.name_any(), &DeleteParams::default())
                .await;
            deleted.doing(|| "cannot delete a Machine")?;
        }
        let ready = own.iter().filter(|it| has_node(it)).count();
        let status = json!({ "replicas": own.len(), "readyReplicas": ready });
        if set.data["status"] != status {
            let patch = Patch::Merge(json!({ "status": status }));
            let name = set.name_any();
            let (sets, parameters) = (self.sets(), PatchParams::default());
            let said = sets.patch_status(&name, &parameters, &patch).await;
            said.doing(|| "cannot write the status of a MachineSet")?;
        }
        Ok(())
    }

    async fn make_object(&self, set: &DynamicObject, uid: &str) -> Result<()> {
        let template = &set.data["spec"]["template"];
        let machine = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Machine",
            "metadata": {
                "generateName": format!("{}-", set.name_any()),
                "labels": template["metadata"]["labels"],
                "finalizers": [FINALIZER],
                "ownerReferences": [{
                    "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "MachineSet",
                    "name": set.name_any(), "uid": uid,
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": template["spec"],
        });
        let machine = serde_json::from_value(machine).doing(|| "no Machine")?;
        let made = self
            .machines()
            .create(&PostParams::default(), &machine)
            .await;
        made.map(|_| ()).doing(|| "cannot make a Machine")
    }

    /// Does work on one Machine concurrently with everything else, unless there is some already.
    fn begin<W, F>(self: &Arc<Self>, machine: &DynamicObject, work: W)
    where
        W: FnOnce(Arc<Self>, DynamicObject) -> F + Send + 'static,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let uid = machine.uid().unwrap_or_default();
        if !locked(&self.busy).insert(uid.clone()) {
            return;
        }
        let (world, machine) = (self.clone(), machine.clone());
        tokio::spawn(async move {
            let name = machine.name_any();
            if let Err(error) = work(world.clone(), machine).await {
                tell(&format!("Machine {name}: {error}"));
                tokio::time::sleep(AGAIN).await;
            }
            locked(&world.busy).remove(&uid);
            world.news.notify_one();
        });
    }

    /// Makes the machine, and says where it is.
    async fn make(&self, machine: &DynamicObject) -> Result<()> {
        let (name, uid) = (machine.name_any(), machine.uid().unwrap_or_default());
        // It may have been made since whoever sent us here has looked.
        let now = self.machines().get_opt(&name).await;
        let now = now.doing(|| format!("cannot read Machine {name}"))?;
        let is_due = |it: &DynamicObject| {
            it.uid().as_ref() == Some(&uid) && it.data["status"]["addresses"].is_null()
        };
        if !now.as_ref().is_some_and(is_due) {
            return Ok(());
        }
        self.say(&name, json!({ "phase": "Provisioning" })).await?;
        let body = (self.make)(name.clone(), json!(machine.labels())).await?;
        let (address, node) = (body.address(), body.node());
        locked(&self.bodies).insert(uid, body);
        let addresses = json!([
            { "type": "InternalIP", "address": address },
            { "type": "Hostname", "address": node },
        ]);
        let status = json!({ "phase": "Provisioned", "addresses": addresses });
        self.say(&name, status).await
    }

    /// Refers to the Node, once there is one.
    async fn link(&self, machine: &DynamicObject) -> Result<()> {
        let uid = machine.uid().unwrap_or_default();
        let Some(node) = locked(&self.bodies).get(&uid).map(|it| it.node()) else {
            return Ok(());
        };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Some(node) = nodes.get_opt(&node).await.doing(|| "cannot read a Node")? else {
            return Ok(());
        };
        let reference = json!({ "kind": "Node", "name": node.name_any(), "uid": node.uid() });
        let status = json!({ "phase": "Running", "nodeRef": reference });
        self.say(&machine.name_any(), status).await
    }

    async fn say(&self, machine: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        let said = self
            .machines()
            .patch_status(machine, &PatchParams::default(), &patch)
            .await;
        match said {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            said => said
                .map(|_| ())
                .doing(|| format!("cannot write the status of Machine {machine}")),
        }
    }

    async fn patch(&self, machine: &DynamicObject, patch: Value) -> Result<()> {
        let name = machine.name_any();
        let patched = self
            .machines()
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            patched => patched
                .map(|_| ())
                .doing(|| format!("cannot write Machine {name}")),
        }
    }

    fn machines(&self) -> Api<DynamicObject> {
        machines(self.client.clone(), &self.namespace)
    }

    fn sets(&self) -> Api<DynamicObject> {
        machine_sets(self.client.clone(), &self.namespace)
    }
}

fn has_finalizer(machine: &DynamicObject) -> bool {
    machine.finalizers().iter().any(|it| it == FINALIZER)
}

fn has_node(machine: &DynamicObject) -> bool {
    !machine.data["status"]["nodeRef"].is_null()
}

fn is_owned_by(machine: &DynamicObject, uid: &str) -> bool {
    machine
        .owner_references()
        .iter()
        .any(|it| it.uid == uid && it.controller == Some(true))
}

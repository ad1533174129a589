//! The way to a cluster, with the person's own login, and errors that say who may not do what.

mod policies;

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use evenkeel_api::field::Field;
use evenkeel_api::fleet::machine_config_pool::{self as shape, PoolStatus};
use evenkeel_api::names::{annotation, group, label, program};
use evenkeel_plan::fleet::coexistence::CoexistenceReports;
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::node_facts::{NodeFacts, NodeObject};
use evenkeel_plan::fleet::pool::Pool;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};

use crate::arguments::ClusterArguments;
use crate::output;

pub(crate) use self::policies::{NamedPolicies, policies_kind};

/// How many objects are asked for at once.
const PAGE: u32 = 500;

/// A cluster that can be asked.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Its address, for messages.
    pub(crate) server: String,
}

/// A pool as its object says, and what the operator says of it.
pub(crate) struct PoolObject {
    pub(crate) pool: Pool,
    pub(crate) status: PoolStatus,
}

/// Pools and Nodes at one moment.
pub(crate) struct Fleet {
    pub(crate) pools: Vec<Pool>,
    pub(crate) statuses: Vec<PoolStatus>,
    /// The nodes, with what the pools record of their permits.
    pub(crate) nodes: Vec<Node>,
    /// All else that is known of the same nodes.
    pub(crate) facts: Vec<NodeFacts>,
}

/// Does `work` with the cluster that the person means.
pub(crate) fn with<T>(
    arguments: &ClusterArguments,
    work: impl AsyncFnOnce(Cluster) -> Result<T>,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(async {
        let config = config(arguments).await?;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).with_context(|| {
            format!("cannot create a client for {server}: check the certificates in the kubeconfig")
        })?;
        work(Cluster { client, server }).await
    })
}

async fn config(arguments: &ClusterArguments) -> Result<Config> {
    let options = KubeConfigOptions {
        context: arguments.context.clone(),
        ..KubeConfigOptions::default()
    };
    let wrong_context = |error: KubeconfigError| match (&error, &arguments.context) {
        (KubeconfigError::LoadContext(_), Some(context)) => anyhow!(
            "context {context:?} does not exist: `kubectl config get-contexts` lists the contexts"
        ),
        _ => anyhow::Error::new(error),
    };
    let mut config = if let Some(path) = &arguments.kubeconfig {
        let failed = || format!("cannot use the kubeconfig {}", path.display());
        let read = Kubeconfig::read_from(path).with_context(failed)?;
        let config = Config::from_custom_kubeconfig(read, &options).await;
        config.map_err(wrong_context).with_context(failed)?
    } else if arguments.context.is_some() {
        let config = Config::from_kubeconfig(&options).await;
        config.map_err(wrong_context)?
    } else {
        Config::infer().await.context(
            "no cluster is configured: give --kubeconfig FILE, or set the variable KUBECONFIG",
        )?
    };
    // There may be a password in it, and it would be in the error of a client that cannot use it.
    if config.proxy_url.take().is_some() {
        output::warn([
            "the proxy from HTTPS_PROXY or from proxy-url in the kubeconfig is ignored: evenkeel connects to the cluster directly",
        ]);
    }
    config.connect_timeout = Some(std::time::Duration::from_secs(10));
    config.read_timeout = Some(std::time::Duration::from_mins(1));
    Ok(config)
}

/// A kind, for requests.
pub(crate) fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// A kind of Kubernetes' own. The typed objects would make the program half as large again.
pub(crate) fn core_kind(name: &str, plural: &str) -> ApiResource {
    kind("", "v1", name, plural)
}

pub(crate) fn nodes_kind() -> ApiResource {
    core_kind("Node", "nodes")
}

pub(crate) fn leases_kind() -> ApiResource {
    kind("coordination.k8s.io", "v1", "Lease", "leases")
}

pub(crate) fn pools_kind() -> ApiResource {
    kind(
        group::MACHINE_CONFIGURATION,
        "v1",
        shape::KIND,
        shape::PLURAL,
    )
}

pub(crate) fn configs_kind() -> ApiResource {
    kind(
        group::MACHINE_CONFIGURATION,
        "v1",
        "MachineConfig",
        "machineconfigs",
    )
}

impl Cluster {
    /// The objects of a kind that has no namespaces, or those in all of them.
    pub(crate) fn all(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), kind)
    }

    /// The objects of a kind in a namespace.
    pub(crate) fn inside(&self, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, kind)
    }

    /// Says what failed in words of what the person wanted.
    pub(crate) fn explain(&self, what: &str, error: kube::Error) -> anyhow::Error {
        let server = &self.server;
        match &error {
            kube::Error::Api(status) if status.code == 403 => anyhow!(
                "you are not allowed to {what}: ask your administrator for the ClusterRole evenkeel-viewer (evenkeel-editor to pause pools, evenkeel-instances for Windows instances, evenkeel-support for a bundle)\n  because: {}",
                status.message
            ),
            kube::Error::Api(status) if status.code == 401 => {
                anyhow!("cannot {what}: {server} does not accept your credentials; log in again")
            }
            kube::Error::Api(status) => anyhow!("cannot {what}: {}", status.message),
            _ => anyhow::Error::new(error).context(format!(
                "cannot {what}: no valid answer from {server}; check that it is the right cluster and that you can reach it"
            )),
        }
    }

    /// All objects, page by page.
    pub(crate) async fn list(
        &self,
        api: &Api<DynamicObject>,
        what: &str,
    ) -> Result<Vec<DynamicObject>> {
        let listed = self.pages(api, &ListParams::default()).await;
        listed.map_err(|error| self.explain(&format!("list {what}"), error))
    }

    /// The same, with the error as it came.
    pub(crate) async fn pages(
        &self,
        api: &Api<DynamicObject>,
        which: &ListParams,
    ) -> kube::Result<Vec<DynamicObject>> {
        let mut page = which.clone().limit(PAGE);
        let mut all = Vec::new();
        loop {
            let list = api.list(&page).await?;
            all.extend(list.items);
            page.continue_token = list.metadata.continue_.filter(|it| !it.is_empty());
            if page.continue_token.is_none() {
                return Ok(all);
            }
        }
    }

    pub(crate) fn pools(&self) -> Api<DynamicObject> {
        self.all(&pools_kind())
    }

    pub(crate) fn configs(&self) -> Api<DynamicObject> {
        self.all(&configs_kind())
    }

    /// Every pool and every Node. A cluster that does not know pools has none.
    pub(crate) async fn fleet(&self) -> Result<Fleet> {
        let (pools, nodes) = futures::join!(self.all_pools(), self.nodes());
        let (pools, statuses): (Vec<Pool>, Vec<PoolStatus>) =
            pools?.into_iter().map(|it| (it.pool, it.status)).unzip();
        let policies = NamedPolicies::named_by(self, pools.iter().map(|it| &it.policy)).await?;
        let now = Timestamp::now();
        let held = |pool: Pool| {
            let policy = policies.look_up(&pool.policy);
            pool.held_to(policy, now)
        };
        let pools: Vec<Pool> = pools.into_iter().map(held).collect();
        let facts = nodes?;
        let with_permit = |facts: &NodeFacts| {
            let mut node = facts.node.clone();
            let has = |it: &PoolStatus| it.permits.as_ref().is_some_and(|it| it.has(&node.name));
            // One without a pool has its permit where only the operator looks.
            node.has_permit = node.claims_permit() || statuses.iter().any(has);
            node
        };
        Ok(Fleet {
            nodes: facts.iter().map(with_permit).collect(),
            pools,
            statuses,
            facts,
        })
    }

    async fn all_pools(&self) -> Result<Vec<PoolObject>> {
        match self.pages(&self.pools(), &ListParams::default()).await {
            Ok(mut objects) => {
                objects.sort_by_key(ResourceExt::name_any);
                Ok(objects.iter().map(PoolObject::of).collect())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                crate::output::warn([
                    "this cluster has no MachineConfigPools: install the chart (docs/install.md)",
                ]);
                Ok(Vec::new())
            }
            Err(error) => Err(self.explain("list machineconfigpools", error)),
        }
    }

    /// One pool.
    pub(crate) async fn pool(&self, name: &str) -> Result<PoolObject> {
        let what = format!("read the machineconfigpool {name}");
        let found = self.pools().get_opt(name).await;
        if let Some(object) = found.map_err(|error| self.explain(&what, error))? {
            return Ok(PoolObject::of(&object));
        }
        let all = self.all_pools().await?;
        let names: Vec<_> = all.iter().map(|it| it.pool.name.as_str()).collect();
        Err(if names.is_empty() {
            anyhow!("pool {name} does not exist: this cluster has no pools")
        } else {
            anyhow!(
                "pool {name} does not exist: the pools of this cluster are {}",
                names.join(", ")
            )
        })
    }

    /// All Nodes, as the operator reads them.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeFacts>> {
        let nodes = self.list(&self.all(&nodes_kind()), "nodes").await?;
        nodes.iter().map(facts).collect()
    }

    /// One Node, as the operator reads it.
    pub(crate) async fn node(&self, name: &str) -> Result<NodeFacts> {
        let found = self.all(&nodes_kind()).get_opt(name).await;
        let found = found.map_err(|error| self.explain(&format!("read node {name}"), error))?;
        let node = found.with_context(|| {
            format!("node {name} does not exist: `kubectl get nodes` lists the nodes")
        });
        facts(&node?)
    }

    /// The MachineConfigs that people wrote for a pool, by name, each as one text.
    pub(crate) async fn sources(&self, pool: &Pool) -> Result<BTreeMap<String, String>> {
        let Some(selector) = &pool.machine_config_selector else {
            return Ok(BTreeMap::new());
        };
        let chosen = ListParams::default().labels(&selector.to_query());
        let found = self.pages(&self.configs(), &chosen).await;
        let found = found.map_err(|error| self.explain("list machineconfigs", error))?;
        let theirs = found
            .into_iter()
            .filter(|object| !object.labels().contains_key(label::RENDERED));
        Ok(theirs
            .map(|object| (object.name_any(), text(&object)))
            .collect())
    }

    /// What the operator in `namespace` says on its Lease about OpenShift's own operators; nothing where there is none, or one
    /// that says nothing.
    pub(crate) async fn coexistence(&self, namespace: &str) -> Result<CoexistenceReports> {
        let what = format!("read the lease {namespace}/{}", program::OPERATOR);
        let leases = self.inside(namespace, &leases_kind());
        let found = leases.get_opt(program::OPERATOR).await;
        let found = found.map_err(|error| self.explain(&what, error))?;
        let text = found.and_then(|it| it.annotations().get(annotation::COEXISTENCE).cloned());
        let read = text.map(|text| serde_json::from_str(&text));
        // What another version writes there need not be what this one reads.
        Ok(read.and_then(Result::ok).unwrap_or_default())
    }

    /// One MachineConfig as one text.
    pub(crate) async fn config(&self, name: &str) -> Result<Option<String>> {
        let found = self.configs().get_opt(name).await;
        let found = found
            .map_err(|error| self.explain(&format!("read the machineconfig {name}"), error))?;
        Ok(found.map(|object| text(&object)))
    }
}

/// All of it that facts and evidence are read from.
pub(crate) fn whole(object: &DynamicObject) -> Value {
    json!({
        "metadata": object.metadata,
        "spec": object.data["spec"],
        "status": object.data["status"],
    })
}

fn facts(object: &DynamicObject) -> Result<NodeFacts> {
    let read: NodeObject = serde_json::from_value(whole(object))
        .with_context(|| format!("cannot read node {}", object.name_any()))?;
    Ok(read.into())
}

fn text(object: &DynamicObject) -> String {
    let document = json!({
        "apiVersion": format!("{}/v1", group::MACHINE_CONFIGURATION),
        "kind": "MachineConfig",
        "metadata": { "name": object.name_any() },
        "spec": object.data["spec"],
    });
    document.to_string()
}

impl PoolObject {
    fn of(object: &DynamicObject) -> Self {
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        let spec = Field::from(spec.clone()).valid().unwrap_or_default();
        Self {
            pool: Pool::read(&object.name_any(), object.annotations(), &spec),
            status: Field::from(status.clone()).recorded(),
        }
    }
}

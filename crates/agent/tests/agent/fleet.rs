//! What is around a node with an agent: the operator as we ship it, another node, and pods.

use std::collections::BTreeSet;
use std::process::Command;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, workspace};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::scene::{Scene, cluster};

/// How long the cluster's own controllers may take on a busy machine.
const SOON: std::time::Duration = std::time::Duration::from_mins(1);
const OPERATOR: &str = "evenkeel-operator";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// A node with an agent, one without a machine, and an operator for the two.
pub(crate) struct Fleet {
    pub(crate) scene: Scene,
    /// What the rest of the cluster sees of the kubelet on the scene's node.
    pub(crate) kubelet: NodeDouble,
    pub(crate) other: NodeDouble,
    pub(crate) namespace: String,
    client: Client,
    _operator: Running,
    _scratch: Scratch,
}

impl Fleet {
    /// Starts everything. Both nodes and the namespace are called like `name`.
    pub(crate) async fn start(name: &str) -> Result<Self> {
        let cluster = cluster()?;
        let namespace = cluster.namespace(name)?;
        let chart = Chart::render(&namespace, &[])?;
        chart.component("operator").rights().apply(cluster)?;
        let scratch = Scratch::new("fleet")?;
        let kubeconfig = scratch.path().join("kubeconfig");
        cluster
            .kubeconfig_for_service_account(&namespace, OPERATOR)?
            .write(&kubeconfig)?;
        let mut command = Command::new(workspace::program("operator", OPERATOR)?);
        command
            .args(["run", "--listen", "off", "--namespace", &namespace])
            .args(["--node-selector", &format!("fleet={name}")])
            .arg("--kubeconfig")
            .arg(kubeconfig);
        let operator = Running::start(OPERATOR, &mut command, &scratch.path().join("log"))?;
        let admin = cluster.admin_kubeconfig();
        let describe = |node: &str| NodeDouble::named(node).label("fleet", name);
        let kubelet = describe(name).start(&admin).await?;
        let other = describe(&format!("{name}-other")).start(&admin).await?;
        Ok(Self {
            scene: Scene::of_node(name).await?,
            kubelet,
            other,
            namespace,
            client: admin.client().await?,
            _operator: operator,
            _scratch: scratch,
        })
    }

    /// Waits for the boot that the agent asked for, and lets the kubelet's double follow it.
    pub(crate) async fn boots(&mut self, before: &str) -> Result<()> {
        self.scene.node.wait_for_reboot(before)?;
        self.kubelet.restart_machine().await
    }

    pub(crate) async fn node(&self) -> Result<Node> {
        let name = self.kubelet.name();
        let node = Api::<Node>::all(self.client.clone()).get(name).await;
        node.doing(|| format!("cannot get node {name}"))
    }

    /// Waits until pods may come to the node again, with no mark of the operator's left on it.
    pub(crate) async fn until_open(&self) -> Result<()> {
        until_async("the node to be uncordoned", SOON, async || {
            let node = self.node().await?;
            let marks = ["evenkeel.dev/cordoned-by", "evenkeel.dev/drain-granted"];
            let marked = marks.iter().any(|it| node.annotations().contains_key(*it));
            Ok(if is_cordoned(&node) || marked {
                Look::NotYet(format!("{:?} {:#?}", node.spec, node.annotations()))
            } else {
                Look::Found(())
            })
        })
        .await
    }

    pub(crate) async fn cordon_other(&self, cordoned: bool) -> Result<()> {
        let patch = json!({ "spec": { "unschedulable": cordoned } });
        Api::<Node>::all(self.client.clone())
            .patch(
                self.other.name(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await
            .map(|_| ())
            .doing(|| "cannot cordon the other node")
    }

    async fn create<K>(&self, client: Client, object: Value) -> Result<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).doing(|| "cannot put an object together")?;
        let api: Api<K> = Api::namespaced(client, &self.namespace);
        let made = api.create(&PostParams::default(), &object).await;
        made.doing(|| "cannot make an object")
    }

    fn spec(&self) -> Value {
        json!({
            "nodeSelector": { "fleet": self.kubelet.name() },
            "tolerations": [{ "key": CONTROL_PLANE, "operator": "Exists" }],
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "example.com/main:1" }],
        })
    }

    fn workload(&self, name: &str) -> Value {
        let labels = json!({ "app": name });
        json!({
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": self.spec() },
            },
        })
    }

    /// A workload of two pods, of which one may be away at a time; both are on the scene's node.
    pub(crate) async fn budgeted(&self, name: &str) -> Result<BTreeSet<String>> {
        self.cordon_other(true).await?;
        let mut deployment = self.workload(name);
        deployment["spec"]["replicas"] = json!(2);
        self.create::<Deployment>(self.client.clone(), deployment)
            .await?;
        let budget = json!({
            "metadata": { "name": name },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": name } } },
        });
        self.create::<PodDisruptionBudget>(self.client.clone(), budget)
            .await?;
        until_async("the budget to be computed", SOON, async || {
            Ok(match self.healthy(name).await? {
                2 => Look::Found(()),
                other => Look::NotYet(format!("{other} healthy")),
            })
        })
        .await?;
        self.cordon_other(false).await?;
        let here = self.pods_here().await?;
        Ok(here
            .into_iter()
            .filter(|pod| pod.starts_with(name))
            .collect())
    }

    /// How many pods of the budget `name` are healthy, as Kubernetes counts.
    pub(crate) async fn healthy(&self, name: &str) -> Result<i32> {
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.namespace);
        let budget = api.get(name).await.doing(|| "no budget")?;
        Ok(budget.status.unwrap_or_default().current_healthy)
    }

    /// Makes a pod of every kind that stays on the scene's node, and says their names once all of
    /// them run.
    pub(crate) async fn those_that_stay(&self) -> Result<BTreeSet<String>> {
        let node = self.kubelet.name();
        let pod = |name: &str| {
            let mut pod = json!({ "metadata": { "name": name }, "spec": self.spec() });
            pod["spec"]["nodeName"] = json!(node);
            pod
        };
        let mut class = pod("class");
        class["spec"]["priorityClassName"] = json!("system-node-critical");
        let mut critical = pod("critical");
        critical["metadata"]["annotations"] =
            json!({ "scheduler.alpha.kubernetes.io/critical-pod": "" });
        let mut from_file = pod("static");
        from_file["metadata"]["annotations"] = json!({ "kubernetes.io/config.source": "file" });
        for pod in [class, critical, from_file] {
            self.create::<Pod>(self.client.clone(), pod).await?;
        }
        let mut mirror = pod("mirror");
        mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "hash" });
        mirror["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Node", "name": node, "controller": true,
            "uid": self.node().await?.uid(),
        }]);
        // Only the node itself may make a mirror.
        let kubelet = cluster()?.kubeconfig_for_node(node)?.client().await?;
        self.create::<Pod>(kubelet, mirror).await?;
        self.create::<DaemonSet>(self.client.clone(), self.workload("everywhere"))
            .await?;
        until_async("the pods that stay to run", SOON, async || {
            let here = self.pods_here().await?;
            let stay: BTreeSet<_> = here
                .into_iter()
                .filter(|it| !it.starts_with("web"))
                .collect();
            Ok(if stay.len() == 5 {
                Look::Found(stay)
            } else {
                Look::NotYet(format!("{stay:?}"))
            })
        })
        .await
    }

    /// The names of the pods that are on the scene's node and run.
    pub(crate) async fn pods_here(&self) -> Result<BTreeSet<String>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let on_it = format!("spec.nodeName={}", self.kubelet.name());
        let list = api.list(&ListParams::default().fields(&on_it)).await;
        let pods = list.doing(|| "cannot list pods")?.items;
        let runs = |pod: &&Pod| {
            let status = pod.status.as_ref();
            let conditions = status.and_then(|it| it.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|it| it.type_ == "Ready" && it.status == "True")
        };
        Ok(pods
            .iter()
            .filter(runs)
            .map(ResourceExt::name_any)
            .collect())
    }
}

pub(crate) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

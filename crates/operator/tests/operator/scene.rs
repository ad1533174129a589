//! A namespace, nodes and an operator of one test on the shared control plane. The operator cares only
//! for the test's own nodes, and runs with the rights that the chart gives it; whatever else happens is
//! the harness as administrator, also in the place of agents where a test has none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_api::names::{annotation, program, proxy};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::node_double::{NodeDescription, NodeDouble};
use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) const SOON: Duration = Duration::from_mins(1);
const ACCOUNT: &str = "evenkeel-operator";

pub(crate) struct Scene {
    pub(crate) control_plane: &'static ControlPlane,
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) scratch: Scratch,
}

impl Scene {
    pub(crate) async fn new(prefix: &str) -> Result<Self> {
        Self::on(ControlPlane::shared()?, prefix).await
    }

    /// A scene on another control plane than the others.
    pub(crate) async fn on(control_plane: &'static ControlPlane, prefix: &str) -> Result<Self> {
        let scene = Self {
            control_plane,
            client: control_plane.admin_kubeconfig().client().await?,
            name: control_plane.namespace(prefix)?,
            scratch: Scratch::new(prefix)?,
        };
        let chart = Chart::render(&scene.name, &[])?;
        let alone = alone();
        chart
            .kinds(&["CustomResourceDefinition"])
            .apply(control_plane)?;
        chart.component("operator").rights().apply(control_plane)?;
        drop(alone);
        Ok(scene)
    }

    /// The name of a pool, or of anything else in the cluster, of this scene's own.
    pub(crate) fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// The operator's login.
    pub(crate) fn login(&self) -> Result<Kubeconfig> {
        self.control_plane
            .kubeconfig_for_service_account(&self.name, ACCOUNT)
    }

    /// Gives agents the rights and the policies of the chart.
    pub(crate) fn let_agents_in(&self) -> Result<()> {
        let agents = Chart::render("evenkeel", &[])?.component("agent");
        let _alone = alone();
        agents.without(&["DaemonSet"]).apply(self.control_plane)
    }

    /// The login of a node's agent.
    pub(crate) fn agent_login(&self, node: &str) -> Result<Kubeconfig> {
        let user = format!("evenkeel:agent:{node}");
        self.control_plane
            .kubeconfig_for_user(&user, &["evenkeel:agents"])
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.scratch.path().join("kubeconfig")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }

    /// What the operator logs from now on.
    pub(crate) fn log_from_now(&self) -> Result<File> {
        let opened = File::open(self.scratch.path().join("log"));
        let mut log = opened.doing(|| "there is no log")?;
        let end = log.seek(SeekFrom::End(0));
        end.map(|_| log).doing(|| "cannot read the log")
    }

    /// Starts the operator.
    pub(crate) fn operator(&self, options: &[&str]) -> Result<Running> {
        self.operator_as(&self.login()?, options)
    }

    /// Starts the operator with another way to the API server.
    pub(crate) fn operator_as(&self, login: &Kubeconfig, options: &[&str]) -> Result<Running> {
        self.operator_called("operator", login, options)
    }

    /// Starts the operator on a machine of that name, which the Lease says when it leads.
    pub(crate) fn operator_called(
        &self,
        machine: &str,
        login: &Kubeconfig,
        options: &[&str],
    ) -> Result<Running> {
        self.operator_in(&[], machine, login, options)
    }

    /// The same with variables in its environment, where there is no other proxy than what is given here.
    pub(crate) fn operator_in(
        &self,
        environment: &[(&str, &str)],
        machine: &str,
        login: &Kubeconfig,
        options: &[&str],
    ) -> Result<Running> {
        let program = Command::new(Path::new(env!("CARGO_BIN_EXE_evenkeel-operator")));
        self.start_operator(program, environment, machine, login, options)
    }

    /// Starts the operator where names lead to what `hosts` and `resolv.conf` in the folder `names` say.
    pub(crate) fn operator_knowing(&self, names: &Path, options: &[&str]) -> Result<Running> {
        let mut program = Command::new("unshare");
        program.args(["--mount", "--propagation", "private", "sh", "-c"]);
        program.arg(
            r#"for it in hosts resolv.conf; do mount --bind "$1/$it" "/etc/$it" || exit; done; shift; exec "$@""#,
        );
        program.arg("sh").arg(names);
        program.arg(env!("CARGO_BIN_EXE_evenkeel-operator"));
        self.start_operator(program, &[], "operator", &self.login()?, options)
    }

    fn start_operator(
        &self,
        mut command: Command,
        environment: &[(&str, &str)],
        machine: &str,
        login: &Kubeconfig,
        options: &[&str],
    ) -> Result<Running> {
        login.write(&self.kubeconfig())?;
        command.arg("run");
        if !options.contains(&"--listen") {
            command.args(["--listen", "off"]);
        }
        command
            .args(["--namespace", &self.name])
            .args(["--node-selector", &format!("place={}", self.name)])
            .args(["--pool-selector", &format!("place={}", self.name)])
            .args(["--machine-selector", &format!("place={}", self.name)])
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(options)
            .env("HOSTNAME", machine);
        for name in proxy::ALL {
            command.env_remove(name);
        }
        command.envs(environment.iter().copied());
        Running::start(
            "evenkeel-operator",
            &mut command,
            &self.scratch.path().join("log"),
        )
    }

    fn own_leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Who leads, as the Lease says.
    pub(crate) async fn leader(&self) -> Result<String> {
        let lease = self.own_leases().get(program::OPERATOR).await;
        let spec = lease.doing(|| "nobody leads")?.spec;
        Ok(spec.and_then(|it| it.holder_identity).unwrap_or_default())
    }

    /// Takes the Lease away: a successor would wait for one whose holder may still live.
    pub(crate) async fn nobody_leads(&self) -> Result<()> {
        let leases = self.own_leases();
        match leases
            .delete(program::OPERATOR, &DeleteParams::default())
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            gone => gone.map(|_| ()).doing(|| "cannot delete the Lease"),
        }
    }

    pub(crate) fn describe(&self, suffix: &str) -> NodeDescription {
        NodeDouble::named(&format!("{}-{suffix}", self.name)).label("place", &self.name)
    }

    pub(crate) async fn start(&self, description: NodeDescription) -> Result<NodeDouble> {
        description
            .start(&self.control_plane.admin_kubeconfig())
            .await
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(crate) async fn node(&self, name: &str) -> Result<Node> {
        self.nodes()
            .get(name)
            .await
            .doing(|| format!("cannot read node {name}"))
    }

    /// What the agent of `node` writes: its wish.
    pub(crate) async fn ask(&self, node: &str, request: &str) -> Result<()> {
        let patch =
            json!({ "metadata": { "annotations": { annotation::DESIRED_DRAIN: request } } });
        self.patch(node, &patch).await
    }

    pub(crate) async fn patch(&self, node: &str, patch: &Value) -> Result<()> {
        let patched = self
            .nodes()
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched
            .map(|_| ())
            .doing(|| format!("cannot patch node {node}"))
    }

    /// Waits until the operator has given `request` back.
    pub(crate) async fn answered(&self, node: &str, request: &str) -> Result<Node> {
        until_async(
            &format!("{node} to have its answer {request}"),
            SOON,
            async || {
                let seen = self.node(node).await?;
                Ok(
                    if annotated(&seen, annotation::LAST_APPLIED_DRAIN) == Some(request) {
                        Look::Found(seen)
                    } else {
                        let log = self.log();
                        let lines: Vec<_> = log.lines().rev().take(8).collect();
                        Look::NotYet(format!(
                            "{:?} {:?}; {lines:#?}",
                            seen.annotations(),
                            seen.spec
                        ))
                    },
                )
            },
        )
        .await
    }

    pub(crate) async fn create<K>(&self, object: Value) -> Result<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).doing(|| "cannot put an object together")?;
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.name);
        api.create(&PostParams::default(), &object)
            .await
            .doing(|| "cannot make an object")
    }

    /// The spec of a pod that only the test's nodes can have. It also tolerates whatever they have.
    pub(crate) fn spec(&self, grace: u32) -> Value {
        json!({
            "nodeSelector": { "place": self.name },
            "tolerations": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }],
            "terminationGracePeriodSeconds": grace,
            "containers": [{ "name": "main", "image": "example.com/main:1" }],
        })
    }

    pub(crate) async fn deployment(&self, name: &str, replicas: u32, grace: u32) -> Result<()> {
        let labels = json!({ "app": name });
        let deployment = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": self.spec(grace) },
            },
        });
        self.create::<Deployment>(deployment).await.map(|_| ())
    }

    pub(crate) async fn daemon_set(&self, name: &str) -> Result<()> {
        let labels = json!({ "app": name });
        let set = json!({
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": self.spec(1) },
            },
        });
        self.create::<DaemonSet>(set).await.map(|_| ())
    }

    /// A budget for the pods of `app`, as the disruption controller has taken note of it.
    pub(crate) async fn budget(&self, app: &str, spec: Value) -> Result<()> {
        let mut budget = json!({ "metadata": { "name": format!("{app}-budget") }, "spec": spec });
        budget["spec"]["selector"] = json!({ "matchLabels": { "app": app } });
        let made: PodDisruptionBudget = self.create(budget).await?;
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.name);
        until_async("the budget to be computed", SOON, async || {
            let status = api
                .get(&made.name_any())
                .await
                .doing(|| "no budget")?
                .status;
            let status = status.unwrap_or_default();
            Ok(
                if status.expected_pods > 0 && status.current_healthy == status.expected_pods {
                    Look::Found(())
                } else {
                    Look::NotYet(format!("{status:?}"))
                },
            )
        })
        .await
    }

    /// A pod bound to `node` by its maker, with `change` made to it, when it is ready.
    pub(crate) async fn pod(
        &self,
        node: &str,
        name: &str,
        change: impl Fn(&mut Value),
    ) -> Result<Pod> {
        let mut pod = json!({ "metadata": { "name": name }, "spec": self.spec(1) });
        pod["spec"]["nodeName"] = json!(node);
        change(&mut pod);
        self.create::<Pod>(pod).await?;
        self.ready(&format!("metadata.name={name}"), 1).await?;
        self.pods()
            .get(name)
            .await
            .doing(|| format!("cannot read pod {name}"))
    }

    /// Waits until exactly `count` pods that match the field selector are ready and stay; their names.
    pub(crate) async fn ready(&self, fields: &str, count: usize) -> Result<BTreeSet<String>> {
        until_async(
            &format!("{count} pods of {fields} to be ready"),
            SOON,
            async || {
                let names = self.names(fields, is_ready).await?;
                Ok(if names.len() == count {
                    Look::Found(names)
                } else {
                    Look::NotYet(format!("{names:?}"))
                })
            },
        )
        .await
    }

    /// The names of the test's pods that match the field selector and `which`.
    pub(crate) async fn names(
        &self,
        fields: &str,
        which: impl Fn(&Pod) -> bool,
    ) -> Result<BTreeSet<String>> {
        let list = self
            .pods()
            .list(&ListParams::default().fields(fields))
            .await;
        let pods = list.doing(|| "cannot list pods")?.items;
        Ok(pods
            .iter()
            .filter(|pod| which(pod))
            .map(ResourceExt::name_any)
            .collect())
    }

    /// Waits for an Event on `node` with that reason, and returns its note.
    pub(crate) async fn event(&self, node: &str, reason: &str) -> Result<String> {
        until_async(&format!("an Event {reason} on {node}"), SOON, async || {
            let events = self.events(node).await?;
            let found = events.iter().find(|(found, _)| found == reason);
            Ok(found.map_or_else(
                || Look::NotYet(format!("{events:?}")),
                |(_, note)| Look::Found(note.clone()),
            ))
        })
        .await
    }

    /// Reason and note of all Events on `node`, by whomever of ours.
    pub(crate) async fn events(&self, node: &str) -> Result<Vec<(String, String)>> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = api
            .list(&ListParams::default())
            .await
            .doing(|| "cannot list Events")?;
        let ours = all.items.into_iter().filter(|event| {
            let by = event.reporting_controller.as_deref().unwrap_or_default();
            let on = event.regarding.as_ref().and_then(|it| it.name.as_deref());
            by.contains("evenkeel") && on == Some(node)
        });
        let said = ours.map(|it| (it.reason.unwrap_or_default(), it.note.unwrap_or_default()));
        Ok(said.collect())
    }
}

/// Kinds and roles are the same for all tests: two who make one at the same time disturb each other.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port that is free.
pub(crate) fn free_port() -> Result<u16> {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    Ok(bound.doing(|| "no port")?.port())
}

/// What an operator at that port says of itself.
pub(crate) async fn metrics(port: u16) -> Result<String> {
    page(port, "/metrics").await
}

/// What an operator at that port answers on one of its pages, status line and all.
pub(crate) async fn page(port: u16, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .doing(|| format!("no {path}"))?;
    let ask = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream
        .write_all(ask.as_bytes())
        .await
        .doing(|| "cannot ask")?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .await
        .doing(|| "no answer")?;
    Ok(text)
}

/// How often an operator at that port has asked the API server for what, as its own numbers say.
pub(crate) async fn requests(port: u16) -> Result<BTreeMap<String, f64>> {
    let text = metrics(port).await?;
    let lines = text
        .lines()
        .filter_map(|it| it.strip_prefix("evenkeel_api_requests_total{"));
    let read = |line: &str| {
        let (what, count) = line.rsplit_once(' ')?;
        Some((what.to_owned(), count.parse().ok()?))
    };
    Ok(lines.filter_map(read).collect())
}

/// A file of `deploy/`.
pub(crate) fn deployed(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(file)
}

pub(crate) fn annotated<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.annotations().get(key).map(String::as_str)
}

pub(crate) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

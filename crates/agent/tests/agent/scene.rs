//! A node of a cluster with the agent on it, and the rights and policies that the chart has. The administrator's login is
//! for the scene alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, SystemdNode, need};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

pub(crate) const DESIRED: &str = "machineconfiguration.openshift.io/desiredConfig";
pub(crate) const VOUCHER: &str = "evenkeel.dev/desired-config";
pub(crate) const CURRENT: &str = "machineconfiguration.openshift.io/currentConfig";
pub(crate) const STATE: &str = "machineconfiguration.openshift.io/state";
pub(crate) const REASON: &str = "machineconfiguration.openshift.io/reason";
pub(crate) const ASKED: &str = "machineconfiguration.openshift.io/desiredDrain";
pub(crate) const ANSWERED: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
pub(crate) const ON_DRIFT: &str = "evenkeel.dev/drift";
/// How long what takes no boot may take on a busy machine, where no test measures it.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// How long a boot may take.
pub(crate) const BOOT: Duration = Duration::from_mins(3);

pub(crate) type Annotations = BTreeMap<String, String>;

pub(crate) struct Scene {
    pub(crate) node: SystemdNode,
    pub(crate) name: String,
    pub(crate) client: Client,
    configs: Api<DynamicObject>,
}

/// The control plane with everything of the chart that concerns agents, but for the agents themselves.
pub(crate) fn cluster() -> Result<&'static ControlPlane> {
    static READY: OnceLock<Result<()>> = OnceLock::new();
    let cluster = ControlPlane::shared()?;
    let ready = READY.get_or_init(|| let_agents_in(cluster));
    ready.clone().map(|()| cluster)
}

/// Everything of the chart that concerns agents, but for the agents themselves.
pub(crate) fn let_agents_in(cluster: &ControlPlane) -> Result<()> {
    let chart = Chart::render("evenkeel", &[])?;
    let kinds = chart.kinds(&["CustomResourceDefinition"]);
    kinds.apply(cluster)?;
    let agent = chart.component("agent");
    agent.without(&["DaemonSet"]).apply(cluster)
}

pub(crate) fn deployed(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(file)
}

/// The login of the agent of node `name`.
pub(crate) fn login(name: &str) -> Result<Kubeconfig> {
    cluster()?.kubeconfig_for_user(&user(name), &["evenkeel:agents"])
}

fn user(name: &str) -> String {
    format!("evenkeel:agent:{name}")
}

/// Whether this machine cannot have a node and a control plane.
pub(crate) fn is_impossible() -> Result<bool> {
    Ok(need::skip(SystemdNode::NEEDS)? || need::skip(ControlPlane::NEEDS)?)
}

impl Scene {
    /// A node on which the agent runs as a service; nothing if this machine cannot have one.
    pub(crate) async fn start(name: &str) -> Result<Option<Self>> {
        if is_impossible()? {
            return Ok(None);
        }
        let client = cluster()?.admin_kubeconfig().client().await?;
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } }))
            .doing(|| "no such node")?;
        Api::all(client)
            .create(&PostParams::default(), &node)
            .await
            .doing(|| format!("cannot make node {name}"))?;
        Self::of_node(name).await.map(Some)
    }

    /// A machine with the agent on it for a Node that is there already.
    pub(crate) async fn of_node(name: &str) -> Result<Self> {
        let client = cluster()?.admin_kubeconfig().client().await?;
        let kind =
            GroupVersionKind::gvk("machineconfiguration.openshift.io", "v1", "MachineConfig");
        let configs = Api::all_with(
            client.clone(),
            &ApiResource::from_gvk_with_plural(&kind, "machineconfigs"),
        );
        let scene = Self {
            node: SystemdNode::boot(name)?,
            name: name.to_owned(),
            client,
            configs,
        };
        scene.node.run(&["useradd", "--create-home", "core"])?;
        let login = login(name)?.at(&GATEWAY.to_string()).as_yaml()?;
        let unit = std::fs::read(deployed("agent/evenkeel-agent.service"))
            .doing(|| "cannot read the unit that we ship")?;
        scene.node.run(&["mkdir", "-p", "/etc/evenkeel"])?;
        scene.node.write("/etc/evenkeel/kubeconfig", login)?;
        scene
            .node
            .write("/etc/evenkeel/agent.env", format!("NODE_NAME={name}\n"))?;
        scene
            .node
            .write("/etc/systemd/system/evenkeel-agent.service", unit)?;
        scene.node.install(
            env!("CARGO_BIN_EXE_evenkeel-agent").as_ref(),
            "/usr/local/bin/evenkeel-agent",
        )?;
        scene.node.run(&["systemctl", "daemon-reload"])?;
        scene
            .node
            .run(&["systemctl", "enable", "--now", "evenkeel-agent.service"])?;
        Ok(scene)
    }

    /// Adds to the agent's unit, and starts the agent anew.
    pub(crate) fn drop_in(&self, name: &str, text: &str) -> Result<()> {
        let path = format!("/etc/systemd/system/evenkeel-agent.service.d/{name}.conf");
        self.node.write(&path, text)?;
        self.node.run(&["systemctl", "daemon-reload"])?;
        self.node
            .run(&["systemctl", "restart", "evenkeel-agent.service"])
            .map(|_| ())
    }

    /// Starts the agent anew, with these options more.
    pub(crate) fn start_with(&self, options: &[&str]) -> Result<()> {
        let options = options.join(" ");
        self.drop_in("options", &format!("[Service]\nExecStart=\nExecStart=/usr/local/bin/evenkeel-agent controller --kubeconfig /etc/evenkeel/kubeconfig {options}\n"))
    }

    /// Runs the agent as the DaemonSet does: with another root, and the machine's own at /host.
    pub(crate) fn mount_the_root(&self) -> Result<()> {
        self.node.run(&["mkdir", "/host"])?;
        self.drop_in(
            "mounted",
            "[Service]
BindPaths=/:/host:rbind
TemporaryFileSystem=/run /home
InaccessiblePaths=/etc/systemd
ExecStart=
ExecStart=/usr/local/bin/evenkeel-agent controller --kubeconfig /etc/evenkeel/kubeconfig --root /host
",
        )
    }

    /// Lets the agent log in otherwise.
    pub(crate) fn log_in(&self, login: &Kubeconfig) -> Result<()> {
        self.node
            .write("/etc/evenkeel/kubeconfig", login.as_yaml()?)?;
        self.node
            .run(&["systemctl", "restart", "evenkeel-agent.service"])
            .map(|_| ())
    }

    /// The name of a configuration of this scene's own.
    pub(crate) fn called(&self, config: &str) -> String {
        format!("rendered-{}-{config}", self.name)
    }

    /// Makes a MachineConfig and says its name.
    pub(crate) async fn config(&self, config: &str, spec: Value) -> Result<String> {
        self.config_with(config, spec, json!({})).await
    }

    /// The same, with a disruption policy, as the operator hands it on.
    pub(crate) async fn config_under(
        &self,
        config: &str,
        spec: Value,
        policy: &Value,
    ) -> Result<String> {
        let annotations = json!({ "evenkeel.dev/disruption-policy": policy.to_string() });
        self.config_with(config, spec, annotations).await
    }

    async fn config_with(&self, config: &str, spec: Value, annotations: Value) -> Result<String> {
        let name = self.called(config);
        let object = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1",
            "kind": "MachineConfig",
            "metadata": { "name": name, "annotations": annotations },
            "spec": spec,
        });
        let object = serde_json::from_value(object).doing(|| "no such configuration")?;
        self.configs
            .create(&PostParams::default(), &object)
            .await
            .doing(|| format!("cannot make MachineConfig {name}"))?;
        Ok(name)
    }

    pub(crate) async fn delete_config(&self, config: &str) -> Result<()> {
        let name = self.called(config);
        self.configs
            .delete(&name, &DeleteParams::default())
            .await
            .map(|_| ())
            .doing(|| format!("cannot delete MachineConfig {name}"))
    }

    pub(crate) async fn replace_config(&self, config: &str, spec: Value) -> Result<()> {
        self.delete_config(config).await?;
        self.config(config, spec).await.map(|_| ())
    }

    /// Tells the node what to run, as the operator does: with the voucher, in one patch.
    pub(crate) async fn desire(&self, config: &str) -> Result<()> {
        self.annotate_all(json!({ DESIRED: config, VOUCHER: config }))
            .await
    }

    pub(crate) async fn annotate(&self, name: &str, value: &str) -> Result<()> {
        self.annotate_all(json!({ name: value })).await
    }

    pub(crate) async fn annotate_all(&self, annotations: Value) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": annotations } });
        Api::<Node>::all(self.client.clone())
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(|_| ())
            .doing(|| format!("cannot annotate node {}", self.name))
    }

    pub(crate) async fn annotations(&self) -> Result<Annotations> {
        let node = Api::<Node>::all(self.client.clone())
            .get(&self.name)
            .await
            .doing(|| format!("cannot get node {}", self.name))?;
        Ok(node.metadata.annotations.unwrap_or_default())
    }

    /// Waits until the Node says so, and how long that took.
    pub(crate) async fn until(
        &self,
        what: &str,
        deadline: Duration,
        enough: impl Fn(&Annotations) -> bool,
    ) -> Result<(Annotations, Duration)> {
        let start = Instant::now();
        let found = until_async(what, deadline, async || {
            let annotations = self.annotations().await?;
            Ok(if enough(&annotations) {
                Look::Found(annotations)
            } else {
                Look::NotYet(format!("{annotations:#?}"))
            })
        })
        .await;
        match found {
            Ok(annotations) => Ok((annotations, start.elapsed())),
            Err(error) => Err(Error::failed(format!("{error}\n{}", self.log()))),
        }
    }

    /// An error as soon as the Node does not say so any more, within `time`.
    pub(crate) async fn stays(
        &self,
        time: Duration,
        still: impl Fn(&Annotations) -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            let seen = self.annotations().await?;
            if !still(&seen) {
                return Err(Error::failed(format!("changed: {seen:#?}\n{}", self.log())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Waits until there is a file of the node's own at `path`, closely and from outside. An agent
    /// whose API server was away asks again after half a minute at the latest.
    pub(crate) async fn until_written(&self, path: &str) -> Result<()> {
        let place = self.node.own_files().join(path.trim_start_matches('/'));
        until_async(&format!("{path} to be written"), BOOT, async || {
            Ok(if place.exists() {
                Look::Found(())
            } else {
                Look::NotYet("it is not there".to_owned())
            })
        })
        .await
    }

    /// Waits until the node is at `config`.
    pub(crate) async fn until_done(&self, config: &str, deadline: Duration) -> Result<Annotations> {
        let what = format!("node {} to be done with {config}", self.name);
        let is_done = |seen: &Annotations| says(seen, CURRENT, config) && says(seen, STATE, "Done");
        Ok(self.until(&what, deadline, is_done).await?.0)
    }

    /// Waits until the node is degraded with `words` in its reason, and says the reason.
    pub(crate) async fn until_degraded(&self, words: &str, deadline: Duration) -> Result<String> {
        let what = format!("node {} to be degraded: {words}", self.name);
        let is_degraded = |seen: &Annotations| {
            says(seen, STATE, "Degraded")
                && seen
                    .get(REASON)
                    .is_some_and(|reason| reason.contains(words))
        };
        let (seen, _) = self.until(&what, deadline, is_degraded).await?;
        Ok(seen.get(REASON).cloned().unwrap_or_default())
    }

    /// Brings the node to a first configuration, which disrupts nothing, and says its name.
    pub(crate) async fn at_rest(&self, spec: Value) -> Result<String> {
        let name = self.config("base", spec).await?;
        self.desire(&name).await?;
        self.until("the first configuration", SOON, |seen| {
            says(seen, STATE, "Done") || seen.contains_key(ASKED)
        })
        .await?;
        self.let_drain_if_asked(&name).await?;
        self.until_done(&name, BOOT).await?;
        Ok(name)
    }

    async fn let_drain_if_asked(&self, target: &str) -> Result<()> {
        let asked = self.annotations().await?.get(ASKED).cloned();
        if asked == Some(format!("drain-{target}")) {
            self.annotate(ANSWERED, &format!("drain-{target}")).await?;
        }
        Ok(())
    }

    /// Goes to `config` through a drain and a boot.
    pub(crate) async fn go_to(&mut self, config: &str) -> Result<()> {
        let boot = self.node.boot_id()?;
        self.desire(config).await?;
        let request = format!("drain-{config}");
        self.until("a drain to be asked for", SOON, |seen| {
            says(seen, ASKED, &request)
        })
        .await?;
        self.annotate(ANSWERED, &request).await?;
        self.node.wait_for_reboot(&boot)?;
        self.until_done(config, BOOT).await.map(|_| ())
    }

    /// The agent's numbers, as Prometheus reads them.
    pub(crate) fn metrics(&self) -> Result<String> {
        self.get("/metrics")
    }

    /// The whole answer of the agent to a request for this page.
    pub(crate) fn get(&self, page: &str) -> Result<String> {
        let ask = format!(
            "exec 3<>/dev/tcp/127.0.0.1/9180
            printf 'GET {page} HTTP/1.1\\r\\nHost: agent\\r\\nConnection: close\\r\\n\\r\\n' >&3
            cat <&3"
        );
        self.node.run(&["bash", "-c", &ask])
    }

    /// What the agent has asked of the API server by now, watches and Leases apart.
    pub(crate) fn requests(&self) -> Result<Vec<String>> {
        let asked = cluster()?.requests_of(&user(&self.name))?.into_iter();
        let counted = asked.filter(|it| it.verb != "watch" && it.resource != "leases");
        Ok(counted.map(|it| it.to_string()).collect())
    }

    /// Waits until there is an Event with this reason and these words, and says its note.
    pub(crate) async fn until_told(
        &self,
        reason: &str,
        words: &str,
        deadline: Duration,
    ) -> Result<String> {
        let what = format!("an Event {reason} of node {} with {words:?}", self.name);
        until_async(&what, deadline, async || {
            let events = self.events().await?;
            let found = events
                .iter()
                .find(|(of, note)| of == reason && note.contains(words));
            Ok(match found {
                Some((_, note)) => Look::Found(note.clone()),
                None => Look::NotYet(format!("{events:#?}")),
            })
        })
        .await
    }

    /// Every Event of the node: reason and note.
    pub(crate) async fn events(&self) -> Result<Vec<(String, String)>> {
        let list = Api::<Event>::all(self.client.clone())
            .list(&ListParams::default().fields(&format!("regarding.name={}", self.name)))
            .await
            .doing(|| "cannot list events")?;
        Ok(list
            .items
            .into_iter()
            .map(|event| {
                (
                    event.reason.unwrap_or_default(),
                    event.note.unwrap_or_default(),
                )
            })
            .collect())
    }

    /// Waits until the agent answers at its port.
    pub(crate) async fn until_agent_listens(&self, deadline: Duration) -> Result<()> {
        until_async("the agent to answer", deadline, async || {
            Ok(match self.metrics() {
                Ok(_) => Look::Found(()),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
        .await
    }

    pub(crate) fn log(&self) -> String {
        let asked = [
            "journalctl",
            "-u",
            "evenkeel-agent",
            "-n",
            "60",
            "--no-pager",
        ];
        self.node
            .run(&asked)
            .unwrap_or_else(|error| error.to_string())
    }
}

pub(crate) fn says(annotations: &Annotations, name: &str, value: &str) -> bool {
    annotations.get(name).is_some_and(|said| said == value)
}

/// The spec of a MachineConfig with these files and SSH keys.
pub(crate) fn spec(files: &[(&str, &str)], keys: &[&str]) -> Value {
    let files: Vec<Value> = files
        .iter()
        .map(|(path, text)| {
            let encoded = text
                .bytes()
                .fold(String::new(), |text, byte| format!("{text}%{byte:02X}"));
            json!({
                "path": path,
                "mode": 0o644,
                "overwrite": true,
                "contents": { "source": format!("data:,{encoded}") },
            })
        })
        .collect();
    json!({ "config": {
        "ignition": { "version": "3.4.0" },
        "storage": { "files": files },
        "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": keys }] },
    }})
}

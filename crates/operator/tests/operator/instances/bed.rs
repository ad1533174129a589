//! A namespace with a payload, a worker Ignition and the operator, and Windows instances to list.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use evenkeel_api::windows::services::Services;
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::process::{Running, run};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async, within};
use evenkeel_testbed::windows_instance::{WindowsInstance, windows_program, windows_programs};
use evenkeel_testbed::{Doing, Error, Result, need};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::scene::{Scene, alone, annotated, is_cordoned};

pub(crate) const VERSION: &str = "windowsmachineconfig.openshift.io/version";
pub(crate) const SERVICES_MAP: &str = "services-1-2-3-abc1234";
pub(crate) const CURRENT: &str = "evenkeel.dev/current-services";
pub(crate) const DESIRED: &str = "evenkeel.dev/desired-services";
/// The version of a bed's own payload.
pub(crate) const FIRST: &str = "1.2.3-abc1234";
const STATE: &str = "machineconfiguration.openshift.io/state";
/// How long a machine may take from listed to serving, on a busy machine, where no test measures it.
pub(crate) const LONG: Duration = Duration::from_mins(5);

/// What a test of instances has.
pub(crate) struct Bed {
    pub(crate) scene: Scene,
    pub(crate) payload: PathBuf,
    /// The key that the operator logs in with, as a file.
    pub(crate) key: PathBuf,
    _scratch: Scratch,
}

/// Whether this machine cannot have instances.
pub(crate) fn is_skipped() -> Result<bool> {
    Ok(need::skip(&WindowsInstance::NEEDS)? || need::skip(ControlPlane::NEEDS)?)
}

/// Seals a payload as that version.
pub(crate) fn seal(payload: &Path, version: &str) -> Result<()> {
    let mut seal = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel-operator"));
    seal.args(["payload", "seal"]).arg(payload);
    seal.args(["--payload-version", version]);
    run(&mut seal).map(|_| ())
}

/// A key pair at `path`.
pub(crate) fn make_key(path: &Path, options: &[&str]) -> Result<()> {
    let mut command = std::process::Command::new("ssh-keygen");
    command.args(["-q", "-N", "", "-f"]).arg(path).args(options);
    run(&mut command).map(|_| ())
}

/// The template of the payload's services: a runtime, a kubelet, and one service more. Each test has its
/// own label on its nodes.
pub(crate) fn template(place: &str, kubelet: &str) -> Value {
    json!({
        "services": [
            {
                "name": "containerd", "bootstrap": true, "priority": 0,
                "command": r"C:\k\containerd-double.exe",
            },
            {
                "name": "kubelet", "bootstrap": true, "priority": 1, "dependencies": ["containerd"],
                "command": format!(
                    r"C:\k\{kubelet}.exe --config=C:\k\kubelet.conf --bootstrap-kubeconfig=C:\k\bootstrap-kubeconfig --kubeconfig=C:\k\kubeconfig --node-labels=place={place} ${{KUBELET_ARGUMENTS}}"
                ),
            },
            {
                "name": "network", "bootstrap": false, "priority": 2, "dependencies": ["kubelet"],
                "command": r"C:\k\service-double.exe --node NODE_NAME",
                "nodeVariablesinCommand": [
                    {"name": "NODE_NAME", "jsonPathNodeObject": "metadata.name"},
                ],
            },
        ],
        "folders": [r"C:\var\log\network"],
    })
}

/// Windows programs of the payload, built once.
fn programs() -> Result<&'static [(String, PathBuf)]> {
    static BUILT: OnceLock<Result<Vec<(String, PathBuf)>>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let doubles = ["containerd-double", "kubelet-double", "service-double"];
        let mut all: Vec<_> = doubles
            .iter()
            .map(|it| format!("{it}.exe"))
            .zip(windows_programs("evenkeel-testbed", &doubles)?)
            .collect();
        let agent = windows_program("evenkeel-agent", "evenkeel-agent")?;
        all.push(("evenkeel-agent.exe".to_owned(), agent));
        Ok(all)
    });
    built.as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

impl Bed {
    pub(crate) async fn new(prefix: &str) -> Result<Self> {
        Self::with_kubelet(prefix, "kubelet-double").await
    }

    /// The same, where another program of the payload is run in the kubelet's place.
    pub(crate) async fn with_kubelet(prefix: &str, kubelet: &str) -> Result<Self> {
        Self::on(ControlPlane::shared()?, prefix, kubelet).await
    }

    /// The same on another control plane than the others.
    pub(crate) async fn on(
        control_plane: &'static ControlPlane,
        prefix: &str,
        kubelet: &str,
    ) -> Result<Self> {
        let scene = Scene::on(control_plane, prefix).await?;
        scene.let_agents_in()?;
        let chart = Chart::render(&scene.name, &["--set=windows.enabled=true"])?;
        for component in ["operator", "agent"] {
            let _alone = alone();
            chart
                .component(component)
                .rights()
                .apply(scene.control_plane)?;
        }
        let scratch = Scratch::new("payload")?;
        let payload = scratch.path().join("payload");
        std::fs::create_dir_all(payload.join("files")).doing(|| "cannot make a payload")?;
        for (name, program) in programs()? {
            let place = payload.join("files").join(name);
            std::fs::copy(program, place).doing(|| "cannot copy a program")?;
        }
        let settings = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
        for (name, text) in [
            ("services.yaml", template(&scene.name, kubelet).to_string()),
            ("kubelet.yaml", settings.to_owned()),
        ] {
            std::fs::write(payload.join(name), text).doing(|| "cannot write the payload")?;
        }
        let bed = Self {
            key: scratch.path().join("key"),
            payload,
            scene,
            _scratch: scratch,
        };
        bed.seal()?;
        make_key(&bed.key, &["-t", "ed25519"])?;
        bed.put_key(&bed.key).await?;
        bed.put_ignition().await?;
        Ok(bed)
    }

    /// How many bytes its files have.
    pub(crate) fn payload_size(&self) -> Result<u64> {
        let files = std::fs::read_dir(self.payload.join("files")).doing(|| "no payload")?;
        let sizes = files.map(|it| it.and_then(|it| it.metadata()).map(|it| it.len()));
        let sizes: std::io::Result<u64> = sizes.sum();
        sizes.doing(|| "cannot look at the payload")
    }

    /// Seals the payload as it is.
    pub(crate) fn seal(&self) -> Result<()> {
        seal(&self.payload, FIRST)
    }

    /// Puts a private key into the Secret that the operator logs in with.
    pub(crate) async fn put_key(&self, key: &Path) -> Result<()> {
        let text = std::fs::read(key).doing(|| "cannot read a key")?;
        self.put_secret("cloud-private-key", "private-key.pem", &text)
            .await
    }

    pub(crate) async fn put_secret(&self, name: &str, key: &str, value: &[u8]) -> Result<()> {
        let secrets: Api<Secret> = self.api();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "data": { key: ByteString(value.to_vec()) },
        });
        let parameters = PatchParams::apply("test").force();
        let put = secrets
            .patch(name, &parameters, &Patch::Apply(secret))
            .await;
        put.map(|_| ())
            .doing(|| format!("cannot write Secret {name}"))
    }

    /// The configuration of workers, from which kubelets take their login.
    async fn put_ignition(&self) -> Result<()> {
        let bootstrap = self.scene.control_plane.bootstrap_kubeconfig()?;
        let bootstrap = bootstrap.at(&GATEWAY.to_string()).as_yaml()?;
        let authority = "-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n";
        let file = |path: &str, text: &str| {
            let ByteString(bytes) = ByteString(text.as_bytes().to_vec());
            let encoded = serde_json::to_value(ByteString(bytes)).unwrap_or_default();
            let source = format!("data:;base64,{}", encoded.as_str().unwrap_or_default());
            json!({ "path": path, "mode": 0o600, "contents": { "source": source } })
        };
        let ignition = json!({
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [
                file("/etc/kubernetes/kubeconfig", &bootstrap),
                file("/etc/kubernetes/kubelet-ca.crt", authority),
            ] },
        });
        let text = ignition.to_string();
        self.put_secret("worker-ignition", "worker.ign", text.as_bytes())
            .await
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.scene.client.clone(), &self.scene.name)
    }

    /// Starts the operator with the payload.
    pub(crate) fn operator(&self, options: &[&str]) -> Result<Running> {
        self.operator_with(&self.payload, options)
    }

    /// Starts the operator with another payload.
    pub(crate) fn operator_with(&self, payload: &Path, options: &[&str]) -> Result<Running> {
        self.operator_in(&[], payload, options)
    }

    /// The same with these variables in its environment.
    pub(crate) fn operator_in(
        &self,
        environment: &[(&str, &str)],
        payload: &Path,
        options: &[&str],
    ) -> Result<Running> {
        let fixed = self.fixed(payload);
        let fixed = fixed.iter().map(String::as_str);
        let with: Vec<&str> = fixed.chain(options.iter().copied()).collect();
        let login = self.scene.login()?;
        self.scene
            .operator_in(environment, "operator", &login, &with)
    }

    /// Starts the operator with the payload, where names lead to what the files in `names` say.
    pub(crate) fn operator_knowing(&self, names: &Path, options: &[&str]) -> Result<Running> {
        let fixed = self.fixed(&self.payload);
        let fixed = fixed.iter().map(String::as_str);
        let with: Vec<&str> = fixed.chain(options.iter().copied()).collect();
        self.scene.operator_knowing(names, &with)
    }

    fn fixed(&self, payload: &Path) -> [String; 4] {
        let pool = self.scene.own("windows");
        let payload = payload.display().to_string();
        [
            "--payload".to_owned(),
            payload,
            "--windows-pool".to_owned(),
            pool,
        ]
    }

    /// Waits until the operator leads.
    pub(crate) async fn led(&self) -> Result<()> {
        let log = || self.scene.log();
        until_async("the operator to lead", LONG, async || {
            let log = log();
            Ok(if log.contains("became the leader") {
                Look::Found(())
            } else {
                Look::NotYet(log)
            })
        })
        .await
    }

    /// Waits until the operator has written what new nodes get; the hash of that.
    pub(crate) async fn services(&self) -> Result<String> {
        let maps: Api<ConfigMap> = self.api();
        until_async("the services ConfigMap", LONG, async || {
            let found = maps.get_opt(SERVICES_MAP).await.doing(|| "no answer")?;
            let data = found.and_then(|it| it.data).unwrap_or_default();
            Ok(match Services::from_data(SERVICES_MAP, &data) {
                Ok((services, _)) => Look::Found(services.hash()),
                Err(_) => Look::NotYet(self.last_words(5)),
            })
        })
        .await
    }

    /// An instance that lets the operator in.
    pub(crate) fn instance(&self, name: &str) -> Result<WindowsInstance> {
        let instance = WindowsInstance::boot(name)?;
        let public = self.key.with_extension("pub");
        let public = std::fs::read_to_string(public).doing(|| "cannot read a key")?;
        instance.authorize(&public)?;
        Ok(instance)
    }

    /// Lists instances: what the ConfigMap says from now on.
    pub(crate) async fn list(&self, entries: &[(&str, &str)]) -> Result<()> {
        let maps: Api<ConfigMap> = self.api();
        let data: BTreeMap<_, _> = entries.iter().copied().collect();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "windows-instances" },
            "data": data,
        });
        let parameters = PatchParams::apply("test").force();
        let put = maps
            .patch("windows-instances", &parameters, &Patch::Apply(map))
            .await;
        put.map(|_| ()).doing(|| "cannot list instances")
    }

    /// Lists instances, and nobody else.
    pub(crate) async fn list_these(&self, instances: &[&WindowsInstance]) -> Result<()> {
        let addresses: Vec<String> = instances
            .iter()
            .map(|it| it.address().to_string())
            .collect();
        let entries: Vec<_> = addresses
            .iter()
            .map(|it| (it.as_str(), "username=Administrator"))
            .collect();
        self.list(&entries).await
    }

    /// Waits until an instance is a node that serves: ready, told what to run, running it, not cordoned.
    pub(crate) async fn serves(&self, instance: &WindowsInstance) -> Result<Node> {
        self.serves_at(instance, FIRST).await
    }

    /// The same, at a version.
    pub(crate) async fn serves_at(
        &self,
        instance: &WindowsInstance,
        version: &str,
    ) -> Result<Node> {
        let name = instance.computer_name().to_lowercase();
        self.serves_as(instance, &name, version).await
    }

    /// The same, as the Node of that name.
    pub(crate) async fn serves_as(
        &self,
        instance: &WindowsInstance,
        name: &str,
        version: &str,
    ) -> Result<Node> {
        let serves = |node: Option<&Node>| {
            node.is_some_and(|node| {
                annotated(node, VERSION) == Some(version)
                    && annotated(node, CURRENT).is_some()
                    && annotated(node, CURRENT) == annotated(node, DESIRED)
                    && annotated(node, STATE) == Some("Done")
                    && !is_cordoned(node)
                    && is_up(node)
            })
        };
        // Whoever asks again and again takes the time of those that are to become nodes.
        let served = await_condition(self.scene.nodes(), name, serves);
        if let Some(node) = within(LONG, served).await {
            let node = node.doing(|| "cannot watch a Node")?;
            return node.ok_or_else(|| Error::failed(format!("{name} serves, and is gone")));
        }
        let node = self.scene.nodes().get_opt(name).await;
        let node = node.doing(|| "cannot read a Node")?;
        let said = node.as_ref().map(ResourceExt::annotations);
        let words = self.last_words(10);
        let agent = agent_log(instance, 30)?;
        Err(Error::failed(format!(
            "{name} does not serve at {version} after {LONG:?}: {said:?}\n{words}\nits agent:\n{agent}"
        )))
    }

    pub(crate) fn last_words(&self, count: usize) -> String {
        last_lines(&self.scene.log(), count)
    }

    /// When the operator first connected to an instance.
    pub(crate) fn connected_at(&self, name: &str) -> Result<Timestamp> {
        self.said_at(name, ": connecting")
    }

    /// When the operator first said this of an instance, by its own clock.
    pub(crate) fn said_at(&self, name: &str, words: &str) -> Result<Timestamp> {
        let log = self.scene.log();
        let (mut lines, quoted) = (log.lines(), format!("{name:?}"));
        let line = lines.find(|it| it.contains(words) && it.contains(&quoted));
        let stamp = line.and_then(|it| it.split_whitespace().next()?.parse().ok());
        stamp.ok_or_else(|| Error::failed(format!("nothing about {name} and {words:?}: {log}")))
    }

    /// What is remembered of an instance.
    pub(crate) async fn status(&self, name: &str) -> Result<Value> {
        Ok(self.scene.records().await?.remove(name).unwrap_or_default())
    }

    /// Waits until the status says that an instance is a node that serves.
    pub(crate) async fn settled(&self, name: &str) -> Result<Value> {
        until_async(&format!("{name} to be Ready"), LONG, async || {
            let status = self.status(name).await?;
            Ok(if status["state"] == "Ready" {
                Look::Found(status)
            } else {
                Look::NotYet(status.to_string())
            })
        })
        .await
    }

    /// Waits until nothing is remembered of an instance.
    pub(crate) async fn forgotten(&self, name: &str) -> Result<()> {
        until_async(&format!("{name} to be forgotten"), LONG, async || {
            let status = self.status(name).await?;
            Ok(if status.is_null() {
                Look::Found(())
            } else {
                Look::NotYet(format!("{status}\n{}", self.last_words(10)))
            })
        })
        .await
    }

    /// Waits for an Event on the list of instances with that reason whose note has all the words.
    pub(crate) async fn told(&self, reason: &str, words: &[&str]) -> Result<String> {
        let what = format!("an Event {reason} with {words:?}");
        until_async(&what, LONG, async || {
            let events = self.told_so_far().await?;
            let found = events.iter().find(|(found, note)| {
                found == reason && words.iter().all(|word| note.contains(word))
            });
            Ok(match found {
                Some((_, note)) => Look::Found(note.clone()),
                None => Look::NotYet(format!("{events:?}\n{}", self.last_words(5))),
            })
        })
        .await
    }

    /// Reason and note of all Events on the list of instances.
    pub(crate) async fn told_so_far(&self) -> Result<Vec<(String, String)>> {
        let events: Api<Event> = self.api();
        let all = events.list(&ListParams::default()).await;
        let all = all.doing(|| "cannot list Events")?.items.into_iter();
        let said = all.map(|it| (it.reason.unwrap_or_default(), it.note.unwrap_or_default()));
        Ok(said.collect())
    }
}

/// What the agent of an instance said last.
pub(crate) fn agent_log(instance: &WindowsInstance, count: usize) -> Result<String> {
    let log = instance.path(r"C:\var\log\evenkeel\agent.log")?;
    let log = std::fs::read_to_string(log).unwrap_or_default();
    Ok(last_lines(&log, count))
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().rev().take(count).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

pub(crate) fn is_up(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

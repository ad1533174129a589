//! A Windows instance with the agent on it, and its cluster with what `deploy/` says of agents. The
//! administrator's login is for the scene alone.

#[path = "process.rs"]
pub(crate) mod process;

use std::collections::BTreeMap;
use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_api::windows::services::Services;
use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::windows_instance::{WindowsInstance, windows_program, windows_programs};
use evenkeel_testbed::{Doing, Error, Result, need};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::scene::cluster;

pub(crate) const AGENT: &str = r"C:\k\evenkeel-agent.exe";
pub(crate) const ENVIRONMENT: &str =
    r"HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Environment";
const NAMESPACE: &str = "evenkeel";
const LOGIN: &str = r"C:\k\state\kubeconfig";
/// What an agent says of itself.
pub(crate) const STATE: &str = "machineconfiguration.openshift.io/state";
/// How long what takes no boot may take on a busy machine, where no test measures it.
pub(crate) const SOON: Duration = Duration::from_mins(1);
/// How long the runtime takes from its start until it serves.
pub(crate) const RUNTIME_SERVES_AFTER: Duration = Duration::from_secs(4);
/// How long a boot may take.
pub(crate) const BOOT: Duration = Duration::from_mins(3);

pub(crate) struct Scene {
    pub(crate) instance: WindowsInstance,
    pub(crate) name: String,
    pub(crate) version: String,
    /// Between the agent and the API server.
    pub(crate) proxy: ApiProxy,
    cluster: &'static ControlPlane,
}

impl Scene {
    /// An instance with the payload on it; nothing if this machine cannot have one.
    pub(crate) fn start(name: &str) -> Result<Option<Self>> {
        if need::skip(&WindowsInstance::NEEDS)? || need::skip(ControlPlane::NEEDS)? {
            return Ok(None);
        }
        Self::start_in(cluster()?, name).map(Some)
    }

    /// An instance with the payload on it, beside this control plane.
    pub(crate) fn start_in(cluster: &'static ControlPlane, name: &str) -> Result<Self> {
        let instance = WindowsInstance::boot(name)?;
        let doubles = ["containerd-double", "kubelet-double", "service-double"];
        for (double, program) in doubles
            .iter()
            .zip(windows_programs("evenkeel-testbed", &doubles)?)
        {
            instance.install(&program, &format!(r"C:\k\{double}.exe"))?;
        }
        instance.install(&windows_program("evenkeel-agent", "evenkeel-agent")?, AGENT)?;
        let at = GATEWAY.to_string();
        cluster
            .kubeconfig_for_node(name)?
            .at(&at)
            .write(&instance.path(r"C:\k\kubelet.kubeconfig")?)?;
        let proxy = ApiProxy::before(cluster)?;
        cluster
            .kubeconfig_for_service_account(NAMESPACE, "evenkeel-agent")?
            .at(&format!("{at}:{}", proxy.address().port()))
            .write(&instance.path(r"C:\k\login")?)?;
        // A version of its own for each test, so that their ConfigMaps do not meet.
        let mut commit = format!("{:x}", Sha256::digest(name));
        commit.truncate(8);
        Ok(Self {
            version: format!("1.2.3-{commit}"),
            name: name.to_owned(),
            instance,
            proxy,
            cluster,
        })
    }

    /// The data of a services ConfigMap with a runtime, a kubelet and one more service.
    pub(crate) fn data(&self, extra: &str, variables: &Value) -> Result<BTreeMap<String, String>> {
        self.data_with(extra, variables, &json!([]))
    }

    /// The same, with `more` services.
    pub(crate) fn data_with(
        &self,
        extra: &str,
        variables: &Value,
        more: &Value,
    ) -> Result<BTreeMap<String, String>> {
        let address = self.instance.address();
        let name = &self.name;
        let mut services = json!([
            {
                "name": "containerd", "bootstrap": true, "priority": 0,
                "command": format!(
                    r"C:\k\containerd-double.exe --delay-ms {}",
                    RUNTIME_SERVES_AFTER.as_millis()
                ),
            },
            {
                "name": "kubelet", "bootstrap": true, "priority": 1, "dependencies": ["containerd"],
                "command": format!(
                    r"C:\k\kubelet-double.exe --kubeconfig=C:\k\kubelet.kubeconfig --node-ip={address} --hostname-override={name}"
                ),
            },
            {
                "name": "network", "bootstrap": false, "priority": 2, "dependencies": ["kubelet"],
                "command": format!(r"C:\k\service-double.exe --record C:\k\network.json --node NODE_NAME --ip NODE_IP {extra}"),
                "nodeVariablesinCommand": [
                    {"name": "NODE_NAME", "jsonPathNodeObject": "metadata.name"},
                    {"name": "NODE_IP", "jsonPathNodeObject": r#"{.status.addresses[?(@.type=="InternalIP")].address}"#},
                ],
            },
        ]);
        if let (Some(services), Some(more)) = (services.as_array_mut(), more.as_array()) {
            services.extend(more.iter().cloned());
        }
        let program = self.instance.path(r"C:\k\service-double.exe")?;
        let bytes = std::fs::read(program).doing(|| "cannot read the payload")?;
        let checksum = format!("{:x}", Sha256::digest(bytes));
        let files = json!([{ "path": r"C:\k\service-double.exe", "checksum": checksum }]);
        Ok([
            ("services", services),
            ("files", files),
            ("environmentVars", variables.clone()),
            (
                "watchedEnvironmentVars",
                json!([{"name": "EK_WATCHED"}, {"name": "EK_ABSENT"}]),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_string()))
        .into())
    }

    /// Makes the services ConfigMap of this scene's version anew, and says its hash.
    pub(crate) fn publish(&self, data: &BTreeMap<String, String>) -> Result<String> {
        self.put_configmap(data)?;
        hash_of(data)
    }

    /// Makes the services ConfigMap of this scene's version anew, whatever is in it.
    pub(crate) fn put_configmap(&self, data: &BTreeMap<String, String>) -> Result<()> {
        let name = format!("services-{}", self.version.replace('.', "-"));
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "immutable": true, "data": data,
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"evenkeel.dev/services": "true"}},
        });
        let file = self.instance.folder().join("services.json");
        std::fs::write(&file, object.to_string()).doing(|| "cannot write the ConfigMap")?;
        self.kubectl(&[
            "delete",
            "configmap",
            &name,
            "-n",
            NAMESPACE,
            "--ignore-not-found",
        ])?;
        self.kubectl(&["create", "-f", &file.display().to_string()])
            .map(|_| ())
    }

    /// Tells the node what to run, as the operator does.
    pub(crate) fn tell(&self, hash: &str) -> Result<()> {
        let version = format!(
            "windowsmachineconfig.openshift.io/desired-version={}",
            self.version
        );
        let services = format!("evenkeel.dev/desired-services={hash}");
        let words = [
            "annotate",
            "node",
            &self.name,
            "--overwrite",
            &version,
            &services,
        ];
        self.kubectl(&words).map(|_| ())
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.cluster.kubectl(words)
    }

    /// The Node; null if there is none.
    pub(crate) fn node(&self) -> Result<Value> {
        let words = [
            "get",
            "node",
            &self.name,
            "--ignore-not-found",
            "-o",
            "json",
        ];
        let text = self.kubectl(&words)?;
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).doing(|| "no such node")
    }

    pub(crate) fn annotation(&self, name: &str) -> Result<Option<String>> {
        let node = self.node()?;
        let value = &node["metadata"]["annotations"][name];
        Ok(value.as_str().map(str::to_owned))
    }

    pub(crate) fn until_annotation(&self, name: &str, wanted: &str, limit: Duration) -> Result<()> {
        let found = until(&format!("{name} to be {wanted}"), limit, || {
            let seen = self.annotation(name)?;
            Ok(match seen {
                Some(value) if value == wanted => Look::Found(()),
                other => Look::NotYet(format!("{other:?}")),
            })
        });
        found.map_err(|error| Error::failed(format!("{error}\n{}", self.log())))
    }

    /// Runs `bootstrap` as the operator does, and approves what it asks for.
    pub(crate) fn bootstrap(&self) -> Result<String> {
        let words = [
            AGENT,
            "bootstrap",
            "--desired-version",
            &self.version,
            "--kubeconfig",
            r"C:\k\login",
        ];
        let mut command = self.instance.command(&words)?;
        let log = self.instance.folder().join("bootstrap.log");
        let file = std::fs::File::create(&log).doing(|| "cannot make a log")?;
        let errors = file.try_clone().doing(|| "cannot make a log")?;
        let child = command.stdout(file).stderr(errors).spawn();
        let mut child = Ended(child.doing(|| "cannot run the agent")?);
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let start = Instant::now();
        loop {
            if let Some(status) = child.0.try_wait().doing(|| "no such program")? {
                if status.success() {
                    return Ok(said());
                }
                return Err(Error::failed(format!(
                    "bootstrap ended with {status}: {}",
                    said()
                )));
            }
            if start.elapsed() > BOOT {
                return Err(Error::failed(format!(
                    "bootstrap takes too long: {}",
                    said()
                )));
            }
            self.approve()?;
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Gives the agent a login that ends soon, at the same address.
    pub(crate) fn log_in_until(&self, holds: std::ops::Range<SystemTime>) -> Result<()> {
        let user = format!("evenkeel:agent:{}", self.name);
        let at = format!("{GATEWAY}:{}", self.proxy.address().port());
        self.cluster
            .kubeconfig_that_holds(&user, &["evenkeel:agents"], holds)?
            .at(&at)
            .write(&self.instance.path(LOGIN)?)
    }

    /// The agent's own login, as it is kept.
    pub(crate) fn login(&self) -> Result<String> {
        let path = self.instance.path(LOGIN)?;
        std::fs::read_to_string(path).doing(|| "the agent has no login")
    }

    /// As the operator will: an agent asks for its own login, or its account does for the first one.
    pub(crate) fn approve(&self) -> Result<()> {
        let text = self.kubectl(&["get", "csr", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).doing(|| "no requests")?;
        for request in list["items"].as_array().into_iter().flatten() {
            let own = format!("evenkeel:agent:{}", self.name);
            let by = request["spec"]["username"].as_str().unwrap_or_default();
            let is_of_our_agent = [
                own.as_str(),
                "system:serviceaccount:evenkeel:evenkeel-agent",
            ]
            .contains(&by)
                && request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client"
                && request["status"]["conditions"].is_null();
            if let (true, Some(name)) = (is_of_our_agent, request["metadata"]["name"].as_str()) {
                self.kubectl(&["certificate", "approve", name])?;
            }
        }
        Ok(())
    }

    /// The state of a service, as the manager says.
    pub(crate) fn state(&self, service: &str) -> String {
        let asked = self
            .instance
            .ask(&["windows-probe", "service", "state", service]);
        asked.unwrap_or_else(|error| error.to_string())
    }

    pub(crate) fn until_runs(&self, service: &str, limit: Duration) -> Result<()> {
        let found = until(&format!("service {service} to run"), limit, || {
            Ok(match self.state(service) {
                state if state == "Running" => Look::Found(()),
                other => Look::NotYet(other),
            })
        });
        found.map_err(|error| Error::failed(format!("{error}\n{}", self.log())))
    }

    /// A value of a service in the registry.
    pub(crate) fn value(&self, key: &str, name: &str) -> Result<Option<String>> {
        let output = self.instance.run(&["reg.exe", "query", key, "/v", name])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.trim().starts_with(name));
        let value = line.and_then(|line| line.split("REG_SZ").nth(1));
        Ok(value.map(|it| it.trim().to_owned()))
    }

    /// The Events of the Node: reason, note, and how often.
    pub(crate) fn told(&self) -> Result<Vec<(String, String, u64)>> {
        let field = format!("regarding.name={}", self.name);
        let text = self.kubectl(&[
            "get",
            "events.v1.events.k8s.io",
            "-A",
            "--field-selector",
            &field,
            "-o",
            "json",
        ])?;
        let list: Value = serde_json::from_str(&text).doing(|| "no events")?;
        let items = list["items"].as_array().into_iter().flatten();
        let events = items.map(|it| {
            let text = |key: &str| it[key].as_str().unwrap_or_default().to_owned();
            let times = it["series"]["count"].as_u64().unwrap_or(1);
            (text("reason"), text("note"), times)
        });
        Ok(events.collect())
    }

    /// Waits until an Event of the Node has this reason and these words.
    pub(crate) fn until_told(&self, reason: &str, words: &str) -> Result<String> {
        let what = format!("an Event {reason} with {words:?}");
        let found = until(&what, SOON, || {
            let told = self.told()?;
            let found = told
                .iter()
                .find(|(of, note, _)| of == reason && note.contains(words));
            Ok(match found {
                Some((_, note, _)) => Look::Found(note.clone()),
                None => Look::NotYet(format!("{told:#?}")),
            })
        });
        found.map_err(|error| Error::failed(format!("{error}\n{}", self.log())))
    }

    /// Makes it a node that is done with the services of `data`; says their hash.
    pub(crate) fn at_rest(&self, data: &BTreeMap<String, String>) -> Result<String> {
        let hash = self.publish(data)?;
        self.bootstrap()?;
        self.instance.ask(&[AGENT, "service", "install"])?;
        self.tell(&hash)?;
        self.until_annotation("evenkeel.dev/current-services", &hash, SOON)?;
        self.until_annotation(STATE, "Done", SOON)?;
        Ok(hash)
    }

    /// Meddles with something, and says how many milliseconds later it was as before.
    pub(crate) fn meddle(&self, what: &str, on: &str) -> Result<u64> {
        let said = self.instance.ask(&["windows-probe", "meddle", what, on]);
        let said = said.map_err(|error| Error::failed(format!("{error}\n{}", self.log())))?;
        said.parse().doing(|| format!("{said:?} is no number"))
    }

    /// Waits until a file is there, as closely as it goes; says since when.
    pub(crate) fn until_written(&self, file: &std::path::Path) -> Result<Instant> {
        let start = Instant::now();
        while !file.exists() {
            if start.elapsed() > SOON {
                let log = self.log();
                let said = format!("{} was not written: {log}", file.display());
                return Err(Error::failed(said));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Instant::now())
    }

    /// Starts the agent's service after it was killed.
    pub(crate) fn start_agent(&self) -> Result<()> {
        self.instance
            .ask(&["windows-probe", "service", "start", "evenkeel-agent"])
            .map(|_| ())
    }

    /// Runs `cleanup` as the operator does; with the agent's service stopped before.
    pub(crate) fn cleanup(&self, more: &[&str]) -> Result<String> {
        let words = [AGENT, "cleanup", "--kubeconfig", r"C:\k\login"];
        self.instance.ask(&[&words[..], more].concat())
    }

    pub(crate) fn log(&self) -> String {
        let path = self.instance.path(r"C:\var\log\evenkeel\agent.log");
        let text = path.map(|path| std::fs::read_to_string(path).unwrap_or_default());
        text.unwrap_or_default()
    }
}

/// What a node is told of these contents.
pub(crate) fn hash_of(data: &BTreeMap<String, String>) -> Result<String> {
    let read = Services::from_data("the services", data);
    let (services, _) = read.map_err(|problems| Error::failed(problems.to_string()))?;
    Ok(services.hash())
}

/// A program that ends with its owner.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

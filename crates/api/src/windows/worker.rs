//! What the configuration of Linux workers tells about every kubelet of the cluster: the login with which
//! one asks for its own, whom its server trusts, its settings and its arguments. Windows nodes get the
//! same; what only Linux has is left out.

mod unit;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::machine::machine_config::MachineConfig;
use crate::names::object;

/// The kubelet's unit.
const UNIT: &str = "kubelet.service";
/// Where things are if the kubelet's unit and configuration do not say.
const CONFIG: &str = "/etc/kubernetes/kubelet.conf";
const BOOTSTRAP: &str = "/etc/kubernetes/kubeconfig";
const CLIENT_CA: &str = "/etc/kubernetes/kubelet-ca.crt";

/// Settings of a kubelet that mean the same on every system.
const SETTINGS: [&str; 19] = [
    "clusterDNS",
    "clusterDomain",
    "containerLogMaxFiles",
    "containerLogMaxSize",
    "eventBurst",
    "eventRecordQPS",
    "featureGates",
    "kubeAPIBurst",
    "kubeAPIQPS",
    "maxPods",
    "nodeLeaseDurationSeconds",
    "nodeStatusReportFrequency",
    "nodeStatusUpdateFrequency",
    "rotateCertificates",
    "serializeImagePulls",
    "serverTLSBootstrap",
    "streamingConnectionIdleTimeout",
    "tlsCipherSuites",
    "tlsMinVersion",
];
/// Arguments of a kubelet that mean the same on every system.
const ARGUMENTS: [&str; 2] = ["cloud-provider", "v"];

/// What a kubelet of this cluster needs. It has a login in it, and no `Debug` for that reason.
#[derive(Clone, PartialEq)]
pub struct Worker {
    /// The bootstrap kubeconfig, as it stands.
    pub bootstrap_kubeconfig: Vec<u8>,
    /// The API server, as instances reach it.
    pub server: String,
    /// Certificates in PEM by which they know it; none if the system's own do.
    pub server_ca: Option<Vec<u8>>,
    /// Certificates in PEM: who may talk to a kubelet.
    pub client_ca: Vec<u8>,
    /// Settings of the kubelet, by name.
    pub settings: Map<String, Value>,
    /// Arguments of the kubelet: `--cloud-provider=external`.
    pub arguments: Vec<String>,
}

/// Why a configuration of workers does not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAWorker(String);

impl NotAWorker {
    /// The word for it in Events, metrics and logs.
    pub const CATEGORY: &str = "InvalidWorkerIgnition";
}

impl fmt::Display for NotAWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotAWorker {}

impl Worker {
    /// Takes out of a configuration what a kubelet needs.
    pub fn of(config: &MachineConfig) -> Result<Self, NotAWorker> {
        let arguments = match config.units.get(UNIT) {
            Some(unit) => unit::arguments(unit),
            None => Vec::new(),
        };
        let said = |name: &str| {
            let found = arguments.iter().rev().find(|(known, _)| known == name);
            found.map(|(_, value)| value.as_str())
        };
        let settings = read_settings(config, said("config").unwrap_or(CONFIG))?;
        let client_ca = settings["authentication"]["x509"]["clientCAFile"].as_str();
        let client_ca = client_ca.or(said("client-ca-file")).unwrap_or(CLIENT_CA);
        let client_ca = file(config, client_ca, "the client CA of kubelets")?;
        judge_certificates(&client_ca, "the client CA of kubelets")?;
        let bootstrap = said("bootstrap-kubeconfig")
            .filter(|path| config.files.contains_key(*path))
            .unwrap_or(BOOTSTRAP);
        let bootstrap_kubeconfig = file(config, bootstrap, "the bootstrap kubeconfig")?;
        let (server, server_ca) = api_server(bootstrap, &bootstrap_kubeconfig, config)?;
        let taken = |(name, _): &(&String, &Value)| SETTINGS.contains(&name.as_str());
        let known = settings.as_object().into_iter().flatten().filter(taken);
        let mut same: Vec<String> = Vec::new();
        for name in ARGUMENTS {
            // What systemd would fill in from the machine's own environment is that machine's.
            if let Some(value) = said(name).filter(|it| !it.contains('$')) {
                same.push(format!("--{name}={value}"));
            }
        }
        Ok(Self {
            bootstrap_kubeconfig,
            server,
            server_ca,
            client_ca,
            settings: known
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            arguments: same,
        })
    }
}

fn refused(message: impl Into<String>) -> NotAWorker {
    NotAWorker(message.into())
}

fn file(config: &MachineConfig, path: &str, what: &str) -> Result<Vec<u8>, NotAWorker> {
    let found = config.files.get(path).map(|file| file.contents.clone());
    found.filter(|it| !it.is_empty()).ok_or_else(|| {
        refused(format!(
            "{what} ({path}) is missing: add the file, or give the whole Ignition config of workers in the Secret {}, key {}",
            object::WORKER_IGNITION, object::WORKER_IGNITION_FILE
        ))
    })
}

/// YAML or JSON, as Kubernetes reads both.
fn yaml(path: &str, contents: &[u8]) -> Result<Value, NotAWorker> {
    let text = std::str::from_utf8(contents)
        .map_err(|_| refused(format!("{path} is not text: save it as UTF-8")))?;
    // What the parser says may hold parts of the text, and there are secrets in it.
    serde_saphyr::from_str(text)
        .map_err(|_| refused(format!("{path} is neither YAML nor JSON: correct it")))
}

fn read_settings(config: &MachineConfig, path: &str) -> Result<Value, NotAWorker> {
    let Some(found) = config.files.get(path) else {
        return Ok(Value::Null);
    };
    let settings = yaml(path, &found.contents)?;
    match settings["kind"].as_str() {
        Some("KubeletConfiguration") => Ok(settings),
        _ => Err(refused(format!(
            "{path} is not a KubeletConfiguration: write one, with its kind"
        ))),
    }
}

fn judge_certificates(pem: &[u8], what: &str) -> Result<(), NotAWorker> {
    let begins = b"-----BEGIN CERTIFICATE-----";
    if pem.windows(begins.len()).any(|part| part == begins) {
        Ok(())
    } else {
        Err(refused(format!(
            "{what} has no certificate in PEM: add one"
        )))
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    contexts: Vec<NamedContext>,
    current_context: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
}

/// The API server that a kubeconfig leads to, and how it is known.
fn api_server(
    path: &str,
    contents: &[u8],
    config: &MachineConfig,
) -> Result<(String, Option<Vec<u8>>), NotAWorker> {
    let kubeconfig: Kubeconfig = serde_json::from_value(yaml(path, contents)?)
        .map_err(|_| refused(format!("{path} is not a kubeconfig: write one")))?;
    let context = kubeconfig
        .contexts
        .iter()
        .find(|it| it.name == kubeconfig.current_context);
    let cluster = match context {
        Some(context) => kubeconfig
            .clusters
            .iter()
            .find(|it| it.name == context.context.cluster),
        None => kubeconfig.clusters.first(),
    };
    let Some(NamedCluster { cluster, .. }) = cluster else {
        return Err(refused(format!(
            "{path} has no cluster for its current context: name one"
        )));
    };
    if !cluster.server.starts_with("https://") {
        return Err(refused(format!(
            "{path}: server {:?} is not an https address: write for example https://api.example.com:6443",
            cluster.server
        )));
    }
    let ca = match (
        &cluster.certificate_authority_data,
        &cluster.certificate_authority,
    ) {
        (Some(data), _) => {
            let decoded = STANDARD.decode(data.trim()).map_err(|_| {
                refused(format!(
                    "{path}: certificate-authority-data is not base64: encode it again"
                ))
            })?;
            Some(decoded)
        }
        (None, Some(ca)) => Some(file(config, ca, "the API server's CA")?),
        (None, None) => None,
    };
    if let Some(ca) = &ca {
        judge_certificates(ca, "the API server's CA")?;
    }
    Ok((cluster.server.clone(), ca))
}

//! A scene with a payload, a pool of its own, and Windows nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use evenkeel_api::names::{annotation, label, object};
use evenkeel_api::windows::services::Services;
use evenkeel_api::windows::windows_pool::{KIND, PLURAL, VERSION, WindowsPoolStatus};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::{NodeDouble, Os};
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::scene::{SOON, Scene, alone, deployed};

pub(crate) const OWN: &str = "1.2.3-abc1234";
pub(crate) const OWN_MAP: &str = "services-1-2-3-abc1234";

/// What people add to the payload themselves.
const PROGRAMS: [&str; 11] = [
    "evenkeel-agent.exe",
    "containerd/containerd.exe",
    "containerd/containerd-shim-runhcs-v1.exe",
    "kubelet.exe",
    "kube-proxy.exe",
    "kube-log-runner.exe",
    "cni/win-overlay.exe",
    "cni/host-local.exe",
    "hybrid-overlay-node.exe",
    "windows_exporter.exe",
    "csi-proxy.exe",
];

pub(crate) const CERTIFICATE: &str =
    "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

/// The Ignition config of workers, where the client CA has these words beside it.
pub(crate) fn worker_ignition(words: &str) -> Value {
    let data = |text: &str| {
        let escaped = text.bytes().map(|byte| format!("%{byte:02x}"));
        format!("data:,{}", escaped.collect::<String>())
    };
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config",
        "clusters": [{ "name": "c", "cluster": { "server": "https://api.example.com:6443" } }],
        "users": [{ "name": "u", "user": { "token": "very-secret" } }],
    });
    let file = |path: &str, text: &str| json!({ "path": path, "mode": 0o600, "contents": { "source": data(text) } });
    json!({
        "ignition": { "version": "3.2.0" },
        "storage": { "files": [
            file("/etc/kubernetes/kubeconfig", &kubeconfig.to_string()),
            file("/etc/kubernetes/kubelet-ca.crt", &format!("{words}\n{CERTIFICATE}")),
            file("/etc/kubernetes/kubelet.conf", "kind: KubeletConfiguration\nclusterDNS: [172.30.0.10]\n"),
        ] },
        "systemd": { "units": [{ "name": "kubelet.service", "contents": "[Service]\nExecStart=/usr/bin/kubelet --cloud-provider=external\n" }] },
    })
}

pub(crate) struct Bed {
    pub(crate) scene: Scene,
    pub(crate) payload: PathBuf,
}

/// Copies a folder with what is in it.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// A payload in `folder`: ours, with something in the place of every Windows program.
pub(crate) fn fill(folder: &Path) -> Result<()> {
    copy(&deployed("payload"), folder).doing(|| "cannot copy the payload")?;
    for program in PROGRAMS {
        let path = folder.join("files").join(program);
        std::fs::write(path, program).doing(|| format!("cannot write {program}"))?;
    }
    Ok(())
}

/// Runs `evenkeel-operator payload seal`.
pub(crate) fn seal(folder: &Path, options: &[&str]) -> Result<Output> {
    let program = Path::new(env!("CARGO_BIN_EXE_evenkeel-operator"));
    let mut command = Command::new(program);
    command.args(["payload", "seal"]).arg(folder).args(options);
    command.output().doing(|| "cannot seal the payload")
}

impl Bed {
    pub(crate) async fn new(prefix: &str) -> Result<Self> {
        Self::on(ControlPlane::shared()?, prefix).await
    }

    pub(crate) async fn on(control_plane: &'static ControlPlane, prefix: &str) -> Result<Self> {
        let scene = Scene::on(control_plane, prefix).await?;
        let chart = Chart::render(&scene.name, &["--set=windows.enabled=true"])?;
        {
            let _alone = alone();
            chart.component("operator").rights().apply(control_plane)?;
        }
        let payload = scene.scratch.path().join("payload");
        fill(&payload)?;
        let sealed = seal(&payload, &["--payload-version", OWN])?;
        assert!(sealed.status.success(), "{sealed:?}");
        let bed = Self { scene, payload };
        bed.make_pool(json!({})).await?;
        Ok(bed)
    }

    /// Starts the operator with its payload.
    pub(crate) fn operator(&self) -> Result<Running> {
        self.operator_in(&[], &[])
    }

    /// The same with these variables in its environment, and these options.
    pub(crate) fn operator_in(
        &self,
        environment: &[(&str, &str)],
        options: &[&str],
    ) -> Result<Running> {
        let folder = self.payload.display().to_string();
        let pool = self.pool_name();
        let own = ["--payload", &folder, "--windows-pool", &pool];
        let options = [&own[..], options].concat();
        let login = self.scene.login()?;
        self.scene
            .operator_in(environment, "operator", &login, &options)
    }

    pub(crate) fn pool_name(&self) -> String {
        self.scene.own("windows")
    }

    pub(crate) fn pools(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("evenkeel.dev", VERSION, KIND);
        let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Api::all_with(self.scene.client.clone(), &kind)
    }

    async fn make_pool(&self, spec: Value) -> Result<()> {
        let pool = json!({
            "apiVersion": "evenkeel.dev/v1alpha1", "kind": KIND,
            "metadata": { "name": self.pool_name() }, "spec": spec,
        });
        let pool = serde_json::from_value(pool).doing(|| "no pool")?;
        let made = self.pools().create(&PostParams::default(), &pool).await;
        made.map(|_| ()).doing(|| "cannot make the WindowsPool")
    }

    pub(crate) async fn edit_pool(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let edited = self
            .pools()
            .patch(&self.pool_name(), &PatchParams::default(), &patch)
            .await;
        edited.map(|_| ()).doing(|| "cannot change the WindowsPool")
    }

    pub(crate) async fn status(&self) -> Result<WindowsPoolStatus> {
        let pool = self.pools().get(&self.pool_name()).await;
        let pool = pool.doing(|| "cannot read the WindowsPool")?;
        let status = pool.data.get("status").cloned().unwrap_or(json!({}));
        serde_json::from_value(status).doing(|| "cannot read the status")
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn until_status(
        &self,
        what: &str,
        enough: impl Fn(&WindowsPoolStatus) -> bool,
    ) -> Result<WindowsPoolStatus> {
        until_async(&format!("the WindowsPool: {what}"), SOON, async || {
            let status = self.status().await?;
            Ok(if enough(&status) {
                Look::Found(status)
            } else {
                let log = self.scene.log();
                let lines: Vec<_> = log.lines().rev().take(8).collect();
                Look::NotYet(format!("{status:#?}\n{lines:#?}"))
            })
        })
        .await
    }

    /// Waits until a condition is true, or not, for that reason; its message.
    pub(crate) async fn until_condition(
        &self,
        kind: &str,
        is_so: bool,
        reason: &str,
    ) -> Result<String> {
        let wanted = if is_so { "True" } else { "False" };
        let what = format!("{kind} to be {wanted} for {reason}");
        let status = self
            .until_status(&what, |status| {
                status
                    .condition(kind)
                    .is_some_and(|it| it.status == wanted && it.reason == reason)
            })
            .await?;
        let found = status.condition(kind).cloned().unwrap_or_default();
        Ok(found.message)
    }

    /// Gives the Ignition config of workers in the Secret.
    pub(crate) async fn give_worker(&self, ignition: &Value) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.scene.client.clone(), &self.scene.name);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": object::WORKER_IGNITION },
            "stringData": { object::WORKER_IGNITION_FILE: ignition.to_string() },
        });
        let parameters = PatchParams::apply("test").force();
        let applied = secrets
            .patch(object::WORKER_IGNITION, &parameters, &Patch::Apply(secret))
            .await;
        applied.map(|_| ()).doing(|| "cannot make the Secret")
    }

    pub(crate) fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.scene.client.clone(), &self.scene.name)
    }

    /// The names of all services ConfigMaps.
    pub(crate) async fn map_names(&self) -> Result<Vec<String>> {
        let maps = self.maps().list(&ListParams::default()).await;
        let maps = maps.doing(|| "cannot list ConfigMaps")?.items;
        let names = maps.into_iter().filter_map(|it| it.metadata.name);
        Ok(names
            .filter(|it| it.starts_with(object::SERVICES_PREFIX))
            .collect())
    }

    /// Waits until the ConfigMaps are as wanted, for no longer than `limit`.
    pub(crate) async fn until_maps(
        &self,
        what: &str,
        limit: Duration,
        enough: impl Fn(&[ConfigMap]) -> bool,
    ) -> Result<()> {
        until_async(&format!("the ConfigMaps: {what}"), limit, async || {
            let maps = self.maps().list(&ListParams::default()).await;
            let mut maps = maps.doing(|| "cannot list ConfigMaps")?.items;
            maps.retain(|it| {
                let name = it.metadata.name.as_deref().unwrap_or_default();
                name.starts_with(object::SERVICES_PREFIX)
            });
            Ok(if enough(&maps) {
                Look::Found(())
            } else {
                let shown: Vec<_> = maps.iter().map(|it| (&it.metadata, it.immutable)).collect();
                let log = self.scene.log();
                let lines: Vec<_> = log.lines().rev().take(8).collect();
                Look::NotYet(format!("{shown:#?}\n{lines:#?}"))
            })
        })
        .await
    }

    /// Waits until the operator's own ConfigMap is there and right, and returns it with what it says.
    pub(crate) async fn own_map(&self, limit: Duration) -> Result<(ConfigMap, Services)> {
        self.until_maps("our own to be there", limit, |maps| {
            maps.iter().any(is_right)
        })
        .await?;
        let map = self.maps().get(OWN_MAP).await;
        let map = map.doing(|| "cannot read the ConfigMap")?;
        let services = read(&map).unwrap_or_default();
        Ok((map, services))
    }

    /// Waits until the operator's own ConfigMap has another hash than `before`, which it returns.
    pub(crate) async fn hash_after(&self, before: &str) -> Result<String> {
        let mut hash = String::new();
        self.until_maps("new contents", SOON, |maps| {
            maps.iter()
                .filter(|it| is_right(it))
                .any(|it| read(it).is_some_and(|services| services.hash() != before))
        })
        .await?;
        if let Some(services) = read(&self.own_map(SOON).await?.0) {
            hash = services.hash();
        }
        Ok(hash)
    }

    /// Makes a ConfigMap, whatever it says.
    pub(crate) async fn make_map(
        &self,
        name: &str,
        labelled: bool,
        owner: Option<&str>,
        data: &BTreeMap<String, String>,
    ) -> Result<()> {
        let mut metadata = json!({ "name": name });
        if labelled {
            metadata["labels"] = json!({ label::SERVICES: "true" });
        }
        if let Some(uid) = owner {
            metadata["ownerReferences"] = json!([{
                "apiVersion": "evenkeel.dev/v1alpha1", "kind": KIND, "name": self.pool_name(), "uid": uid,
            }]);
        }
        let map = json!({ "metadata": metadata, "immutable": true, "data": data });
        self.scene.create::<ConfigMap>(map).await.map(|_| ())
    }

    pub(crate) async fn delete_map(&self, name: &str) -> Result<()> {
        let deleted = self.maps().delete(name, &DeleteParams::default()).await;
        deleted
            .map(|_| ())
            .doing(|| format!("cannot delete {name}"))
    }

    /// A Windows node that runs `hash` of `version`, as its agent would say.
    pub(crate) async fn node(&self, suffix: &str, version: &str, hash: &str) -> Result<NodeDouble> {
        let node = self.bare(suffix).await?;
        self.annotate(
            node.name(),
            json!({
                annotation::WINDOWS_VERSION: version, annotation::WINDOWS_DESIRED_VERSION: version,
                annotation::CURRENT_SERVICES: hash, annotation::DESIRED_SERVICES: hash,
            }),
        )
        .await?;
        Ok(node)
    }

    /// A Windows node of nobody.
    pub(crate) async fn bare(&self, suffix: &str) -> Result<NodeDouble> {
        let description = self.scene.describe(suffix).os(Os::Windows);
        self.scene.start(description).await
    }

    pub(crate) async fn annotate(&self, node: &str, annotations: Value) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": annotations } });
        self.scene.patch(node, &patch).await
    }
}

/// What a ConfigMap says, if it holds.
pub(crate) fn read(map: &ConfigMap) -> Option<Services> {
    let data = map.data.clone().unwrap_or_default();
    let (services, _) = Services::from_data("services", &data).ok()?;
    Some(services)
}

/// Whether a ConfigMap is one that the operator would write.
pub(crate) fn is_right(map: &ConfigMap) -> bool {
    let labels = map.metadata.labels.as_ref();
    let is_labelled = labels
        .and_then(|it| it.get(label::SERVICES))
        .map(String::as_str);
    let is_canonical = read(map).is_some_and(|it| Some(it.canonical()) == map.data);
    map.metadata.name.as_deref() == Some(OWN_MAP)
        && map.metadata.deletion_timestamp.is_none()
        && map.immutable == Some(true)
        && is_labelled == Some("true")
        && is_canonical
        && read(map).is_some_and(|it| it.services.iter().any(|it| it.name == "kubelet"))
}

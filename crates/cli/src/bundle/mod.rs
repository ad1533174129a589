//! `evenkeel support-bundle`: what somebody who helps wants to see, in one file, without secrets.
//!
//! Secrets are never asked for; what looks like one in anything else is taken out before it is written.

mod node_logs;
mod redact;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use evenkeel_api::names::linux::OWN_STATE;
use evenkeel_api::names::{group, object};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams, LogParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::arguments::BundleArguments;
use crate::cluster::{
    self, Cluster, configs_kind, core_kind, kind, leases_kind, nodes_kind, policies_kind,
    pools_kind,
};
use crate::windows::upgrade::windows_pools_kind;
use crate::{Ending, output};

/// How much of one container's log is taken.
const LOG_LINES: i64 = 20_000;
const LOG_BYTES: i64 = 10 << 20;

pub(crate) fn run(arguments: &BundleArguments) -> Result<Ending> {
    let now = Timestamp::now();
    let path = match &arguments.to {
        Some(path) => path.clone(),
        None => PathBuf::from(format!(
            "evenkeel-support-{}.tar.gz",
            now.strftime("%Y%m%dT%H%M%SZ")
        )),
    };
    let folder = path
        .parent()
        .filter(|it| !it.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // Whole or not at all, and for its owner's eyes: what is not a secret may still be private.
    let file = tempfile::Builder::new()
        .prefix(".evenkeel-support-")
        .tempfile_in(folder)
        .with_context(|| format!("cannot write to directory {}", folder.display()))?;
    let mut bundle = Bundle {
        archive: tar::Builder::new(GzEncoder::new(file, Compression::default())),
        time: u64::try_from(now.as_second()).unwrap_or_default(),
        missing: Vec::new(),
        removed: 0,
    };
    cluster::with(&arguments.cluster, async |cluster| {
        bundle.cluster(&cluster, &arguments.namespace).await
    })?;
    bundle.journal(arguments.root.as_deref().unwrap_or(Path::new("/")))?;
    let (missing, removed) = (bundle.missing.clone(), bundle.removed);
    let file = bundle.finish(now)?;
    file.persist(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    output::warn(&missing);
    let said = format!(
        "Wrote {}. Removed {removed} values that look secret; review the file before you send it.\n",
        path.display()
    );
    output::print(said.as_bytes())?;
    Ok(Ending::well_if(missing.is_empty()))
}

type Archive = tar::Builder<GzEncoder<tempfile::NamedTempFile>>;

struct Bundle {
    archive: Archive,
    time: u64,
    /// What could not be had, and why.
    missing: Vec<String>,
    /// How many things were taken out.
    removed: usize,
}

/// Kinds, where they are asked for, and the file that they go to.
fn kinds(namespace: &str) -> Vec<(ApiResource, Option<String>, &'static str)> {
    let own = || Some(namespace.to_owned());
    let extensions = Some(object::EXTENSIONS_NAMESPACE.to_owned());
    let apps = |name, plural| kind("apps", "v1", name, plural);
    let events = || kind("events.k8s.io", "v1", "Event", "events");
    vec![
        (nodes_kind(), None, "objects/nodes.json"),
        (pools_kind(), None, "objects/machineconfigpools.json"),
        (configs_kind(), None, "objects/machineconfigs.json"),
        (windows_pools_kind(), None, "objects/windowspools.json"),
        (policies_kind(), None, "objects/rolloutpolicies.json"),
        (
            apps("Deployment", "deployments"),
            own(),
            "objects/deployments.json",
        ),
        (
            apps("DaemonSet", "daemonsets"),
            own(),
            "objects/daemonsets.json",
        ),
        (core_kind("Pod", "pods"), own(), "objects/pods.json"),
        (
            core_kind("ConfigMap", "configmaps"),
            own(),
            "objects/configmaps.json",
        ),
        (leases_kind(), own(), "objects/leases.json"),
        (leases_kind(), extensions, "objects/extension-leases.json"),
        (events(), own(), "events/own.json"),
        // Events on Nodes are here.
        (events(), Some("default".to_owned()), "events/nodes.json"),
    ]
}

impl Bundle {
    async fn cluster(&mut self, cluster: &Cluster, namespace: &str) -> Result<()> {
        // One question before all: is there anybody, and do they know us?
        let version = cluster.client.apiserver_version().await;
        let version =
            version.map_err(|error| cluster.explain("read the version of the cluster", error))?;
        self.add(
            "version.json",
            &json!({
                "evenkeel": env!("CARGO_PKG_VERSION"),
                "cluster": version.git_version,
            })
            .to_string(),
        )?;
        for (kind, place, file) in kinds(namespace) {
            let api = match &place {
                Some(place) => cluster.inside(place, &kind),
                None => cluster.all(&kind),
            };
            match cluster.pages(&api, &ListParams::default()).await {
                Ok(objects) => self.objects(file, &kind, objects)?,
                Err(kube::Error::Api(status))
                    if status.code == 404
                        && [group::MACHINE_CONFIGURATION, group::EVENKEEL]
                            .contains(&kind.group.as_str()) =>
                {
                    self.missing
                        .push(format!("{file}: this cluster has no {}", kind.plural));
                }
                Err(error) => self.lacks(
                    cluster,
                    file,
                    &format!("list {}", in_place(&kind.plural, place.as_deref())),
                    error,
                ),
            }
        }
        self.logs(cluster, namespace).await?;
        self.node_logs(cluster).await
    }

    fn lacks(&mut self, cluster: &Cluster, file: &str, what: &str, error: kube::Error) {
        self.missing
            .push(format!("{file}: {:#}", cluster.explain(what, error)));
    }

    fn objects(
        &mut self,
        file: &str,
        kind: &ApiResource,
        objects: Vec<DynamicObject>,
    ) -> Result<()> {
        let items: Vec<Value> = objects
            .into_iter()
            .map(|object| {
                let mut value = serde_json::to_value(&object).unwrap_or_default();
                value["apiVersion"] = json!(kind.api_version);
                value["kind"] = json!(kind.kind);
                self.removed += redact::object(&mut value);
                value
            })
            .collect();
        let text = serde_json::to_string_pretty(&items).context("cannot write JSON")?;
        self.add(file, &text)
    }

    /// What our programs said, and what they said before they were last started anew.
    async fn logs(&mut self, cluster: &Cluster, namespace: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        // That they cannot be listed was told already.
        let listed = cluster.inside(namespace, &core_kind("Pod", "pods"));
        let found = cluster.pages(&listed, &ListParams::default()).await;
        for pod in found.unwrap_or_default() {
            let name = pod.name_any();
            let statuses = pod.data["status"]["containerStatuses"].as_array();
            for status in statuses.into_iter().flatten() {
                let container = status["name"].as_str().unwrap_or_default();
                for previous in [false, true] {
                    if previous && status["restartCount"] == 0 {
                        continue;
                    }
                    let which = if previous { "-previous" } else { "" };
                    let file = format!("logs/{name}/{container}{which}.log");
                    let parameters = LogParams {
                        container: Some(container.to_owned()),
                        previous,
                        tail_lines: Some(LOG_LINES),
                        limit_bytes: Some(LOG_BYTES),
                        timestamps: true,
                        ..LogParams::default()
                    };
                    match pods.logs(&name, &parameters).await {
                        Ok(text) => {
                            let (text, removed) = redact::log(&text);
                            self.removed += removed;
                            self.add(&file, &text)?;
                        }
                        Err(error) => self.lacks(
                            cluster,
                            &file,
                            &format!("read the log of pod {name}"),
                            error,
                        ),
                    }
                }
            }
        }
        Ok(())
    }

    /// The journal of this machine, where it has one.
    fn journal(&mut self, root: &Path) -> Result<()> {
        let path = root.join(OWN_STATE.trim_start_matches('/')).join("journal");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let (text, removed) = redact::text(&text);
                self.removed += removed;
                self.add("journal.json", &text)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                self.missing.push(format!(
                    "journal.json: cannot read {}: {error}",
                    path.display()
                ));
                Ok(())
            }
        }
    }

    fn add(&mut self, path: &str, text: &str) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        self.archive
            .append_data(
                &mut header,
                Path::new("evenkeel-support").join(path),
                text.as_bytes(),
            )
            .with_context(|| format!("cannot put {path} into the bundle"))
    }

    fn finish(mut self, now: Timestamp) -> Result<tempfile::NamedTempFile> {
        let about = json!({
            "made": now.to_string(),
            "missing": self.missing,
            "removed": self.removed,
        });
        self.add(
            "about.json",
            &serde_json::to_string_pretty(&about).context("cannot write JSON")?,
        )?;
        let failed = "cannot finish the bundle";
        let mut file = self
            .archive
            .into_inner()
            .and_then(GzEncoder::finish)
            .context(failed)?;
        file.flush().context(failed)?;
        Ok(file)
    }
}

fn in_place(plural: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("{plural} in namespace {namespace}"),
        None => plural.to_owned(),
    }
}

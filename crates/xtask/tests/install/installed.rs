//! A cluster with the release on it, and what its people read there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::process::{output, run};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, SystemdNode};
use serde_json::Value;

use crate::release::Release;

/// How long what people wait for may take here, where nothing is measured.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);
/// The namespace of the chart.
pub(crate) const NAMESPACE: &str = "evenkeel";

/// A cluster on which the release is installed.
pub(crate) struct Installed {
    pub(crate) cluster: Cluster,
    files: Scratch,
    cli: PathBuf,
    /// When its images were there, and Helm began.
    pub(crate) begun: Instant,
}

impl Installed {
    /// Starts nodes of these names, and installs the chart with Helm.
    pub(crate) async fn on(names: &[&str], release: &Release) -> Result<Self> {
        Self::with(names, release, &release.chart(), &release.images(), &[]).await
    }

    /// The same with this chart, on nodes that have these images, with these options of Helm.
    pub(crate) async fn with(
        names: &[&str],
        release: &Release,
        chart: &str,
        images: &[PathBuf],
        options: &[&str],
    ) -> Result<Self> {
        let cluster = Cluster::start(names, images).await?;
        let files = Scratch::new("installed")?;
        let version = env!("CARGO_PKG_VERSION");
        let packed = release.path(&format!("programs/evenkeel_{version}_linux_amd64.tar.gz"));
        run(Command::new("tar")
            .arg("-xzf")
            .arg(&packed)
            .arg("-C")
            .arg(files.path()))?;
        let installed = Self {
            cli: files.path().join("evenkeel"),
            cluster,
            files,
            begun: Instant::now(),
        };
        let admin = installed.control_plane().admin_kubeconfig();
        admin.write(&installed.login())?;
        installed.helm(&["install", chart, "--create-namespace"], options)?;
        Ok(installed)
    }

    /// Runs Helm's `action` (its first word, and what follows the name of the installation) as an administrator.
    pub(crate) fn helm(&self, action: &[&str], options: &[&str]) -> Result<()> {
        let login = format!("--kubeconfig={}", self.login().display());
        let fixed = ["--namespace", NAMESPACE, login.as_str()];
        let images: &[&str] = match action[0] {
            "install" | "upgrade" => &["--set=image.pullPolicy=Never"],
            _ => &[],
        };
        let named = [&action[..1], &["evenkeel"], &action[1..]].concat();
        let helm = Chart::helm(&[&named, &fixed[..], images, options].concat())?;
        done(&format!("helm {}", action[0]), &helm)
    }

    pub(crate) fn control_plane(&self) -> &'static ControlPlane {
        self.cluster.control_plane()
    }

    pub(crate) fn login(&self) -> PathBuf {
        self.files.path().join("kubeconfig")
    }

    /// A folder for files of this cluster's people.
    pub(crate) fn files(&self) -> &Path {
        self.files.path()
    }

    /// The command line of the release.
    pub(crate) fn cli(&self) -> &Path {
        &self.cli
    }

    /// The same, as an administrator uses it.
    pub(crate) fn evenkeel(&self, arguments: &[&str]) -> Result<Output> {
        output(
            Command::new(&self.cli)
                .args(arguments)
                .env("KUBECONFIG", self.login()),
            &[],
        )
    }

    pub(crate) fn get(&self, arguments: &[&str]) -> Result<Value> {
        let said = self
            .control_plane()
            .kubectl(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&said).doing(|| "kubectl said no JSON")
    }

    pub(crate) fn apply(&self, object: &Value) -> Result<()> {
        let file = self.files.path().join("object.json");
        std::fs::write(&file, object.to_string()).doing(|| "cannot write the object")?;
        self.control_plane()
            .kubectl(&["apply", "-f", &file.display().to_string()])
            .map(|_| ())
    }

    /// Waits until all pods of the chart are ready: `operators`, and an agent on each of `nodes` nodes.
    pub(crate) async fn until_ready(&self, operators: usize, nodes: usize) -> Result<()> {
        until_async("the chart's pods to be ready", PATIENCE, async || {
            let pods = self.get(&["pods", "--namespace", NAMESPACE])?;
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            let ready = |name: &str| {
                let of = pods.iter().filter(|it| {
                    it["metadata"]["labels"]["app.kubernetes.io/name"] == name && is_ready(it)
                });
                of.count()
            };
            let now = (ready("evenkeel-operator"), ready("evenkeel-agent"));
            Ok(if now == (operators, nodes) {
                Look::Found(())
            } else {
                let states = pods.iter().map(|it| {
                    format!(
                        "{} {}",
                        it["metadata"]["name"], it["status"]["containerStatuses"]
                    )
                });
                Look::NotYet(format!(
                    "{now:?}: {}",
                    states.collect::<Vec<_>>().join("\n")
                ))
            })
        })
        .await
    }

    /// Waits until `evenkeel status` has nothing to say.
    pub(crate) async fn until_clean(&self) -> Result<()> {
        until_async("evenkeel status to be clean", PATIENCE, async || {
            let status = self.evenkeel(&["status"])?;
            let said = String::from_utf8_lossy(&status.stdout).into_owned();
            Ok(if status.status.success() {
                println!("{said}");
                Look::Found(())
            } else {
                Look::NotYet(format!("{said}{}", String::from_utf8_lossy(&status.stderr)))
            })
        })
        .await
    }

    /// Waits until `count` pods of `namespace` are ready.
    pub(crate) async fn until_ready_in(&self, namespace: &str, count: usize) -> Result<()> {
        let what = format!("{count} pods in {namespace} to be ready");
        until_async(&what, PATIENCE, async || {
            let pods = self.get(&["pods", "--namespace", namespace])?;
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            let ready = pods.iter().filter(|it| is_ready(it)).count();
            Ok(if ready == count && pods.len() == count {
                Look::Found(())
            } else {
                Look::NotYet(format!("{ready} of {} are", pods.len()))
            })
        })
        .await
    }

    /// Waits until the Node of this name is so.
    pub(crate) async fn until_node(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        until_async(what, PATIENCE, async || {
            let node = self.get(&["node", name])?;
            Ok(if is_so(&node) {
                Look::Found(())
            } else {
                Look::NotYet(format!(
                    "{} {} {}",
                    node["metadata"]["annotations"], node["spec"], node["status"]
                ))
            })
        })
        .await
    }

    /// Waits until the Node of this name has the readiness taint, or has it no more.
    pub(crate) async fn until_tainted(&self, name: &str, expected: bool) -> Result<()> {
        let what = format!("the taint of {name} to be there: {expected}");
        let is_so = |node: &Value| is_tainted(node) == expected;
        self.until_node(name, &what, is_so).await
    }

    /// The operator's pods, by uid.
    pub(crate) fn operators(&self) -> Result<BTreeSet<String>> {
        let selector = "--selector=app.kubernetes.io/name=evenkeel-operator";
        let pods = self.get(&["pods", "--namespace", NAMESPACE, selector])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let uids = pods.iter().filter_map(|it| it["metadata"]["uid"].as_str());
        Ok(uids.map(str::to_owned).collect())
    }

    /// How often containers of the chart were started again.
    pub(crate) fn restarts(&self) -> Result<u64> {
        let pods = self.get(&["pods", "--namespace", NAMESPACE])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let counts = pods
            .iter()
            .filter_map(|pod| pod["status"]["containerStatuses"].as_array().cloned())
            .flatten();
        Ok(counts.filter_map(|it| it["restartCount"].as_u64()).sum())
    }

    pub(crate) fn annotation(&self, node: &str, name: &str) -> Result<String> {
        let node = self.get(&["node", node])?;
        let value = node["metadata"]["annotations"][name].as_str();
        Ok(value.unwrap_or_default().to_owned())
    }
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().cloned();
    conditions
        .unwrap_or_default()
        .iter()
        .any(|it| it["type"] == "Ready" && it["status"] == "True")
}

pub(crate) fn is_tainted(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array().cloned();
    let is_ours = |it: &Value| it["key"] == "kubernetes.io/MetaReadiness";
    taints.unwrap_or_default().iter().any(is_ours)
}

pub(crate) fn done(what: &str, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{what} ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )))
}

/// Waits until `node` says that it runs what it is to run, in another boot than `before`, and has the file.
pub(crate) async fn until_updated(
    installed: &Installed,
    node: &SystemdNode,
    before: &str,
    contents: &str,
) -> Result<()> {
    let name = node.name();
    let what = format!("node {name} to run the new configuration");
    until_async(&what, 2 * PATIENCE, async || {
        let of = |it: &str| {
            installed.annotation(name, &format!("machineconfiguration.openshift.io/{it}"))
        };
        let said = (
            of("state")?,
            of("reason")?,
            of("desiredConfig")?,
            of("currentConfig")?,
        );
        let file = node.read("/etc/keel.conf").unwrap_or_default();
        let boot = node.boot_id().unwrap_or_default();
        let is_done = said.0 == "Done"
            && !said.2.is_empty()
            && said.2 == said.3
            && file == contents.as_bytes()
            && boot != before;
        Ok(if is_done {
            Look::Found(())
        } else {
            Look::NotYet(format!("{said:?}, {}", String::from_utf8_lossy(&file)))
        })
    })
    .await
}

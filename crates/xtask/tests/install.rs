//! A release, installed as a person installs it, on clusters with real nodes: real kubelets, containers and reboots.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::process::{output, run};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, SystemdNode, need};
use serde_json::{Value, json};

/// How long what people wait for may take here, where nothing is measured.
const PATIENCE: Duration = Duration::from_mins(4);
/// How soon everything is up, once its images are there.
const PROMISED: Duration = Duration::from_secs(30);
const NAMESPACE: &str = "evenkeel";

/// Whether this machine lacks something for a real cluster.
fn skip() -> Result<bool> {
    Ok(need::skip(ControlPlane::NEEDS)?
        || need::skip(SystemdNode::NEEDS)?
        || need::skip(Cluster::NEEDS)?)
}

/// A release: the one in the folder that `EVENKEEL_RELEASE` names, or one for this machine's architecture, quickly built.
enum Release {
    Given(PathBuf),
    Made(Scratch),
}

impl Release {
    fn make() -> Result<Self> {
        if let Some(folder) = std::env::var_os("EVENKEEL_RELEASE") {
            return Ok(Self::Given(folder.into()));
        }
        Self::build()
    }

    fn build() -> Result<Self> {
        let scratch = Scratch::new("release")?;
        let made = run(Command::new(env!("CARGO_BIN_EXE_evenkeel-xtask"))
            .args(["release", "--profile", "dev", "--allow-changes"])
            .args(["--target", "x86_64-unknown-linux-musl", "--out"])
            .arg(scratch.path()))?;
        println!("{made}");
        Ok(Self::Made(scratch))
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Given(folder) => folder.join(name),
            Self::Made(scratch) => scratch.path().join(name),
        }
    }

    fn images(&self) -> Vec<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        ["operator", "agent"]
            .map(|it| self.path(&format!("images/evenkeel-{it}-{version}.oci.tar")))
            .into()
    }
}

/// A cluster on which the release is installed.
struct Installed {
    cluster: Cluster,
    files: Scratch,
    cli: PathBuf,
    /// When its images were there, and Helm began.
    begun: Instant,
}

impl Installed {
    /// Starts nodes of these names, and installs the chart with Helm.
    async fn on(names: &[&str], release: &Release) -> Result<Self> {
        let cluster = Cluster::start(names, &release.images()).await?;
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
        let login = installed.login();
        let admin = installed.control_plane().admin_kubeconfig();
        admin.write(&login)?;
        let chart = release.path(&format!("chart/evenkeel-{version}.tgz"));
        let helm = Chart::helm(&[
            "install",
            "evenkeel",
            &chart.display().to_string(),
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--set=image.pullPolicy=Never",
            "--kubeconfig",
            &login.display().to_string(),
        ])?;
        done("helm install", &helm)?;
        Ok(installed)
    }

    fn control_plane(&self) -> &'static ControlPlane {
        self.cluster.control_plane()
    }

    fn login(&self) -> PathBuf {
        self.files.path().join("kubeconfig")
    }

    /// The command line of the release, as an administrator uses it.
    fn evenkeel(&self, arguments: &[&str]) -> Result<Output> {
        output(
            Command::new(&self.cli)
                .args(arguments)
                .env("KUBECONFIG", self.login()),
            &[],
        )
    }

    fn get(&self, arguments: &[&str]) -> Result<Value> {
        let said = self
            .control_plane()
            .kubectl(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&said).doing(|| "kubectl said no JSON")
    }

    fn apply(&self, object: &Value) -> Result<()> {
        let file = self.files.path().join("object.json");
        std::fs::write(&file, object.to_string()).doing(|| "cannot write the object")?;
        self.control_plane()
            .kubectl(&["apply", "-f", &file.display().to_string()])
            .map(|_| ())
    }

    /// Waits until all pods of the chart are ready: `operators`, and an agent on each of `nodes` nodes.
    async fn until_ready(&self, operators: usize, nodes: usize) -> Result<()> {
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
    async fn until_clean(&self) -> Result<()> {
        until_async("evenkeel status to be clean", PATIENCE, async || {
            let status = self.evenkeel(&["status"])?;
            let said = String::from_utf8_lossy(&status.stdout).into_owned();
            Ok(if status.status.success() {
                println!("{said}");
                Look::Found(())
            } else {
                Look::NotYet(said)
            })
        })
        .await
    }

    /// Waits until `count` pods of `namespace` are ready.
    async fn until_ready_in(&self, namespace: &str, count: usize) -> Result<()> {
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

    /// The operator's pods, by uid.
    fn operators(&self) -> Result<BTreeSet<String>> {
        let selector = "--selector=app.kubernetes.io/name=evenkeel-operator";
        let pods = self.get(&["pods", "--namespace", NAMESPACE, selector])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let uids = pods.iter().filter_map(|it| it["metadata"]["uid"].as_str());
        Ok(uids.map(str::to_owned).collect())
    }

    /// How often containers of the chart were started again.
    fn restarts(&self) -> Result<u64> {
        let pods = self.get(&["pods", "--namespace", NAMESPACE])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let counts = pods
            .iter()
            .filter_map(|pod| pod["status"]["containerStatuses"].as_array().cloned())
            .flatten();
        Ok(counts.filter_map(|it| it["restartCount"].as_u64()).sum())
    }

    fn annotation(&self, node: &str, name: &str) -> Result<String> {
        let node = self.get(&["node", node])?;
        let value = node["metadata"]["annotations"][name].as_str();
        Ok(value.unwrap_or_default().to_owned())
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().cloned();
    conditions
        .unwrap_or_default()
        .iter()
        .any(|it| it["type"] == "Ready" && it["status"] == "True")
}

fn done(what: &str, output: &Output) -> Result<()> {
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

fn pool() -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": { "name": "worker" },
        "spec": {
            "nodeSelector": {},
            "machineConfigSelector": { "matchLabels": { "machineconfiguration.openshift.io/role": "worker" } },
            "maxUnavailable": 1,
        },
    })
}

/// What somebody runs on the cluster.
fn web() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{ "name": "web", "image": "pause:1", "imagePullPolicy": "Never" }],
                },
            },
        },
    })
}

/// A file that needs a reboot.
fn config(contents: &str) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {
            "name": "50-worker",
            "labels": { "machineconfiguration.openshift.io/role": "worker" },
        },
        "spec": { "config": {
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [{
                "path": "/etc/keel.conf",
                "mode": 0o644,
                "overwrite": true,
                "contents": { "source": format!("data:,{contents}") },
            }] },
        } },
    })
}

/// Waits until `node` says that it runs what it is to run, in another boot than `before`, and has the file.
async fn until_updated(
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

/// What a newcomer has: one node, with everything on it. Installed with Helm from a release, it works, and a change that
/// reboots the only node comes to its end without a person.
///
/// Covers K01, K03.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn on_the_only_node_a_release_is_installed_and_a_change_that_reboots_it_ends() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&["only"], &release).await?;
    installed.until_ready(2, 1).await?;
    installed.until_clean().await?;
    let took = installed.begun.elapsed();
    println!(
        "proof: installed and ready {:.1} s after its images were there",
        took.as_secs_f64()
    );
    assert!(!is_soak() || took < PROMISED, "{took:?}");
    assert_eq!(installed.restarts()?, 0);
    let log = installed.control_plane().kubectl(&[
        "logs",
        "--namespace",
        NAMESPACE,
        "daemonset/evenkeel-agent",
    ])?;
    assert!(!log.trim().is_empty(), "kubectl logs works");

    installed.apply(&web())?;
    installed.until_ready_in("default", 2).await?;
    let own = installed.operators()?;
    let node = installed.cluster.node(0);
    let before = node.boot_id()?;
    installed.apply(&config("one"))?;
    installed.apply(&pool())?;
    until_updated(&installed, node, &before, "one").await?;
    installed.until_ready(2, 1).await?;
    installed.until_ready_in("default", 2).await?;
    installed.until_clean().await?;
    assert_eq!(
        installed.operators()?,
        own,
        "nobody evicts the operator from the only node"
    );
    let node = installed.get(&["node", "only"])?;
    assert_ne!(node["spec"]["unschedulable"], true, "{node}");
    Ok(())
}

/// Whoever makes the same release elsewhere gets the same bytes.
#[test]
#[ignore = "takes long: runs in ./test --soak"]
fn programs_say_nothing_of_where_they_were_made() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::build()?;
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let project = project.canonicalize().doing(|| "no project")?;
    let home = std::env::home_dir().unwrap_or_default().join(".cargo");
    let version = env!("CARGO_PKG_VERSION");
    for program in ["evenkeel", "evenkeel-agent", "evenkeel-operator"] {
        let packed = release.path(&format!("programs/{program}_{version}_linux_amd64.tar.gz"));
        for place in [&project, &home] {
            let found = run(Command::new("sh").args([
                "-c",
                "tar -xzOf \"$1\" \"$2\" | grep -c -a -F \"$3\" || true",
                "sh",
                &packed.display().to_string(),
                program,
                &place.display().to_string(),
            ]))?;
            assert_eq!(found.trim(), "0", "{program} names {}", place.display());
        }
    }
    Ok(())
}

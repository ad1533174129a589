//! A cluster with pools as an operator leaves them, and people with the roles of the chart. The
//! administrator's login is for the harness alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::node_double::logs::{self, LogServer};
use evenkeel_testbed::node_double::{NodeDouble, Os};
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result};
use serde_json::{Value, json};

use super::scene::{Said, file, program};

pub(crate) const STATE: &str = "machineconfiguration.openshift.io/state";
pub(crate) const REASON: &str = "machineconfiguration.openshift.io/reason";
pub(crate) const CURRENT: &str = "machineconfiguration.openshift.io/currentConfig";
pub(crate) const DESIRED: &str = "machineconfiguration.openshift.io/desiredConfig";
pub(crate) const VOUCHER: &str = "evenkeel.dev/desired-config";

pub(crate) struct Fleet {
    pub(crate) control_plane: &'static ControlPlane,
    scratch: Scratch,
    nodes: Mutex<Vec<NodeDouble>>,
    runtime: tokio::runtime::Runtime,
    /// Where whoever serves something lives.
    background: tokio::runtime::Runtime,
    // What is shown is all that there is: one test at a time. Last, so that it is given back last.
    _alone: MutexGuard<'static, ()>,
}

/// The one control plane, with the chart's kinds and its roles for people.
fn cluster() -> Result<&'static ControlPlane> {
    static READY: OnceLock<Result<()>> = OnceLock::new();
    let control_plane = ControlPlane::shared()?;
    let ready = READY.get_or_init(|| {
        let chart = Chart::render("evenkeel", &[])?;
        let kinds = chart.kinds(&["CustomResourceDefinition"]);
        kinds.apply(control_plane)?;
        chart.component("people").apply(control_plane)?;
        for (person, role) in [
            ("viewer", "evenkeel-viewer"),
            ("editor", "evenkeel-viewer"),
            ("editor", "evenkeel-editor"),
            ("supporter", "evenkeel-viewer"),
            ("supporter", "evenkeel-node-logs"),
        ] {
            control_plane.kubectl(&[
                "create",
                "clusterrolebinding",
                &format!("{person}-{role}"),
                &format!("--clusterrole={role}"),
                &format!("--user={person}"),
            ])?;
        }
        control_plane.kubectl(&["create", "namespace", "node-extensions"])?;
        for namespace in ["evenkeel", "node-extensions", "default"] {
            control_plane.kubectl(&[
                "create",
                "rolebinding",
                "supporter",
                "--clusterrole=evenkeel-support",
                "--user=supporter",
                &format!("--namespace={namespace}"),
            ])?;
        }
        Ok(())
    });
    ready.clone().map(|()| control_plane)
}

impl Fleet {
    /// A cluster without pools and nodes, whoever had one before.
    pub(crate) fn start() -> Result<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let control_plane = cluster()?;
        control_plane.kubectl(&[
            "delete",
            "mcp,mc,nodes,windowspools,rolloutpolicies",
            "--all",
        ])?;
        Ok(Self {
            control_plane,
            scratch: Scratch::new("fleet")?,
            nodes: Mutex::default(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .doing(|| "cannot make a runtime")?,
            background: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .doing(|| "cannot make a runtime")?,
            _alone: alone,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a file to be given to `evenkeel`.
    pub(crate) fn give(&self, name: &str, value: &Value) -> Result<String> {
        let path = self.path(name);
        std::fs::write(&path, value.to_string()).doing(|| "cannot write")?;
        Ok(path.display().to_string())
    }

    /// The kubeconfig of a person.
    pub(crate) fn login(&self, person: &str) -> Result<String> {
        let path = self.path(&format!("{person}.kubeconfig"));
        let login = self.control_plane.kubeconfig_for_user(person, &[])?;
        login.write(&path)?;
        Ok(path.display().to_string())
    }

    /// `evenkeel`, typed by a person.
    pub(crate) fn typed(&self, person: &str, words: &[&str]) -> Result<Command> {
        let mut command = program();
        command
            .args(words)
            .args(["--kubeconfig", &self.login(person)?]);
        Ok(command)
    }

    pub(crate) fn says(&self, person: &str, words: &[&str]) -> Result<Said> {
        let output = self.typed(person, words)?.output();
        Ok(output.doing(|| "cannot run evenkeel")?.into())
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.control_plane.kubectl(words)
    }

    pub(crate) fn apply(&self, object: &Value) -> Result<()> {
        let path = self.give("object.json", object)?;
        self.kubectl(&["apply", "-f", &path]).map(|_| ())
    }

    /// A Node of pool `pool` that is ready, at `config`.
    pub(crate) fn node(&self, name: &str, pool: &str, config: &str) -> Result<()> {
        let admin = self.control_plane.admin_kubeconfig();
        let described = NodeDouble::named(name).label("pool", pool);
        let node = self.runtime.block_on(described.start(&admin))?;
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.push(node);
        self.annotate(
            name,
            &[(CURRENT, config), (DESIRED, config), (STATE, "Done")],
        )
    }

    /// Serves `folder` as the logs of the kubelet on this machine.
    pub(crate) fn serve_logs(&self, folder: &Path) -> Result<LogServer> {
        let address = (GATEWAY, logs::PORT).into();
        self.background.block_on(LogServer::start(address, folder))
    }

    /// A Windows node of ours at `address`.
    pub(crate) fn windows_node(&self, name: &str, address: &str) -> Result<()> {
        let admin = self.control_plane.admin_kubeconfig();
        let described = NodeDouble::named(name)
            .os(Os::Windows)
            // Where this API server looks for its kubelet first.
            .address("Hostname", address)
            .address("InternalIP", address);
        let node = self.runtime.block_on(described.start(&admin))?;
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.push(node);
        self.annotate(name, &[("evenkeel.dev/current-services", "h")])
    }

    /// Annotates a node as operator and agent do: whoever tells it what to run vouches for it, in one patch.
    pub(crate) fn annotate(&self, node: &str, annotations: &[(&str, &str)]) -> Result<()> {
        let desired = annotations.iter().filter(|(key, _)| *key == DESIRED);
        let vouchers = desired.map(|(_, value)| (VOUCHER, *value));
        let pairs: Vec<String> = annotations
            .iter()
            .copied()
            .chain(vouchers)
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let mut words = vec!["annotate", "--overwrite", "node", node];
        words.extend(pairs.iter().map(String::as_str));
        self.kubectl(&words).map(|_| ())
    }

    /// A pool whose nodes are to run `config`.
    pub(crate) fn pool(&self, name: &str, config: &str, change: impl Fn(&mut Value)) -> Result<()> {
        let mut pool = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
            "metadata": { "name": name },
            "spec": {
                "nodeSelector": { "matchLabels": { "pool": name } },
                "machineConfigSelector": { "matchLabels": { "machineconfiguration.openshift.io/role": name } },
                "configuration": { "name": config },
            },
        });
        change(&mut pool);
        self.apply(&pool)
    }
}

/// A MachineConfig for a pool, with these files.
pub(crate) fn machine_config(name: &str, pool: &str, files: &[(&str, &str)]) -> Value {
    let files: Vec<Value> = files.iter().map(|(path, text)| file(path, text)).collect();
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": { "name": name, "labels": { "machineconfiguration.openshift.io/role": pool } },
        "spec": { "config": { "ignition": { "version": "3.2.0" }, "storage": { "files": files } } },
    })
}

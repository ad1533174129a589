//! What a daemon promises, on a real control plane, with no more rights than it needs.

#![cfg(target_os = "linux")]

mod events;
mod leadership;
mod program;

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_daemon::{Metrics, Program};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Result};
use kube::Client;

const PROGRAM: Program = Program {
    name: "evenkeel-test",
    version: "1.2.3",
};

/// How long anything may take that has no time of its own, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A namespace, and a service account in it that may do what a daemon does, and no more.
struct Bench {
    control_plane: &'static ControlPlane,
    namespace: String,
    login: Kubeconfig,
    scratch: Scratch,
}

impl Bench {
    fn new(name: &str) -> Result<Self> {
        let control_plane = ControlPlane::shared()?;
        let namespace = control_plane.namespace(name)?;
        let role = format!("{namespace}-daemon");
        let account = format!("{namespace}:default");
        let user = format!("--as=system:serviceaccount:{account}");
        for rules in [
            ["leases", "get,create,update", "leases.coordination.k8s.io"],
            ["events", "create,patch", "events.events.k8s.io"],
            ["configmaps", "get,list,create", "configmaps"],
        ] {
            let [kind, verbs, resource] = rules;
            let role = format!("{role}-{kind}");
            let kubectl = |arguments: &[&str]| control_plane.kubectl(arguments);
            kubectl(&[
                "create",
                "clusterrole",
                &role,
                &format!("--verb={verbs}"),
                &format!("--resource={resource}"),
            ])?;
            kubectl(&[
                "create",
                "clusterrolebinding",
                &role,
                &format!("--clusterrole={role}"),
                &format!("--serviceaccount={account}"),
            ])?;
            let allowed = ["auth", "can-i", "create", resource, &user];
            until("the role to be in force", PATIENCE, || {
                Ok(match kubectl(&allowed) {
                    Ok(_) => Look::Found(()),
                    Err(error) => Look::NotYet(error.to_string()),
                })
            })?;
        }
        Ok(Self {
            control_plane,
            login: control_plane.kubeconfig_for_service_account(&namespace, "default")?,
            scratch: Scratch::new(name)?,
            namespace,
        })
    }

    /// A file with `login`, for `--kubeconfig`.
    fn file(&self, name: &str, login: &Kubeconfig) -> Result<PathBuf> {
        let path = self.scratch.path().join(name);
        login.write(&path)?;
        Ok(path)
    }

    /// A client as a daemon has it, and the metrics it counts in.
    async fn client(&self, name: &str, login: &Kubeconfig) -> Result<(Client, Metrics)> {
        let metrics = Metrics::new(PROGRAM);
        let path = self.file(name, login)?;
        let config = evenkeel_daemon::kubeconfig(Some(&path))
            .await
            .doing(|| "no kubeconfig")?;
        let client = evenkeel_daemon::connect(config, PROGRAM, &metrics).doing(|| "no client")?;
        Ok((client, metrics))
    }
}

//! OpenShift's machine-config operator, as the rest of a cluster meets it: the controller that renders, rolls out and drains is
//! its own program, and on every node there is a double of its daemon.
//!
//! What that program wants in the cluster before it works (kinds, a `ControllerConfig`, feature gates, a pull secret) is made
//! here, as little of it as will do. On OpenShift other operators make it.

mod daemon;
mod objects;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

pub use self::daemon::DaemonDouble;
use crate::control_plane::ControlPlane;
use crate::go_module::{GoModule, GoProgram, GoTool};
use crate::need::Need;
use crate::process::Running;
use crate::scratch::Scratch;
use crate::wait::{Look, until};
use crate::{Doing, Result};

const CONTROLLER: GoTool = GoTool {
    module: GoModule {
        folder: "machine-config-operator",
        go_mod: include_str!("../../machine-config-operator/go.mod"),
        go_sum: include_str!("../../machine-config-operator/go.sum"),
        own: &[],
        otherwise: "set MACHINE_CONFIG_CONTROLLER to the path of a machine-config-controller program",
    },
    program: GoProgram {
        name: "machine-config-controller",
        package: "github.com/openshift/machine-config-operator/cmd/machine-config-controller",
        // Without it a library in C is linked, for signatures of images.
        tags: "containers_image_openpgp",
        takes: "3 minutes",
    },
    version_of: "github.com/openshift/machine-config-operator",
    variable: "MACHINE_CONFIG_CONTROLLER",
};

/// Where it runs on OpenShift, and where its leader's Lease is.
pub const NAMESPACE: &str = "openshift-machine-config-operator";
/// Who writes as it.
pub const USER: &str =
    "system:serviceaccount:openshift-machine-config-operator:machine-config-controller";
/// How long the API server may take to serve a new kind.
const SERVED: Duration = Duration::from_secs(30);
/// How long it may take to stop and to give its Lease back.
const STOP: Duration = Duration::from_secs(30);

/// Their controller, while it runs.
#[derive(Debug)]
pub struct MachineConfigController {
    running: Mutex<Running>,
    scratch: Scratch,
}

impl MachineConfigController {
    /// What a test needs that runs it.
    pub const NEED: Need = Need::Made(can_be_had);

    /// Makes its program ready, so that the first start does not have to.
    pub fn prepare() -> Result<()> {
        CONTROLLER.find().map(|_| ())
    }

    /// Makes the kinds and the objects that it wants, in place of kinds of ours that have the same names: on OpenShift they are
    /// there first.
    pub fn install(control_plane: &ControlPlane) -> Result<()> {
        let scratch = Scratch::new("openshift")?;
        apply(control_plane, &scratch, &objects::kinds())?;
        // Established is not yet served.
        until("OpenShift's kinds to be served", SERVED, || {
            let served = control_plane.kubectl(&["get", &objects::plurals()]);
            Ok(match served {
                Ok(_) => Look::Found(()),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })?;
        apply(control_plane, &scratch, &objects::wanted())?;
        // What an operator says of its work is a status, which nobody can make together with the object.
        for (kind, name, status) in objects::statuses() {
            let patch = serde_json::json!({ "status": status }).to_string();
            let words = ["patch", kind, name, "--subresource=status", "--type=merge"];
            control_plane.kubectl(&[&words[..], &["--patch", patch.as_str()][..]].concat())?;
        }
        Ok(())
    }

    /// Starts it where [`install`](Self::install) was before.
    pub fn start(control_plane: &ControlPlane) -> Result<Self> {
        let scratch = Scratch::new("machine-config-controller")?;
        let templates = scratch.path().join("templates");
        let base = templates.join(objects::TEMPLATE.0);
        let folder = base.parent().unwrap_or(&templates);
        std::fs::create_dir_all(folder).doing(|| "cannot make a folder of templates")?;
        std::fs::write(&base, objects::TEMPLATE.1).doing(|| "cannot write a template")?;
        let login = scratch.path().join("kubeconfig");
        control_plane
            .kubeconfig_for_user(USER, &["system:masters"])?
            .write(&login)?;
        let mut command = Command::new(CONTROLLER.find()?);
        command
            .args(["start", "--v=2"])
            .arg(format!("--kubeconfig={}", login.display()))
            .arg(format!("--templates={}", templates.display()))
            .arg(format!("--payload-version={}", objects::RELEASE))
            .arg(format!("--resourcelock-namespace={NAMESPACE}"))
            // Any port that is free.
            .arg("--metrics-listen-address=127.0.0.1:0");
        let running = Running::start("machine-config-controller", &mut command, &log(&scratch))?;
        Ok(Self {
            running: Mutex::new(running),
            scratch,
        })
    }

    /// An error with its last words, if it has ended.
    pub fn still_runs(&self) -> Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.still_runs()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(log(&self.scratch)).unwrap_or_default()
    }

    /// Tells it to stop: it gives its Lease back.
    pub async fn stop(self) -> Result<()> {
        let running = self.running.into_inner();
        let mut running = running.unwrap_or_else(PoisonError::into_inner);
        running.stop(STOP).await
    }
}

fn can_be_had() -> Result<()> {
    CONTROLLER.can_be_had()
}

fn log(scratch: &Scratch) -> PathBuf {
    scratch.path().join("log")
}

fn apply(control_plane: &ControlPlane, scratch: &Scratch, items: &[Value]) -> Result<()> {
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": items });
    let file = scratch.path().join("objects.json");
    std::fs::write(&file, list.to_string()).doing(|| "cannot write OpenShift's objects")?;
    let file = file.display().to_string();
    control_plane
        .kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file])
        .map(|_| ())
}

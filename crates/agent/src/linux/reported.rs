//! What a Linux machine says of itself to the reporter.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::annotation;
use evenkeel_api::readiness::Check;
use evenkeel_host::disk::Host;
use evenkeel_host::{linux, probe};
use evenkeel_plan::readiness::Question;

use super::kubelet::KubeletFinder;
use super::machine::Machine;
use crate::node_report::{NodeSnapshot, ReportedMachine};

/// The machine, and where its root is for this program.
#[derive(Debug)]
pub(crate) struct LinuxReport {
    pub(crate) machine: Arc<Machine>,
    pub(crate) kubelet: Arc<KubeletFinder>,
    pub(crate) root: PathBuf,
    /// Programs that probes may run.
    pub(crate) allowed: Vec<String>,
}

impl ReportedMachine for LinuxReport {
    fn boot_id(&self) -> String {
        let boot_id = self.machine.host.boot_id();
        boot_id.map_or_else(|_| String::new(), |it| it.0)
    }

    fn kubelet_start(&self) -> String {
        self.kubelet.start().unwrap_or_default()
    }

    fn state(&self, seen: &NodeSnapshot) -> NodeState {
        let said = seen.annotations.get(annotation::STATE).cloned();
        said.unwrap_or_default().into()
    }

    fn ask(&self, question: &Question) -> Result<(), String> {
        let name = match &question.check {
            Check::Service { name } => name,
            // A socket is a file of the machine, wherever that is mounted.
            Check::UnixSocket { path } => {
                let path = self.root.join(path.trim_start_matches('/'));
                let path = path.display().to_string();
                return probe::ask(&Check::UnixSocket { path }, &[], question.timeout);
            }
            Check::Exec { command } => {
                return linux::exec_probe(&self.root, command, &self.allowed, question.timeout);
            }
            other => return probe::ask(other, &question.addresses, question.timeout),
        };
        match self.machine.host.is_active(name) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("service {name} is not running")),
            Err(error) => Err(error.with_causes()),
        }
    }
}

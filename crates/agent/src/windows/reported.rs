//! What a Windows machine says of itself to the reporter.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::readiness::{CertificateReport, Check};
use evenkeel_host::disk::Host;
use evenkeel_host::probe;
use evenkeel_host::windows::Started;
use evenkeel_plan::readiness::Question;

use super::machine::Machine;
use super::metrics::AgentMetrics;
use crate::node_report::{NodeSnapshot, ReportedMachine};

/// The service of the kubelet.
const KUBELET: &str = "kubelet";

/// The machine, and what was last seen of its services.
#[derive(Debug)]
pub(crate) struct WindowsReport {
    machine: Arc<Machine>,
    metrics: AgentMetrics,
    boot_id: OnceLock<String>,
    started: Mutex<BTreeMap<String, Started>>,
}

impl WindowsReport {
    pub(crate) fn new(machine: Arc<Machine>, metrics: AgentMetrics) -> Self {
        Self {
            machine,
            metrics,
            boot_id: OnceLock::new(),
            started: Mutex::default(),
        }
    }

    /// Which start of a service this is; nothing if it does not run.
    fn start_of(&self, service: &str) -> Option<String> {
        let mut known = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.get(service).is_some_and(Started::lasts) {
            known.remove(service);
            known.insert(service.to_owned(), Started::of(service)?);
        }
        known.get(service).map(|it| it.mark().to_owned())
    }
}

impl ReportedMachine for WindowsReport {
    fn boot_id(&self) -> String {
        if let Some(known) = self.boot_id.get() {
            return known.clone();
        }
        match self.machine.host.boot_id() {
            // This program does not outlive a boot.
            Ok(found) => self.boot_id.get_or_init(|| found.0).clone(),
            Err(_) => String::new(),
        }
    }

    fn kubelet_start(&self) -> String {
        self.start_of(KUBELET).unwrap_or_default()
    }

    fn state(&self, _: &NodeSnapshot) -> NodeState {
        self.metrics.state()
    }

    fn certificates(&self) -> Option<CertificateReport> {
        self.metrics.certificates()
    }

    fn ask(&self, question: &Question) -> Result<(), String> {
        let Check::Service { name } = &question.check else {
            return probe::ask(&question.check, &question.addresses, question.timeout);
        };
        let runs = self.start_of(name);
        runs.map(|_| ())
            .ok_or_else(|| format!("service {name} is not running"))
    }
}

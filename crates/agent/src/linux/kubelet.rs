//! The machine's kubelet, as systemd runs it: which unit that is and which start of it. Which of several it is, is decided by
//! `evenkeel_plan::readiness::KubeletSettings`.

use std::sync::Arc;

use evenkeel_plan::readiness::{Kubelet, KubeletSettings};
use tokio::sync::watch;

use super::machine::Machine;

/// The kubelet that was set or found.
#[derive(Debug)]
pub(crate) struct KubeletFinder {
    machine: Arc<Machine>,
    settings: KubeletSettings,
    found: watch::Sender<Kubelet>,
}

impl KubeletFinder {
    pub(crate) fn new(machine: Arc<Machine>, settings: KubeletSettings) -> Self {
        let found = settings.find(None, |unit| machine.host.invocation(unit).is_some());
        tracing::info!(
            unit = found.unit,
            folder = found.folder,
            "watches this kubelet"
        );
        Self {
            machine,
            settings,
            found: watch::Sender::new(found),
        }
    }

    /// Which kubelet it is, from now on.
    pub(crate) fn found(&self) -> watch::Receiver<Kubelet> {
        self.found.subscribe()
    }

    /// Which start of the kubelet this is; nothing while it is down.
    pub(crate) fn start(&self) -> Option<String> {
        let start = |unit: &str| self.machine.host.invocation(unit);
        let before = self.found.borrow().clone();
        if let Some(running) = start(&before.unit) {
            return Some(running);
        }
        let now = self
            .settings
            .find(Some(&before), |unit| start(unit).is_some());
        if now == before {
            return None;
        }
        tracing::info!(
            unit = now.unit,
            folder = now.folder,
            "watches another kubelet"
        );
        let running = start(&now.unit);
        self.found.send_replace(now);
        running
    }
}

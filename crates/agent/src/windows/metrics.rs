//! The agent's own metrics, for Prometheus: by the same names as on Linux.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::readiness::CertificateReport;
use evenkeel_daemon::{Metrics, metrics};
use evenkeel_host::watch;
use evenkeel_host::windows::trust::Writes;
use evenkeel_plan::machine::phase::Phase;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::state;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::metrics::NodeMetrics;

/// What drifts, as it is counted.
const CLASSES: [&str; 3] = ["service", "variable", "file"];

metrics! {
    /// What only a Windows node counts. Clones count the same.
    struct WindowsMetrics {
        trust_writes: Family<WriteLabels, Counter> = "evenkeel_node_trust_writes",
            "Certificates imported into or removed from the trusted roots";
    }
    labels WriteLabels { what: &'static str }
}

/// What the node report says besides.
#[derive(Debug, Default)]
struct Known {
    state: NodeState,
    certificates: Option<CertificateReport>,
}

/// What an agent counts. Clones count the same.
#[derive(Debug, Clone)]
pub(crate) struct AgentMetrics {
    /// Those that every node has.
    pub(crate) node: NodeMetrics,
    own: WindowsMetrics,
    known: Arc<Mutex<Known>>,
}

impl AgentMetrics {
    /// Those that `metrics` shows.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        let shown = Self {
            node: NodeMetrics::shown_in(metrics),
            own: WindowsMetrics::shown_in(metrics),
            known: Arc::default(),
        };
        shown.wrote(Writes::default());
        shown.nothing_drifts();
        shown
    }

    /// The node is in `phase`.
    pub(crate) fn is_in(&self, phase: &Phase) {
        let state = state::of(phase);
        self.node.is_in(state.as_ref());
        self.known().state = state.unwrap_or_default();
    }

    /// The state that the node is in.
    pub(crate) fn state(&self) -> NodeState {
        self.known().state.clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody begins to look from the start.
    pub(crate) fn nothing_drifts(&self) {
        for class in CLASSES {
            self.node.drifted(class).set(0);
        }
    }

    /// Something drifted, or is right again.
    pub(crate) fn observe(&self, event: &watch::Event) {
        let (finding, change) = match event {
            watch::Event::Drifted {
                finding,
                again: false,
                ..
            } => (finding, 1),
            watch::Event::Healed { finding, .. } | watch::Event::Recovered { finding } => {
                (finding, -1)
            }
            _ => return,
        };
        let class = match &finding.resource {
            Resource::Service(_) => "service",
            Resource::Variable(_) => "variable",
            _ => "file",
        };
        self.node.drifted(class).inc_by(change);
    }

    /// So many certificates are among the trusted roots.
    pub(crate) fn trusts(&self, counts: CertificateReport) {
        self.known().certificates = Some(counts);
    }

    /// How many certificates are among the trusted roots, once somebody has looked.
    pub(crate) fn certificates(&self) -> Option<CertificateReport> {
        self.known().certificates
    }

    /// The store of trusted roots was changed by so many calls.
    pub(crate) fn wrote(&self, writes: Writes) {
        for (what, count) in [("import", writes.imports), ("remove", writes.removals)] {
            let counter = self.own.trust_writes.get_or_create(&WriteLabels { what });
            counter.inc_by(count);
        }
    }
}

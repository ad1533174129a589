//! The agent's own metrics, for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_daemon::Metrics;
use evenkeel_host::verify::Finding;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::state::NodeState;
use evenkeel_plan::machine::targets::Part;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::update_history::{Stage, UpdateHistory};
use crate::metrics::NodeMetrics;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

/// What managed paths are, as drift is counted.
const CLASSES: [&str; 5] = ["file", "unit", "drop-in", "unit-link", "ssh-keys"];

/// What an agent counts.
#[derive(Debug, Default)]
pub(crate) struct AgentMetrics {
    node: NodeMetrics,
    reboots: Counter,
    drains: Counter,
    update: Family<PhaseLabels, Gauge<f64, AtomicU64>>,
    login: Gauge,
}

impl AgentMetrics {
    /// Those that `metrics` shows.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        let drift = "Managed paths that have drifted and are not being healed, by class";
        let shown = Self {
            node: NodeMetrics::shown_in(metrics, drift),
            ..Self::default()
        };
        metrics.register(|registry| {
            registry.register(
                "evenkeel_node_reboots",
                "Reboots for a configuration, over the life of the machine",
                shown.reboots.clone(),
            );
            registry.register(
                "evenkeel_node_drains",
                "Drains requested for a configuration, over the life of the machine",
                shown.drains.clone(),
            );
            registry.register(
                "evenkeel_node_update_seconds",
                "Duration of the last update in seconds, by phase",
                shown.update.clone(),
            );
            registry.register(
                "evenkeel_node_ssh_login_timestamp_seconds",
                "Time of the last SSH login in seconds since 1970, 0 if there was none since the agent started",
                shown.login.clone(),
            );
        });
        shown.have_drifted(&[]);
        shown
    }

    /// The node is in `state`.
    pub(crate) fn is_in(&self, state: NodeState) {
        self.node.is_in(Some(state));
    }

    /// These paths have drifted, and no others.
    pub(crate) fn have_drifted(&self, findings: &[&Finding]) {
        for class in CLASSES {
            let paths = findings.iter().filter(|it| class_of(it) == class).count();
            let paths = i64::try_from(paths).unwrap_or(i64::MAX);
            self.node.drifted(class).set(paths);
        }
    }

    /// Somebody logged in over SSH just now.
    pub(crate) fn was_logged_in_to(&self) {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let seconds = since.map_or(0, |since| since.as_secs());
        self.login.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Those that every node has.
    pub(crate) fn of_node(&self) -> &NodeMetrics {
        &self.node
    }

    /// Shows what is in `history`.
    pub(crate) fn show(&self, history: &UpdateHistory) {
        // They only ever grow, over boots too.
        self.reboots
            .inner()
            .fetch_max(history.reboots, Ordering::Relaxed);
        self.drains
            .inner()
            .fetch_max(history.drains, Ordering::Relaxed);
        for stage in Stage::ALL {
            let phase = stage.as_str();
            let took = history.last.get(&stage).copied().unwrap_or_default();
            self.update.get_or_create(&PhaseLabels { phase }).set(took);
        }
    }
}

fn class_of(finding: &Finding) -> &'static str {
    match (&finding.part, &finding.resource) {
        (Part::DropIn(_), _) => "drop-in",
        (Part::Mask | Part::Enablement, _) => "unit-link",
        (_, Resource::Unit(_)) => "unit",
        (_, Resource::AuthorisedKeys(_)) => "ssh-keys",
        _ => "file",
    }
}

//! The agent's own metrics, for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_daemon::{Metrics, gauge_of, metrics};
use evenkeel_host::verify::Finding;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::Part;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::update_history::{Stage, UpdateHistory};
use crate::metrics::NodeMetrics;

/// What managed paths are, as drift is counted.
const CLASSES: [&str; 5] = ["file", "unit", "drop-in", "unit-link", "ssh-keys"];

metrics! {
    /// What only a Linux node counts.
    struct LinuxMetrics {
        reboots: Counter = "evenkeel_node_reboots",
            "Reboots for a configuration, over the life of the machine";
        drains: Counter = "evenkeel_node_drains",
            "Drains requested for a configuration, over the life of the machine";
        update: Family<PhaseLabels, Gauge<f64, AtomicU64>> = "evenkeel_node_update_seconds",
            "Duration of the last update in seconds, by phase";
        login: Gauge = "evenkeel_node_ssh_login_timestamp_seconds",
            "Time of the last SSH login in seconds since 1970, 0 if there was none since the agent started";
    }
    labels PhaseLabels { phase: &'static str }
}

/// What an agent counts.
#[derive(Debug)]
pub(crate) struct AgentMetrics {
    /// Those that every node has.
    pub(crate) node: NodeMetrics,
    own: LinuxMetrics,
}

impl AgentMetrics {
    /// Those that `metrics` shows.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        let shown = Self {
            node: NodeMetrics::shown_in(metrics),
            own: LinuxMetrics::shown_in(metrics),
        };
        shown.have_drifted(&[]);
        shown
    }

    /// The node is in `state`.
    pub(crate) fn is_in(&self, state: &NodeState) {
        self.node.is_in(Some(state));
    }

    /// These paths have drifted, and no others.
    pub(crate) fn have_drifted(&self, findings: &[&Finding]) {
        for class in CLASSES {
            let paths = findings.iter().filter(|it| class_of(it) == class).count();
            self.node.drifted(class).set(gauge_of(paths));
        }
    }

    /// Somebody logged in over SSH just now.
    pub(crate) fn was_logged_in_to(&self) {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let seconds = since.map_or(0, |since| since.as_secs());
        self.own
            .login
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Shows what is in `history`.
    pub(crate) fn show(&self, history: &UpdateHistory) {
        // They only ever grow, over boots too.
        self.own
            .reboots
            .inner()
            .fetch_max(history.reboots, Ordering::Relaxed);
        self.own
            .drains
            .inner()
            .fetch_max(history.drains, Ordering::Relaxed);
        for stage in Stage::ALL {
            let phase = stage.as_str();
            let took = history.last.get(&stage).copied().unwrap_or_default();
            self.own
                .update
                .get_or_create(&PhaseLabels { phase })
                .set(took);
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

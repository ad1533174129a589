//! The agent's own numbers, for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_daemon::Metrics;
use evenkeel_host::verify::Finding;
use evenkeel_plan::linux_node::State;
use evenkeel_plan::resource::Resource;
use evenkeel_plan::targets::Part;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::logbook::{Logbook, Stage};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

/// What managed paths are, as drift is counted.
const CLASSES: [&str; 5] = ["file", "unit", "drop-in", "unit-link", "ssh-keys"];

/// What an agent counts.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    state: Family<StateLabels, Gauge>,
    drifted: Family<ClassLabels, Gauge>,
    events: Family<ReasonLabels, Counter>,
    reboots: Counter,
    drains: Counter,
    update: Family<PhaseLabels, Gauge<f64, AtomicU64>>,
    login: Gauge,
}

impl Numbers {
    /// Numbers that `metrics` show.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        let numbers = Self::default();
        metrics.register(|registry| {
            registry.register(
                "evenkeel_node_state",
                "1 for the state that this node is in, else 0",
                numbers.state.clone(),
            );
            registry.register(
                "evenkeel_node_drifted_paths",
                "Managed paths that are not as declared and are not being healed, by what they are",
                numbers.drifted.clone(),
            );
            registry.register(
                "evenkeel_node_events",
                "What was told of this node, by the reason of the Event",
                numbers.events.clone(),
            );
            registry.register(
                "evenkeel_node_reboots",
                "Boots that a configuration waited for, over the life of the machine",
                numbers.reboots.clone(),
            );
            registry.register(
                "evenkeel_node_drains",
                "Times that pods were asked to leave, over the life of the machine",
                numbers.drains.clone(),
            );
            registry.register(
                "evenkeel_node_update_seconds",
                "What the last update took, by phase",
                numbers.update.clone(),
            );
            registry.register(
                "evenkeel_node_ssh_login_timestamp_seconds",
                "When somebody last logged in over SSH, 0 if nobody did since this program started",
                numbers.login.clone(),
            );
        });
        numbers.have_drifted(&[]);
        numbers
    }

    /// The node is in `state`.
    pub(crate) fn is_in(&self, state: State) {
        for each in [State::Done, State::Working, State::Degraded] {
            let labels = StateLabels {
                state: each.as_str(),
            };
            self.state
                .get_or_create(&labels)
                .set(i64::from(each == state));
        }
    }

    /// These paths have drifted, and no others.
    pub(crate) fn have_drifted(&self, findings: &[&Finding]) {
        for class in CLASSES {
            let paths = findings.iter().filter(|it| class_of(it) == class).count();
            self.drifted
                .get_or_create(&ClassLabels { class })
                .set(i64::try_from(paths).unwrap_or(i64::MAX));
        }
    }

    /// Somebody logged in over SSH just now.
    pub(crate) fn was_logged_in_to(&self) {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let seconds = since.map_or(0, |since| since.as_secs());
        self.login.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Something was told, for `reason`.
    pub(crate) fn told(&self, reason: &'static str) {
        self.events.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Shows what is in `logbook`.
    pub(crate) fn show(&self, logbook: &Logbook) {
        // They only ever grow, over boots too.
        self.reboots
            .inner()
            .fetch_max(logbook.reboots, Ordering::Relaxed);
        self.drains
            .inner()
            .fetch_max(logbook.drains, Ordering::Relaxed);
        for stage in Stage::ALL {
            let phase = stage.as_str();
            let took = logbook.last.get(&stage).copied().unwrap_or_default();
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

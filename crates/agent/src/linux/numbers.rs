//! The agent's own numbers, for Prometheus.

use evenkeel_daemon::Metrics;
use evenkeel_plan::linux_node::State;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// What an agent counts.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    state: Family<StateLabels, Gauge>,
    drifted: Gauge,
    events: Family<ReasonLabels, Counter>,
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
                "Managed paths that are not as declared and are not being healed",
                numbers.drifted.clone(),
            );
            registry.register(
                "evenkeel_node_events",
                "What was told of this node, by the reason of the Event",
                numbers.events.clone(),
            );
        });
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

    /// So many paths have drifted.
    pub(crate) fn have_drifted(&self, paths: usize) {
        self.drifted.set(i64::try_from(paths).unwrap_or(i64::MAX));
    }

    /// Something was told, for `reason`.
    pub(crate) fn told(&self, reason: &'static str) {
        self.events.get_or_create(&ReasonLabels { reason }).inc();
    }
}

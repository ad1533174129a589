//! Numbers of a node that have the same names on both systems.

use evenkeel_daemon::Metrics;
use evenkeel_plan::state::State;
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

/// State, drift and what was told. Clones count the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeMetrics {
    state: Family<StateLabels, Gauge>,
    drifted: Family<ClassLabels, Gauge>,
    events: Family<ReasonLabels, Counter>,
}

impl NodeMetrics {
    /// Numbers that `metrics` show; `drift` says what counts as drifted.
    pub(crate) fn shown_in(metrics: &Metrics, drift: &str) -> Self {
        let numbers = Self::default();
        metrics.register(|registry| {
            registry.register(
                "evenkeel_node_state",
                "1 for the state that this node is in, else 0",
                numbers.state.clone(),
            );
            registry.register(
                "evenkeel_node_drifted_paths",
                drift,
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

    /// The node is in `state`, or in none yet.
    pub(crate) fn is_in(&self, state: Option<State>) {
        for each in [State::Done, State::Working, State::Degraded] {
            let labels = StateLabels {
                state: each.as_str(),
            };
            self.state
                .get_or_create(&labels)
                .set(i64::from(state == Some(each)));
        }
    }

    /// The state that the node is in, in one word; empty if in none yet.
    #[cfg(windows)]
    pub(crate) fn state(&self) -> &'static str {
        let is_in = |state: &State| {
            let state = state.as_str();
            let gauge = self.state.get(&StateLabels { state });
            gauge.is_some_and(|gauge| gauge.get() == 1)
        };
        let mut states = [State::Done, State::Working, State::Degraded].into_iter();
        states.find(is_in).map_or("", State::as_str)
    }

    /// How much of this kind has drifted.
    pub(crate) fn drifted(&self, class: &'static str) -> Gauge {
        let gauge = self.drifted.get_or_create(&ClassLabels { class });
        Gauge::clone(&gauge)
    }

    /// Something was told, for `reason`.
    pub(crate) fn told(&self, reason: &'static str) {
        self.events.get_or_create(&ReasonLabels { reason }).inc();
    }
}

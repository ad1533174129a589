//! Metrics of a node that have the same names on both systems.

use evenkeel_daemon::metrics;
use evenkeel_plan::machine::state::NodeState;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

metrics! {
    /// State, drift and Events. Clones count the same.
    pub(crate) struct NodeMetrics {
        state: Family<StateLabels, Gauge> = "evenkeel_node_state",
            "1 for the state that this node is in, 0 for the others";
        drifted: Family<ClassLabels, Gauge> = "evenkeel_node_drifted_paths",
            "Managed paths, services and variables that have drifted and are not healed, by class";
        events: Family<ReasonLabels, Counter> = "evenkeel_node_events",
            "Events of this node, by reason";
    }
    labels StateLabels { state: &'static str }
    labels ReasonLabels { reason: String }
    labels ClassLabels { class: &'static str }
}

impl NodeMetrics {
    /// The node is in `state`, or in none yet.
    pub(crate) fn is_in(&self, state: Option<NodeState>) {
        for each in [NodeState::Done, NodeState::Working, NodeState::Degraded] {
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
        let is_in = |state: &NodeState| {
            let state = state.as_str();
            let gauge = self.state.get(&StateLabels { state });
            gauge.is_some_and(|gauge| gauge.get() == 1)
        };
        let mut states = [NodeState::Done, NodeState::Working, NodeState::Degraded].into_iter();
        states.find(is_in).map_or("", NodeState::as_str)
    }

    /// How much of this kind has drifted.
    pub(crate) fn drifted(&self, class: &'static str) -> Gauge {
        let gauge = self.drifted.get_or_create(&ClassLabels { class });
        Gauge::clone(&gauge)
    }

    /// An Event with this `reason` was sent.
    pub(crate) fn told(&self, reason: &str) {
        let reason = reason.to_owned();
        self.events.get_or_create(&ReasonLabels { reason }).inc();
    }
}

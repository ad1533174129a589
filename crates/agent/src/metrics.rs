//! Metrics of a node that have the same names on both systems.

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_daemon::metrics;
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
    labels StateLabels { state: String }
    labels ReasonLabels { reason: String }
    labels ClassLabels { class: &'static str }
}

impl NodeMetrics {
    /// The node is in `state`, or in none yet.
    pub(crate) fn is_in(&self, state: Option<&NodeState>) {
        for each in NodeState::ALL {
            let is_so = i64::from(state == Some(&each));
            let state = each.into();
            self.state.get_or_create(&StateLabels { state }).set(is_so);
        }
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

//! How we live with OpenShift's own operators, as a metric.

use evenkeel_daemon::Metrics;
use evenkeel_plan::fleet::coexistence::{Coexistence, Half};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// For each half of our work, how we live with whose it is on OpenShift. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct CoexistenceMetrics {
    states: Family<HalfState, Gauge>,
    idle: Family<HalfName, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HalfState {
    half: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HalfName {
    half: &'static str,
}

impl CoexistenceMetrics {
    /// Metrics that `metrics` shows.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.register(|registry| {
            registry.register(
                "evenkeel_coexistence",
                "1 for the current state of coexistence with an operator of OpenShift: absent, alive, lapsed, waiting, taken-over",
                own.states.clone(),
            );
            registry.register(
                "evenkeel_idle",
                "1 while Evenkeel is idle because an operator of OpenShift does this half of the work",
                own.idle.clone(),
            );
        });
        own
    }

    /// We live with the operator of `half` like this.
    pub(crate) fn coexists(&self, half: Half, coexistence: Coexistence) {
        let half = half.word();
        for it in Coexistence::ALL {
            let state = it.word();
            self.states
                .get_or_create(&HalfState { half, state })
                .set(i64::from(it == coexistence));
        }
        self.idle
            .get_or_create(&HalfName { half })
            .set(i64::from(coexistence.is_idle()));
    }
}

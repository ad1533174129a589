//! How we live with OpenShift's own operators, as a metric.

use evenkeel_daemon::metrics;
use evenkeel_plan::fleet::coexistence::{Coexistence, Half};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

metrics! {
    /// For each half of our work, how we live with whose it is on OpenShift. Clones are the same.
    pub(crate) struct CoexistenceMetrics {
        states: Family<HalfState, Gauge> = "evenkeel_coexistence",
            "1 for the current state of coexistence with an operator of OpenShift: absent, alive, lapsed, waiting, taken-over";
        idle: Family<HalfName, Gauge> = "evenkeel_idle",
            "1 while Evenkeel is idle because an operator of OpenShift does this half of the work";
    }
    labels HalfState { half: &'static str, state: &'static str }
    labels HalfName { half: &'static str }
}

impl CoexistenceMetrics {
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

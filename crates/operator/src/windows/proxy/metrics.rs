//! The metrics of the egress proxy and of its trust bundle. No value of a variable is ever among them.

use evenkeel_daemon::metrics;
use evenkeel_plan::windows::proxy::{ProxyDecision, Source, Variable};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

metrics! {
    /// The proxy, counted. Clones are the same.
    pub(crate) struct ProxyMetrics {
        source: Family<SourceLabel, Gauge> = "evenkeel_proxy_source",
            "1 for the source of the proxy of Windows nodes: environment, cluster, chart";
        invalid: Family<VariableLabel, Gauge> = "evenkeel_proxy_invalid",
            "1 while a variable of the proxy is invalid and its last good value is used";
        pending: Gauge = "evenkeel_trust_bundle_pending",
            "1 while there is a proxy and its trust bundle is empty";
        bundles: Family<Reason, Counter> = "evenkeel_trust_bundles",
            "Changes of the ConfigMap with the trust bundle, by reason of the Event";
    }
    labels SourceLabel { source: &'static str }
    labels VariableLabel { variable: &'static str }
    labels Reason { reason: String }
}

impl ProxyMetrics {
    /// That was decided.
    pub(crate) fn decided(&self, decision: &ProxyDecision) {
        for source in Source::ALL {
            let is_it = decision.source == Some(source);
            let source = source.word();
            let gauge = self.source.get_or_create(&SourceLabel { source });
            gauge.set(i64::from(is_it));
        }
        for variable in Variable::ALL {
            let mut problems = decision.problems.iter();
            let is_it = problems.any(|it| it.variable == variable);
            let variable = variable.name();
            let gauge = self.invalid.get_or_create(&VariableLabel { variable });
            gauge.set(i64::from(is_it));
        }
    }

    /// Whether the trust bundle waits to be filled in.
    pub(crate) fn pending(&self, is_so: bool) {
        self.pending.set(i64::from(is_so));
    }

    /// Something was done about the ConfigMap with the trust bundle.
    pub(crate) fn bundle(&self, reason: &str) {
        let reason = reason.to_owned();
        self.bundles.get_or_create(&Reason { reason }).inc();
    }
}

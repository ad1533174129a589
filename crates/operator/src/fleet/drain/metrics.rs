//! The metrics of the drain controller.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use evenkeel_daemon::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Drains and evictions, counted. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct DrainMetrics {
    drains: Counter,
    seconds: Counter<f64, AtomicU64>,
    evictions: Family<Answer, Counter>,
    draining: Gauge,
    waiting: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    answer: &'static str,
}

impl DrainMetrics {
    /// Numbers that `metrics` shows.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.register(|registry| {
            registry.register("evenkeel_drains", "Completed drains", own.drains.clone());
            registry.register(
                "evenkeel_drains_duration_seconds",
                "Total time from permit to completion of all drains",
                own.seconds.clone(),
            );
            registry.register(
                "evenkeel_evictions",
                "Eviction requests by answer: accepted, gone, budget, misconfigured, busy, failed",
                own.evictions.clone(),
            );
            registry.register(
                "evenkeel_nodes_draining",
                "Nodes that are being drained or uncordoned",
                own.draining.clone(),
            );
            registry.register(
                "evenkeel_nodes_waiting",
                "Nodes that wait for a permit to be drained",
                own.waiting.clone(),
            );
        });
        own
    }

    /// A drain was answered, so long after it got its permit.
    pub(crate) fn drained(&self, took: Duration) {
        self.drains.inc();
        self.seconds.inc_by(took.as_secs_f64());
    }

    /// An eviction was asked for, and answered.
    pub(crate) fn evicted(&self, answer: &'static str) {
        self.evictions.get_or_create(&Answer { answer }).inc();
    }

    /// So many nodes are worked on, and so many wait.
    pub(crate) fn nodes(&self, draining: usize, waiting: usize) {
        self.draining
            .set(i64::try_from(draining).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }
}

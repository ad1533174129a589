//! The metrics of the drain controller.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use evenkeel_daemon::{gauge_of, metrics};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

metrics! {
    /// Drains and evictions, counted. Clones are the same.
    pub(crate) struct DrainMetrics {
        drains: Counter = "evenkeel_drains",
            "Completed drains";
        seconds: Counter<f64, AtomicU64> = "evenkeel_drains_duration_seconds",
            "Total time from permit to completion of all drains";
        evictions: Family<Answer, Counter> = "evenkeel_evictions",
            "Eviction requests by answer: accepted, gone, budget, misconfigured, busy, failed";
        draining: Gauge = "evenkeel_nodes_draining",
            "Nodes that are being drained or uncordoned";
        waiting: Gauge = "evenkeel_nodes_waiting",
            "Nodes that wait for a permit to be drained";
    }
    labels Answer { answer: &'static str }
}

impl DrainMetrics {
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
        self.draining.set(gauge_of(draining));
        self.waiting.set(gauge_of(waiting));
    }
}

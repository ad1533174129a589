//! The metrics of pools.

use evenkeel_daemon::{gauge_of, metrics};
use evenkeel_plan::fleet::rollout::PoolCounts;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// How a node can be.
const STATES: [&str; 6] = [
    "total",
    "updated",
    "ready",
    "unavailable",
    "degraded",
    "moving",
];

metrics! {
    /// Pools and their nodes, counted. Clones are the same.
    pub(crate) struct PoolMetrics {
        nodes: Family<PoolState, Gauge> = "evenkeel_pool_nodes",
            "Nodes of a pool by state: total, updated, ready, unavailable, degraded, moving";
        stopped: Family<PoolName, Gauge> = "evenkeel_pool_stopped",
            "1 while the rollout of a pool is stopped because nodes fail";
        rendered: Family<Outcome, Counter> = "evenkeel_renderings",
            "Rendered configurations of pools by outcome: made, failed";
        told: Counter = "evenkeel_nodes_told",
            "Writes of a desired configuration on a node";
    }
    labels PoolState { pool: String, state: &'static str }
    labels PoolName { pool: String }
    labels Outcome { outcome: &'static str }
}

impl PoolMetrics {
    /// So many nodes of a pool are how.
    pub(crate) fn pool(&self, pool: &str, counts: PoolCounts, stopped: bool) {
        let counts = [
            counts.total,
            counts.updated,
            counts.ready,
            counts.unavailable,
            counts.degraded,
            counts.moving,
        ];
        for (state, count) in STATES.into_iter().zip(counts) {
            let pool = pool.to_owned();
            self.nodes
                .get_or_create(&PoolState { pool, state })
                .set(gauge_of(count));
        }
        let pool = pool.to_owned();
        self.stopped
            .get_or_create(&PoolName { pool })
            .set(i64::from(stopped));
    }

    /// There is no such pool any more.
    pub(crate) fn forget(&self, pool: &str) {
        for state in STATES {
            let pool = pool.to_owned();
            self.nodes.remove(&PoolState { pool, state });
        }
        let pool = pool.to_owned();
        self.stopped.remove(&PoolName { pool });
    }

    /// A pool's configuration was made, or could not be.
    pub(crate) fn rendered(&self, outcome: &'static str) {
        self.rendered.get_or_create(&Outcome { outcome }).inc();
    }

    /// So many nodes were told what to run.
    pub(crate) fn told(&self, nodes: usize) {
        self.told.inc_by(u64::try_from(nodes).unwrap_or(u64::MAX));
    }
}

//! What the operator does, one controller a file: observe, plan, apply, report.

pub(crate) mod drain;
pub(crate) mod readiness;
pub(crate) mod render;
pub(crate) mod rollout;

use evenkeel_daemon::{Daemon, Events, Stop};
use evenkeel_plan::drain::Settings;
use evenkeel_plan::readiness::Limits;
use kube::Client;

use crate::beside::Beside;
use crate::configs::Configs;
use crate::drain_metrics::DrainMetrics;
use crate::nodes::Nodes;
use crate::pool_metrics::PoolMetrics;
use crate::pools::Pools;
use crate::readiness_metrics::ReadinessMetrics;
use crate::rules::Rules;

/// What the person who runs the operator says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Only Nodes that match this label selector.
    pub(crate) nodes: Option<String>,
    /// Only pools that match this label selector.
    pub(crate) pools: Option<String>,
    /// Only readiness rules that match this label selector.
    pub(crate) rules: Option<String>,
    /// How careful readiness is when much is wrong at once.
    pub(crate) limits: Limits,
    /// The namespace that our own Lease is in.
    pub(crate) namespace: String,
    /// How long a drain may take, and what then, where the pool does not say.
    pub(crate) drain: Settings,
}

impl Options {
    /// Whether every node of a pool that we care for is one that we care for.
    fn sees_all_nodes(&self) -> bool {
        self.nodes.is_none() || self.pools.is_some()
    }
}

/// What all controllers look at. Clones are the same.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) events: Events,
    pub(crate) stop: Stop,
    pub(crate) nodes: Nodes,
    pub(crate) pools: Pools,
    pub(crate) configs: Configs,
    pub(crate) beside: Beside,
}

impl Shared {
    /// Whether nodes, pools and who else is here are known: nobody decides before.
    pub(crate) fn is_listed(&self) -> bool {
        self.nodes.store().is_listed() && self.pools.store().is_listed() && self.beside.is_known()
    }
}

/// Runs all controllers until the daemon is asked to stop.
pub(crate) async fn run(
    daemon: &Daemon,
    drains: &DrainMetrics,
    pools: &PoolMetrics,
    readiness: &ReadinessMetrics,
    options: &Options,
) {
    let client = daemon.client();
    let rules = Rules::new(client.clone());
    let shared = Shared {
        events: daemon.events().clone(),
        stop: daemon.stop().clone(),
        nodes: Nodes::new(client.clone()),
        pools: Pools::new(client.clone()),
        configs: Configs::new(client.clone()),
        beside: Beside::new(),
        client: client.clone(),
    };
    let (stop, health) = (daemon.stop(), daemon.health());
    tokio::join!(
        shared
            .nodes
            .keep(options.nodes.as_deref(), health.check("nodes"), stop),
        shared
            .pools
            .keep(options.pools.as_deref(), health.check("pools"), stop),
        shared.configs.keep(health.check("configs"), stop),
        shared.beside.keep(client, stop),
        drain::run(&shared, drains, options.drain),
        render::run(&shared, pools, options.sees_all_nodes()),
        rollout::run(&shared, pools),
        rules.keep(options.rules.as_deref(), health.check("rules"), stop),
        readiness::run(
            &shared,
            readiness::Needs {
                rules: &rules,
                metrics: readiness,
                drains,
                limits: options.limits,
                namespace: &options.namespace,
            }
        ),
    );
}

//! Starts every controller, and keeps each of them running: observe, plan, apply, report.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

use evenkeel_daemon::panics::supervise;
use evenkeel_daemon::{Daemon, Metrics, Term};
use evenkeel_plan::fleet::coexistence::Half;
use evenkeel_plan::fleet::drain::DrainSettings;
use evenkeel_plan::readiness::Limits;
use evenkeel_plan::windows::upgrade::gate::{self, Kubernetes};
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;

use crate::fleet::coexistence::metrics::CoexistenceMetrics;
use crate::fleet::coexistence::{Neighbours, Voice};
use crate::fleet::configs::Configs;
use crate::fleet::drain::metrics::DrainMetrics;
use crate::fleet::metrics::PoolMetrics;
use crate::fleet::nodes::Nodes;
use crate::fleet::permits::PermitRecords;
use crate::fleet::pools::Pools;
use crate::fleet::{drain, render, rollout};
use crate::installation::Installation;
use crate::readiness;
use crate::readiness::metrics::ReadinessMetrics;
use crate::readiness::rules::Rules;
use crate::shared::Shared;
use crate::windows::certificates::configuring::Configuring;
use crate::windows::instances::{
    Fleet, HostKeys, InstanceMetrics, Known, MachineSets, Machines, Records, Removals, controller,
};
use crate::windows::metrics::WindowsMetrics;
use crate::windows::pool::Windows;
use crate::windows::proxy::metrics::ProxyMetrics;
use crate::windows::proxy::store::Proxy;
use crate::windows::services::store::ServiceMaps;
use crate::windows::ssh::Ssh;
use crate::windows::trusted_ca::store::TrustedCa;
use crate::windows::{certificates, nodes, offer, operator_condition, proxy, services, trusted_ca};

/// What the person who runs the operator says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Only Nodes that match this label selector.
    pub(crate) nodes: Option<String>,
    /// Only pools that match this label selector.
    pub(crate) pools: Option<String>,
    /// Only Machines that match this label selector.
    pub(crate) machines: Option<String>,
    /// Only readiness rules that match this label selector.
    pub(crate) rules: Option<String>,
    /// How careful readiness is when much is wrong at once.
    pub(crate) limits: Limits,
    /// The namespace that our own Lease is in.
    pub(crate) namespace: String,
    /// The pod that we are, if we are one.
    pub(crate) pod: Option<String>,
    /// How long a drain may take, and what then, where the pool does not say.
    pub(crate) drain: DrainSettings,
    /// The payload of Windows instances; without one nothing is done for them.
    pub(crate) payload: Option<PathBuf>,
    /// The name of the WindowsPool.
    pub(crate) windows_pool: String,
    /// The `OperatorCondition` in which OLM reads whether a newer version may be installed.
    pub(crate) operator_condition: Option<String>,
    /// The oldest Kubernetes on which Windows nodes are upgraded, if not the usual one.
    pub(crate) minimum_kubernetes: Option<Kubernetes>,
    /// What is taken over from OpenShift's own operators, once they are gone.
    pub(crate) take_over: BTreeSet<Half>,
    /// What is said about instances.
    pub(crate) instances: controller::InstanceOptions,
    /// What is said about the proxy of Windows nodes.
    pub(crate) proxy: proxy::Given,
}

impl Options {
    /// Whether every node of a pool that we care for is one that we care for.
    fn sees_all_nodes(&self) -> bool {
        self.nodes.is_none() || self.pools.is_some()
    }
}

/// The metrics of all controllers.
pub(crate) struct ControllerMetrics {
    pub(crate) drains: DrainMetrics,
    pub(crate) pools: PoolMetrics,
    pub(crate) readiness: ReadinessMetrics,
    pub(crate) windows: WindowsMetrics,
    pub(crate) instances: InstanceMetrics,
    pub(crate) proxy: ProxyMetrics,
    pub(crate) coexistence: CoexistenceMetrics,
}

impl ControllerMetrics {
    /// Those that `metrics` shows.
    pub(crate) fn shown_in(metrics: &Metrics) -> Self {
        Self {
            drains: DrainMetrics::shown_in(metrics),
            pools: PoolMetrics::shown_in(metrics),
            readiness: ReadinessMetrics::shown_in(metrics),
            windows: WindowsMetrics::shown_in(metrics),
            instances: InstanceMetrics::shown_in(metrics),
            proxy: ProxyMetrics::shown_in(metrics),
            coexistence: CoexistenceMetrics::shown_in(metrics),
        }
    }
}

/// Runs all controllers until the daemon is asked to stop.
pub(crate) async fn run(
    daemon: &Daemon,
    metrics: &ControllerMetrics,
    options: &Options,
    term: Term,
) {
    let client = daemon.client();
    let rules = Rules::new(client.clone());
    let pools = Pools::new(client.clone());
    let windows = Windows::new(client.clone(), &options.windows_pool);
    let permits = PermitRecords::new(&client, &options.namespace, &pools, &windows, term);
    let shared = Shared {
        events: daemon.events().clone(),
        stop: daemon.stop().clone(),
        nodes: Nodes::new(client.clone()),
        pools,
        configs: Configs::new(client.clone()),
        coexistence: Neighbours::new(options.take_over.clone()),
        windows,
        permits,
        has_windows: options.payload.is_some(),
        client: client.clone(),
    };
    let (stop, health) = (daemon.stop(), daemon.health());
    let voice = Voice {
        client,
        events: daemon.events(),
        metrics: &metrics.coexistence,
        namespace: &options.namespace,
    };
    let (of_nodes, of_pools) = (options.nodes.as_deref(), options.pools.as_deref());
    let of_rules = options.rules.as_deref();
    let drains = async || {
        let own = Installation::new(&options.namespace, options.pod.as_deref());
        drain::run(&shared, &metrics.drains, options.drain, own).await;
    };
    let readiness = async || {
        let needs = readiness::Needs {
            rules: &rules,
            metrics: &metrics.readiness,
            drains: &metrics.drains,
            limits: options.limits,
            namespace: &options.namespace,
        };
        readiness::run(&shared, needs).await;
    };
    let controllers = Controllers::default();
    let controllers = controllers
        .and("nodes", async || {
            let check = health.check("nodes");
            shared.nodes.keep(of_nodes, check, stop).await;
        })
        .and("pools", async || {
            let check = health.check("pools");
            shared.pools.keep(of_pools, check, stop).await;
        })
        .and("configs", async || {
            shared.configs.keep(health.check("configs"), stop).await;
        })
        .and("coexistence", async || {
            shared.coexistence.keep(voice.clone(), stop).await;
        })
        .and("drain", drains)
        .and("render", async || {
            render::run(&shared, &metrics.pools, options.sees_all_nodes()).await;
        })
        .and("rollout", async || {
            rollout::run(&shared, &metrics.pools).await;
        })
        .and("operator-condition", async || {
            let name = options.operator_condition.as_deref();
            operator_condition::run(&shared, name, &options.namespace).await;
        })
        .and("rules", async || {
            rules.keep(of_rules, health.check("rules"), stop).await;
        })
        .and("readiness", readiness);
    let windows = care_for_windows(&shared, daemon, metrics, options);
    tokio::join!(controllers.run(), windows);
}

/// Controllers that run beside each other. A wake of one costs the others nothing.
#[derive(Default)]
struct Controllers<'c>(FuturesUnordered<LocalBoxFuture<'c, ()>>);

impl<'c> Controllers<'c> {
    /// One more, which starts again if it panics.
    fn and(self, name: &'static str, work: impl AsyncFn() + 'c) -> Self {
        self.0
            .push(Box::pin(async move { supervise(name, work).await }));
        self
    }

    /// Runs them to their end.
    async fn run(mut self) {
        while self.0.next().await.is_some() {}
    }
}

/// Everything for Windows nodes; without a payload there is nothing to do.
async fn care_for_windows(
    shared: &Shared,
    daemon: &Daemon,
    metrics: &ControllerMetrics,
    options: &Options,
) {
    let Some(payload) = &options.payload else {
        tracing::info!("no payload: Windows nodes are not managed (set --payload)");
        return;
    };
    let (stop, health) = (daemon.stop(), daemon.health());
    let maps = ServiceMaps::new(daemon.client(), &options.namespace);
    let ssh = match Ssh::new() {
        Ok(ssh) => ssh,
        Err(error) => {
            tracing::error!("cannot start the SSH threads, Windows nodes are not managed: {error}");
            return;
        }
    };
    let (client, namespace) = (daemon.client(), options.namespace.as_str());
    let proxy = Proxy::new(client.clone());
    let bundle = TrustedCa::new(client.clone(), namespace);
    let configuring = Configuring::default();
    let fleet = Rc::new(Fleet {
        namespace: namespace.to_owned(),
        events: shared.events.clone(),
        ssh,
        records: Records::new(client.clone(), namespace),
        removals: Removals::default(),
        host_keys: HostKeys::new(client.clone(), namespace),
        windows: shared.windows.clone(),
        configuring: configuring.clone(),
        metrics: metrics.instances.clone(),
        machines: Machines::new(client.clone(), options.machines.as_deref()),
        machine_sets: MachineSets::new(client.clone()),
        known: Known::default(),
        client,
    });
    let minimum = options.minimum_kubernetes.unwrap_or(gate::MINIMUM);
    let controllers = Controllers::default();
    let controllers = controllers
        .and("windows-pool", async || {
            let check = health.check("windows-pool");
            shared.windows.keep(check, stop).await;
        })
        .and("services", async || {
            maps.keep(health.check("services"), stop).await;
        })
        .and("proxy", async || {
            proxy.keep(health.check("proxy"), stop).await;
        })
        .and("trusted-ca", async || {
            bundle.keep(health.check("trusted-ca"), stop).await;
        })
        .and("proxy", async || {
            proxy::run(shared, &proxy, &maps, &options.proxy, &metrics.proxy).await;
        })
        .and("trusted-ca", async || {
            trusted_ca::run(shared, &bundle, &proxy, &metrics.proxy).await;
        })
        .and("offer", async || {
            offer::run(shared, payload, &options.namespace, &proxy).await;
        })
        .and("services", async || {
            services::run(shared, &maps, &metrics.windows).await;
        })
        .and("windows-nodes", async || {
            nodes::run(shared, &fleet, &metrics.windows, minimum).await;
        })
        .and("instances", async || {
            Box::pin(controller::run(shared, &fleet, &options.instances)).await;
        })
        .and("certificates", async || {
            certificates::run(shared, &fleet, namespace).await;
        });
    controllers.run().await;
}

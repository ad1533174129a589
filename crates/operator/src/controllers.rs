//! Starts every controller, and keeps each of them running: observe, plan, apply, report.

use std::rc::Rc;

use evenkeel_daemon::panics::supervise;
use evenkeel_daemon::{Daemon, Metrics, Term};
use evenkeel_plan::fleet::coexistence::Half;
use evenkeel_plan::fleet::drain::DrainSettings;
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;

use crate::arguments::Run;
use crate::fleet::coexistence::metrics::CoexistenceMetrics;
use crate::fleet::coexistence::{Neighbours, Voice};
use crate::fleet::configs::Configs;
use crate::fleet::disruption_policy::DisruptionPolicies;
use crate::fleet::drain::metrics::DrainMetrics;
use crate::fleet::metrics::PoolMetrics;
use crate::fleet::nodes::Nodes;
use crate::fleet::permits::PermitRecords;
use crate::fleet::policies::Policies;
use crate::fleet::pools::Pools;
use crate::fleet::{drain, render, rollout};
use crate::installation::Installation;
use crate::readiness;
use crate::readiness::metrics::ReadinessMetrics;
use crate::readiness::nrc::NrcRules;
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
    arguments: &Run,
    drain: DrainSettings,
    term: Term,
) {
    let client = daemon.client();
    let rules = Rules::new(client.clone());
    let theirs = arguments.nrc_rules.then(|| NrcRules::new(client.clone()));
    let policies = Policies::new(client.clone());
    let pools = Pools::new(client.clone(), &policies);
    let windows = Windows::new(client.clone(), &arguments.windows_pool, &policies);
    let permits = PermitRecords::new(&client, &arguments.namespace, &pools, &windows, term);
    let shared = Shared {
        events: daemon.events().clone(),
        stop: daemon.stop().clone(),
        nodes: Nodes::new(client.clone()),
        pools,
        policies,
        configs: Configs::new(client.clone()),
        disruption_policies: DisruptionPolicies::default(),
        coexistence: Neighbours::new(arguments.take_over.iter().copied().collect()),
        windows,
        permits,
        has_windows: arguments.payload.is_some(),
        client: client.clone(),
    };
    let (stop, health) = (daemon.stop(), daemon.health());
    let voice = Voice {
        client,
        events: daemon.events(),
        metrics: &metrics.coexistence,
        namespace: &arguments.namespace,
    };
    let (of_nodes, of_pools) = (
        arguments.node_selector.as_deref(),
        arguments.pool_selector.as_deref(),
    );
    let of_rules = arguments.rule_selector.as_deref();
    let drains = async || {
        let own = Installation::new(
            &arguments.namespace,
            arguments.pod_name.as_deref().filter(|it| !it.is_empty()),
        );
        drain::run(&shared, &metrics.drains, drain, own).await;
    };
    let readiness = async || {
        let needs = readiness::Needs {
            rules: &rules,
            nrc: theirs.as_ref(),
            metrics: &metrics.readiness,
            drains: &metrics.drains,
            limits: arguments.limits.limits(),
            namespace: &arguments.namespace,
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
        .and("policies", async || {
            shared.policies.keep(health.check("policies"), stop).await;
        })
        .and("configs", async || {
            shared.configs.keep(health.check("configs"), stop).await;
        })
        .and("disruption-policy", async || {
            let policies = &shared.disruption_policies;
            Box::pin(policies.keep(&shared.client, &arguments.namespace, stop)).await;
        })
        .and("coexistence", async || {
            shared.coexistence.keep(voice.clone(), stop).await;
        })
        .and("drain", drains)
        .and("render", async || {
            render::run(&shared, &metrics.pools, arguments.sees_all_nodes()).await;
        })
        .and("rollout", async || {
            rollout::run(&shared, &metrics.pools, drain).await;
        })
        .and("operator-condition", async || {
            let name = arguments
                .operator_condition
                .as_deref()
                .filter(|it| !it.is_empty());
            operator_condition::run(&shared, name, &arguments.namespace).await;
        })
        .and("rules", async || {
            rules.keep(of_rules, health.check("rules"), stop).await;
        })
        .and("nrc-rules", async || {
            if let Some(theirs) = &theirs {
                let check = health.check("nrc-rules");
                tokio::join!(
                    theirs.keep(of_rules, check, stop),
                    theirs.follow_leader(stop),
                );
            }
        })
        .and("readiness", readiness);
    let windows = care_for_windows(&shared, daemon, metrics, arguments);
    tokio::join!(controllers.run(), windows);
}

/// Controllers that run at the same time. A wake of one costs the others nothing.
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
    arguments: &Run,
) {
    let Some(payload) = &arguments.payload else {
        tracing::info!("no payload: Windows nodes are not managed (set --payload)");
        return;
    };
    let (stop, health) = (daemon.stop(), daemon.health());
    let maps = ServiceMaps::new(daemon.client(), &arguments.namespace);
    let ssh = match Ssh::new() {
        Ok(ssh) => ssh,
        Err(error) => {
            tracing::error!("cannot start the SSH threads, Windows nodes are not managed: {error}");
            return;
        }
    };
    let (client, namespace) = (daemon.client(), arguments.namespace.as_str());
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
        machines: Machines::new(
            client.clone(),
            arguments.instances.machine_selector.as_deref(),
        ),
        machine_sets: MachineSets::new(client.clone()),
        known: Known::default(),
        takes_over: arguments.take_over.contains(&Half::Windows),
        client,
    });
    let given = arguments.proxy.given();
    let instances = controller::InstanceOptions {
        machine_user: arguments.instances.machine_user.clone(),
        work_within: arguments.instances.instance_timeout,
        leave_within: arguments.instances.leave_timeout,
    };
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
            proxy::run(shared, &proxy, &maps, &given, &metrics.proxy).await;
        })
        .and("trusted-ca", async || {
            trusted_ca::run(shared, &bundle, &proxy, &metrics.proxy).await;
        })
        .and("offer", async || {
            offer::run(shared, payload, &arguments.namespace, &proxy).await;
        })
        .and("services", async || {
            services::run(shared, &maps, &metrics.windows).await;
        })
        .and("windows-nodes", async || {
            nodes::run(
                shared,
                &fleet,
                &metrics.windows,
                arguments.minimum_kubernetes,
            )
            .await;
        })
        .and("instances", async || {
            Box::pin(controller::run(shared, &fleet, &instances)).await;
        })
        .and("certificates", async || {
            certificates::run(shared, &fleet, namespace).await;
        });
    controllers.run().await;
}

//! Many nodes in one process: one client, one watch of pods and one round of Leases for all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::Client;

use super::kubelet::Kubelet;
use super::{NodeDescription, NodeDouble, pods, rounds, spawn};
use crate::Result;
use crate::kubeconfig::Kubeconfig;

/// Nodes that share what a thousand of them cannot have each.
#[derive(Debug)]
pub struct NodeFleet(Vec<NodeDouble>);

impl NodeFleet {
    /// Registers all of `nodes`, logged in with `login` but for those with a certificate of their own,
    /// and keeps them alive. `login` must be allowed to watch pods. Leases are renewed as often as
    /// the first node wants.
    pub async fn start(nodes: Vec<NodeDescription>, login: &Kubeconfig) -> Result<Self> {
        let login = login.clone();
        spawn(async move {
            let client = login.client().await?;
            let shared = (Arc::new(login), client.clone());
            let interval = nodes
                .first()
                .map_or(Duration::from_secs(10), |node| node.lease_interval);
            let fleet: Vec<_> = futures::stream::iter(nodes)
                .map(|node| NodeDouble::log_in(node, shared.clone()))
                .buffered(rounds::AT_ONCE)
                .try_collect()
                .await?;
            let kubelets: Vec<_> = fleet.iter().map(|node| node.kubelet.clone()).collect();
            // The rounds begin before all are registered: on a slow machine the first would be given
            // up by the time the last is there.
            tokio::spawn(run(client, kubelets.clone(), interval));
            futures::stream::iter(kubelets)
                .map(|kubelet| async move { kubelet.register().await })
                .buffer_unordered(rounds::AT_ONCE)
                .try_collect::<()>()
                .await?;
            Ok(Self(fleet))
        })
        .await
    }

    /// Its nodes, in the order in which they were described.
    pub fn nodes(&self) -> &[NodeDouble] {
        &self.0
    }

    /// Takes the nodes apart from each other; they go on sharing what they share.
    pub fn into_nodes(self) -> Vec<NodeDouble> {
        self.0
    }
}

async fn run(client: Client, kubelets: Vec<Arc<Kubelet>>, interval: Duration) {
    let by_name: HashMap<_, _> = kubelets
        .iter()
        .map(|kubelet| (kubelet.name().to_owned(), kubelet.clone()))
        .collect();
    tokio::select! {
        () = rounds::go(kubelets, interval) => {}
        () = pods::follow_all(client, by_name) => {}
    }
}

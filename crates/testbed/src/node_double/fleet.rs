//! Many nodes in one process: one client, one watch of pods and one round of Leases for all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};

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
            let kubelets: Vec<_> = futures::stream::iter(nodes)
                .map(|node| NodeDouble::register(node, shared.clone()))
                .buffered(rounds::AT_ONCE)
                .try_collect()
                .await?;
            let by_name: HashMap<_, _> = kubelets
                .iter()
                .map(|kubelet| (kubelet.name().to_owned(), kubelet.clone()))
                .collect();
            tokio::spawn(rounds::go(kubelets.clone(), interval));
            tokio::spawn(pods::follow_all(client, by_name));
            let doubles = kubelets.into_iter().map(|kubelet| NodeDouble { kubelet });
            Ok(Self(doubles.collect()))
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

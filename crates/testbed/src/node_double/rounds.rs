//! When each node's Lease is renewed: one round over all nodes of a fleet takes one interval, so that
//! the renewals are spread evenly and no node needs a timer of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::kubelet::Kubelet;

/// How many requests of one fleet may be under way.
pub(super) const AT_ONCE: usize = 16;

/// How long one visit may take before the connection counts as dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// Goes round until every node is gone.
pub(super) async fn go(kubelets: Vec<Arc<Kubelet>>, interval: Duration) {
    let step = interval / u32::try_from(kubelets.len()).unwrap_or(u32::MAX).max(1);
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let mut visits = JoinSet::new();
    let mut due = Instant::now();
    while !kubelets.iter().all(|kubelet| kubelet.is_gone()) {
        for kubelet in &kubelets {
            // After a time without answers the round goes on from now; it does not catch up.
            due = (due + step).max(Instant::now());
            tokio::time::sleep_until(due).await;
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let kubelet = kubelet.clone();
            visits.spawn(async move {
                // A visit that fails is made again in the next round, as a kubelet would.
                let _ = tokio::time::timeout(PATIENCE, kubelet.visit()).await;
                drop(slot);
            });
            while visits.try_join_next().is_some() {}
        }
    }
}

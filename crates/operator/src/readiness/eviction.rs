//! Evicts the pods of one node that is not ready for long, within their budgets, until none is left that
//! is to go or the node is ready again.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use evenkeel_api::notice::Notice;
use evenkeel_plan::readiness;
use jiff::Timestamp;
use tokio::sync::watch;

use super::Shared;
use crate::fleet::drain::metrics::DrainMetrics;
use crate::fleet::nodes::Seen;
use crate::fleet::pods;

/// The pauses between two looks, while nobody goes.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Evicts until it is stopped. New pods that tolerate nothing cannot come: the node is tainted.
pub(super) async fn run(
    shared: &Shared,
    metrics: &DrainMetrics,
    seen: &Seen,
    mut stop: watch::Receiver<bool>,
) {
    let node = seen.node.name.as_str();
    let announce = |notice| {
        let events = &shared.events;
        events.notify(seen.reference(), "Readiness", notice);
    };
    let mut attempts = BTreeMap::new();
    let mut pauses = PAUSES;
    let mut is_told = false;
    while !*stop.borrow() && !shared.stop.is_asked() {
        match pods::of_node(&shared.client, node).await {
            Ok(pods) => {
                let chosen = readiness::evict(&pods, &attempts, Timestamp::now());
                if !is_told && !chosen.is_empty() {
                    is_told = true;
                    let note = format!(
                        "the node is not ready for too long: evicting {} pods",
                        chosen.len()
                    );
                    announce(Notice::warning("EvictingPods", note));
                }
                // One after the other: who is ready again keeps the rest.
                let chosen = chosen.into_iter().take_while(|_| !*stop.borrow());
                let client = &shared.client;
                let evicted =
                    pods::evict(client, node, chosen, 1, &mut attempts, metrics, announce).await;
                if evicted > 0 {
                    pauses.reset();
                }
            }
            Err(error) => {
                tracing::warn!(node, "cannot list the node's pods, will retry: {error}");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pauses.next_pause()) => {}
            _ = stop.changed() => {}
            () = shared.stop.stopped() => {}
        }
    }
    if is_told && *stop.borrow() {
        let message =
            "the node is ready again, or no rule selects it any more: no more pods are evicted";
        announce(Notice::normal("EvictionStopped", message));
    }
}

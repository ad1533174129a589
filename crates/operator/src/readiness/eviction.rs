//! Evicts the pods of one node that is not ready for long, within their budgets, until none is left that
//! is to go or the node is ready again.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::notice::Notice;
use evenkeel_plan::fleet::drain::{self, Attempt};
use evenkeel_plan::readiness;
use jiff::Timestamp;
use tokio::sync::watch;

use super::Shared;
use crate::fleet::drain::metrics::DrainMetrics;
use crate::fleet::nodes::Seen;
use crate::fleet::pods::{self, Eviction};

/// The first pause between two looks; it doubles while nobody goes.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Evicts until it is stopped. New pods that tolerate nothing cannot come: the node is tainted.
pub(super) async fn run(
    shared: &Shared,
    metrics: &DrainMetrics,
    seen: &Seen,
    mut stop: watch::Receiver<bool>,
) {
    let node = seen.node.name.as_str();
    let mut attempts: BTreeMap<String, Attempt> = BTreeMap::new();
    let mut pause = FIRST_PAUSE;
    let mut is_told = false;
    while !*stop.borrow() && !shared.stop.is_asked() {
        match pods::of_node(&shared.client, node).await {
            Ok(pods) => {
                let now = Timestamp::now();
                let chosen = readiness::evict(&pods, &attempts, now);
                if !is_told && !chosen.is_empty() {
                    is_told = true;
                    let note = format!(
                        "the node is not ready for too long: evicting {} pods",
                        chosen.len()
                    );
                    announce(shared, seen, Notice::warning("EvictingPods", note));
                }
                let mut evicted = Vec::new();
                for pod in chosen {
                    if *stop.borrow() {
                        break;
                    }
                    match pods::evict(&shared.client, pod).await {
                        Eviction::Accepted => {
                            metrics.evicted("accepted");
                            attempts.remove(&pod.uid);
                            evicted.push(pod);
                        }
                        Eviction::Gone => metrics.evicted("gone"),
                        Eviction::Refused(refusal, wait) => {
                            metrics.evicted(refusal.category());
                            if let Some(notice) = drain::refused(pod, &refusal) {
                                announce(shared, seen, notice);
                            }
                            let times = attempts.get(&pod.uid).map_or(0, |it| it.times) + 1;
                            let at = Timestamp::now();
                            let attempt = Attempt {
                                times,
                                at,
                                wait,
                                refusal,
                            };
                            attempts.insert(pod.uid.clone(), attempt);
                        }
                    }
                }
                for notice in drain::losses(&evicted) {
                    announce(shared, seen, notice);
                }
                pause = if evicted.is_empty() {
                    (pause * 2).min(LONGEST_PAUSE)
                } else {
                    FIRST_PAUSE
                };
            }
            Err(error) => {
                tracing::warn!(node, "cannot list the node's pods, will retry: {error}");
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.changed() => {}
            () = shared.stop.stopped() => {}
        }
    }
    if is_told && *stop.borrow() {
        let message =
            "the node is ready again, or no rule selects it any more: no more pods are evicted";
        announce(shared, seen, Notice::normal("EvictionStopped", message));
    }
}

fn announce(shared: &Shared, seen: &Seen, notice: Notice) {
    shared.events.notify(seen.reference(), "Readiness", notice);
}

//! Evicts the pods of one node that is not ready for long, within their budgets, until none is left that
//! is to go or the node is ready again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use evenkeel_api::notice::Notice;
use evenkeel_api::readiness::RuleTaint;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::readiness;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::Shared;
use super::feeds::Heard;
use crate::fleet::drain::metrics::DrainMetrics;
use crate::fleet::nodes::reference;

use crate::fleet::pods;

/// The taints that pods must tolerate to stay; nothing to evict none.
pub(super) type Asked = Option<BTreeSet<RuleTaint>>;

/// The pauses between two looks, while nobody goes.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Evicts those that do not tolerate the `asked` taints until nothing is asked any more, and tells once when they are gone. New
/// pods that tolerate nothing cannot come: the node is tainted.
pub(super) async fn run(
    shared: &Shared,
    metrics: &DrainMetrics,
    seen: &NodeFacts,
    mut asked: watch::Receiver<Asked>,
    heard: &mpsc::Sender<Heard>,
) {
    let node = seen.node.name.as_str();
    let announce = |notice| {
        let events = &shared.events;
        events.notify(reference(seen), "Readiness", notice);
    };
    let mut attempts = BTreeMap::new();
    let mut pauses = PAUSES;
    let mut is_told = false;
    let mut gone = None;
    while !shared.stop.is_asked() {
        let Some(taints) = asked.borrow().clone() else {
            break;
        };
        match pods::of_node(&shared.client, node).await {
            Ok(pods) => {
                if readiness::are_gone(&pods, &taints) && gone.as_ref() != Some(&taints) {
                    gone = Some(taints.clone());
                    _ = heard.send(Heard::Evicted(node.to_owned(), taints)).await;
                    continue;
                }
                let chosen = readiness::evict(&pods, &taints, &attempts, Timestamp::now());
                if !is_told && !chosen.is_empty() {
                    is_told = true;
                    let note = format!(
                        "the node is not ready for too long: evicting {} pods",
                        chosen.len()
                    );
                    announce(Notice::warning("EvictingPods", note));
                }
                // One after the other: who is ready again keeps the rest.
                let chosen = chosen.into_iter().take_while(|_| asked.borrow().is_some());
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
            _ = asked.changed() => {}
            () = shared.stop.stopped() => {}
        }
    }
    if is_told && asked.borrow().is_none() {
        let message =
            "the node is ready again, or no rule selects it any more: no more pods are evicted";
        announce(Notice::normal("EvictionStopped", message));
    }
}

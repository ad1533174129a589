//! Carries out what was decided: each piece of work is a future of its own that leaves no choices.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::notice::Notice;
use evenkeel_api::readiness::RuleTaint;
use evenkeel_plan::fleet::drain::Pod;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::readiness::{Feed, ReadinessAction};
use futures::FutureExt;
use jiff::Timestamp;
use kube::Client;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use super::feeds::LATE;
use super::{Done, Read, ReadinessController, Written, eviction, feeds};
use crate::fleet::nodes::{self, Nodes};
use crate::fleet::pods;

impl ReadinessController<'_> {
    pub(super) fn carry_out(&mut self, action: ReadinessAction) {
        let nodes = self.shared.nodes.clone();
        match action {
            ReadinessAction::Write {
                node,
                patch,
                change,
                exposed,
            } => {
                if let Some(notice) = change.notice() {
                    self.announce(&node, notice);
                }
                let what = change.word();
                if exposed {
                    self.count_pods(node.clone());
                }
                let work = async move {
                    let outcome = written(&nodes, &node, nodes.patch(&node, &patch).await).await;
                    Done::Written {
                        node,
                        what,
                        outcome,
                    }
                };
                self.work.push(work.boxed_local());
            }
            ReadinessAction::Publish { node, conditions } => {
                let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let conditions: Vec<_> = conditions
                    .into_iter()
                    .map(|it| {
                        json!({
                            "type": it.kind, "status": it.status, "reason": it.reason,
                            "message": it.message,
                            "lastHeartbeatTime": now, "lastTransitionTime": now,
                        })
                    })
                    .collect();
                let work = async move {
                    let published = nodes.publish(&node, &json!(conditions)).await;
                    let outcome = written(&nodes, &node, published).await;
                    Done::Written {
                        node,
                        what: "condition",
                        outcome,
                    }
                };
                self.work.push(work.boxed_local());
            }
            ReadinessAction::Confirm { node, places } => {
                let client = self.shared.client.clone();
                let work = async move {
                    let found = read(&client, &nodes, &node, places).await;
                    Done::Read { node, found }
                };
                self.work.push(work.boxed_local());
            }
            ReadinessAction::Relist(_)
            | ReadinessAction::Evict { .. }
            | ReadinessAction::Spare(_) => {
                self.requests -= 1;
            }
        }
    }

    fn announce(&self, node: &str, notice: Notice) {
        let reference = |all: &BTreeMap<String, NodeFacts>| all.get(node).map(nodes::reference);
        if let Some(object) = self.shared.nodes.store().look(reference) {
            self.shared.events.notify(object, "Readiness", notice);
        }
    }

    /// Counts the pods that came to a node while it had no taint.
    fn count_pods(&mut self, node: String) {
        let client = self.shared.client.clone();
        let work = async move {
            let pods = pods::of_node(&client, &node).await.unwrap_or_default();
            let came = |it: &&Pod| !it.tolerates_readiness && it.stays().is_none();
            Done::Exposed(pods.iter().filter(came).count())
        };
        self.work.push(work.boxed_local());
    }

    pub(super) fn evict(&mut self, node: String, taints: BTreeSet<RuleTaint>) {
        if let Some(running) = self.evictions.get(&node) {
            let is_going_on = running.borrow().is_some();
            if is_going_on {
                running.send_replace(Some(taints));
                return;
            }
        }
        let (sender, asked) = watch::channel(Some(taints));
        let seen = self
            .shared
            .nodes
            .store()
            .look(|all| all.get(&node).cloned());
        if let Some(seen) = seen {
            self.evictions.insert(node.clone(), sender);
            let heard = self.heard.clone();
            let (shared, drains) = (self.shared.clone(), self.needs.drains.clone());
            let work = async move {
                eviction::run(&shared, &drains, &seen, asked, &heard).await;
                Done::Evicted(node)
            };
            self.work.push(work.boxed_local());
        }
    }
}

/// Reads fresh what a node is silent about; without `places` that is a condition of the Node itself.
async fn read(client: &Client, nodes: &Nodes, node: &str, places: Vec<(Feed, String)>) -> Read {
    if places.is_empty() {
        match timeout(LATE, nodes.read(node)).await {
            Ok(Ok(Some(seen))) => nodes.store().put(seen),
            Ok(Ok(None)) => {}
            Ok(Err(_)) | Err(_) => return Read::Failed,
        }
    }
    let mut found = Vec::new();
    for (feed, name) in places {
        // A kind of somebody else is served by who serves it: the API server is looked at elsewhere.
        let is_theirs = matches!(feed, Feed::Objects { .. });
        match timeout(LATE, feeds::read(client, &feed, &name)).await {
            Ok(Ok(snapshot)) => found.push((feed, name, snapshot)),
            Ok(Err(kube::Error::Api(status))) if is_theirs || status.code == 403 => {
                return Read::Refused(feed, status.message);
            }
            Err(_) if is_theirs => {
                let why = format!("no answer within {LATE:?}");
                return Read::Refused(feed, why);
            }
            Ok(Err(_)) | Err(_) => return Read::Failed,
        }
    }
    Read::Found(found)
}

/// What became of a write. Who was refused has read what is there.
async fn written(nodes: &Nodes, node: &str, answer: kube::Result<NodeFacts>) -> Written {
    let (now, is_written) = match answer {
        // 409: somebody wrote at the same time. 422: a test of the patch failed. 404: it is gone.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {
            (nodes.read(node).await, false)
        }
        answer => (answer.map(Some), true),
    };
    match now {
        Ok(seen) => Written::Now {
            seen: seen.map(|seen| {
                nodes.store().put(seen.clone());
                Box::new(seen)
            }),
            is_written,
        },
        Err(error) => Written::Failed(error.to_string()),
    }
}

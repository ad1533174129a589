//! Where the own Node says that it is, for probes that are asked there. Few rules have such probes, so it is read only for them,
//! and not held by the watch.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

use super::lease;

/// How long what was read is good: addresses change with a reboot, if ever.
const GOOD: Duration = Duration::from_mins(1);

/// The addresses of the Node.
pub(super) struct Addresses {
    api: Api<Node>,
    node: String,
    asked: Option<Instant>,
    pub(super) known: Vec<String>,
}

impl Addresses {
    pub(super) fn new(client: &Client, node: &str) -> Self {
        Self {
            api: Api::all(client.clone()),
            node: node.to_owned(),
            asked: None,
            known: Vec::new(),
        }
    }

    pub(super) async fn read_if_stale(&mut self) {
        let good = if self.known.is_empty() {
            super::ASK_AGAIN
        } else {
            GOOD
        };
        if self.asked.is_some_and(|it| it.elapsed() < good) {
            return;
        }
        self.asked = Some(Instant::now());
        let read = self.api.get_opt(&self.node);
        match tokio::time::timeout(lease::ANSWER, read).await {
            Ok(Ok(node)) => {
                let status = node.and_then(|it| it.status);
                let all = status.and_then(|it| it.addresses).unwrap_or_default();
                self.known = all.into_iter().map(|it| it.address).collect();
            }
            // What was known is good as long as nothing else is.
            Ok(Err(error)) => tracing::warn!(%error, "cannot read the addresses of the Node"),
            Err(_) => {
                tracing::warn!(
                    "cannot read the addresses of the Node: the API server did not answer"
                );
            }
        }
    }
}

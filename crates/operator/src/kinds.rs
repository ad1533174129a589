//! Kinds that a cluster may learn late, or never, as it says by their definitions. Nobody asks for
//! objects of a kind that is not there: a watch tells when it is.

use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

/// A kind that was made a moment ago is not served yet: how long after that it is asked for again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_mins(1));

/// A kind.
pub(crate) struct Kind {
    api: Api<PartialObjectMeta<CustomResourceDefinition>>,
    /// The name of its definition.
    name: String,
}

impl Kind {
    pub(crate) fn new(client: Client, resource: &ApiResource) -> Self {
        Self {
            api: Api::all(client),
            name: format!("{}.{}", resource.plural, resource.group),
        }
    }

    /// Runs `follow` for as long as the cluster has the kind, and again if it ends; `lacking` whenever it does not.
    pub(crate) async fn follow(&self, lacking: impl Fn(), follow: impl AsyncFn()) {
        let definition = watcher::watch_object(self.api.clone(), &self.name).default_backoff();
        let mut definition = std::pin::pin!(definition);
        // The definition, if anybody knows.
        let mut is_there = async || {
            loop {
                match definition.next().await {
                    Some(Ok(found)) => return Some(found.is_some()),
                    Some(Err(error)) => tracing::warn!(
                        "cannot watch the CustomResourceDefinition of {}, will retry: {error}",
                        self.name
                    ),
                    None => return None,
                }
            }
        };
        loop {
            match is_there().await {
                None => return,
                Some(false) => {
                    lacking();
                    continue;
                }
                Some(true) => {}
            }
            let followed = async {
                let mut pauses = PAUSES;
                loop {
                    follow().await;
                    tokio::time::sleep(pauses.next_pause()).await;
                }
            };
            let gone = async { while let Some(true) = is_there().await {} };
            tokio::select! {
                () = followed => {}
                () = gone => lacking(),
            }
        }
    }
}

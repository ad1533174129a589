//! The API server, as an agent uses it: its own Node, and single objects that are watched by name.

use std::fmt::Debug;

use evenkeel_plan::fleet::node::NodePatch;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::node_report::NodeSnapshot;
use crate::own_node::OwnNode;
use crate::trigger::Trigger;

/// The API server, for one Node.
#[derive(Clone)]
pub(crate) struct NodeClient {
    pub(crate) client: Client,
    pub(crate) name: String,
}

impl NodeClient {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        Self {
            client,
            name: name.to_owned(),
        }
    }

    /// Puts every change of the Node into the queue, and shows it to the reporter. `read` takes of it what the
    /// worker needs.
    pub(crate) fn watch<K, Change>(
        &self,
        triggers: UnboundedSender<Trigger<Change>>,
        shown: watch::Sender<NodeSnapshot>,
        read: fn(K) -> OwnNode,
    ) -> JoinHandle<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        Change: Send + 'static,
    {
        let api: Api<K> = Api::all(self.client.clone());
        watch_object(api, "Node", &self.name, triggers, move |node| {
            NodeSnapshot::of(node.as_ref().map(Resource::meta)).show(&shown);
            Trigger::Node(node.map(read))
        })
    }

    /// Writes `patch`, in one request.
    pub(crate) async fn patch(&self, patch: &NodePatch) -> kube::Result<()> {
        let mut body = json!({ "metadata": { "annotations": patch.annotations } });
        if let Some(unschedulable) = patch.unschedulable {
            let value = if unschedulable {
                json!(true)
            } else {
                Value::Null
            };
            body["spec"] = json!({ "unschedulable": value });
        }
        self.merge(&body).await
    }

    /// Merges `body` into the Node.
    pub(crate) async fn merge(&self, body: &Value) -> kube::Result<()> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let (parameters, body) = (PatchParams::default(), Patch::Merge(body));
        let patched = api.patch(&self.name, &parameters, &body).await;
        patched.map(|_| ())
    }

    /// What Events are about.
    pub(crate) fn reference(&self, uid: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }
}

/// Puts every version of one object into the queue, and that there is none.
pub(crate) fn watch_object<K, T>(
    api: Api<K>,
    kind: &'static str,
    name: &str,
    triggers: UnboundedSender<T>,
    trigger: impl Fn(Option<K>) -> T + Send + 'static,
) -> JoinHandle<()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Send + 'static,
{
    let name = name.to_owned();
    tokio::spawn(async move {
        let mut changes = watcher::watch_object(api, &name).default_backoff().boxed();
        while let Some(change) = changes.next().await {
            match change {
                Ok(found) => {
                    // Without a worker there is nobody to tell.
                    if triggers.send(trigger(found)).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot watch {kind} {name}"),
            }
        }
    })
}

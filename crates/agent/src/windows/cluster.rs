//! The cluster, as a Windows node's agent uses it: its own Node, the services ConfigMap that it is told
//! of, and nothing else of it is ever held.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evenkeel_api::names::object;
use evenkeel_plan::fleet::node::NodePatch;
use evenkeel_plan::windows::trust::Published;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::own_node::OwnNode;
use super::trigger::Trigger;
use crate::node_report::NodeSnapshot;
use crate::reconcile::about_node;

/// The API server, for one node.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    namespace: String,
    node: String,
}

impl Cluster {
    pub(crate) fn new(client: Client, namespace: &str, node: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            node: node.to_owned(),
        }
    }

    /// Puts every change of the own Node into the queue, and shows it to the reporter.
    pub(crate) fn watch_node(
        &self,
        triggers: UnboundedSender<Trigger>,
        shown: watch::Sender<NodeSnapshot>,
    ) -> JoinHandle<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        let name = self.node.clone();
        tokio::spawn(async move {
            let mut changes = watcher::watch_object(api, &name).default_backoff().boxed();
            while let Some(change) = changes.next().await {
                match change {
                    Ok(node) => {
                        NodeSnapshot::of(node.as_ref().map(|it| &it.metadata)).show(&shown);
                        if triggers.send(Trigger::Node(node.map(OwnNode::of))).is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(node = name, %error, "cannot watch the Node"),
                }
            }
        })
    }

    /// Puts every version of the ConfigMap `name` into the queue, and that there is none.
    pub(crate) fn watch_services(
        &self,
        name: &str,
        triggers: UnboundedSender<Trigger>,
    ) -> JoinHandle<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = name.to_owned();
        tokio::spawn(async move {
            let mut changes = watcher::watch_object(api, &name).default_backoff().boxed();
            while let Some(change) = changes.next().await {
                match change {
                    Ok(found) => {
                        let data = found.map(|found| found.data.unwrap_or_default());
                        let name = name.clone();
                        if triggers.send(Trigger::Services { name, data }).is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(name, %error, "cannot watch the ConfigMap"),
                }
            }
        })
    }

    /// Puts every version of the trust bundle into the queue, and that there is none.
    pub(crate) fn watch_bundle(&self, triggers: UnboundedSender<Trigger>) -> JoinHandle<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        tokio::spawn(async move {
            let mut changes = watcher::watch_object(api, object::TRUSTED_CA)
                .default_backoff()
                .boxed();
            while let Some(change) = changes.next().await {
                match change {
                    Ok(found) => {
                        if triggers.send(Trigger::Bundle(published(found))).is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(%error, "cannot watch the trust bundle"),
                }
            }
        })
    }

    /// Changes the own Node, in one request.
    pub(crate) async fn change(&self, change: &NodePatch) -> kube::Result<()> {
        let mut patch = json!({ "metadata": { "annotations": change.annotations } });
        if let Some(unschedulable) = change.unschedulable {
            let value = if unschedulable {
                json!(true)
            } else {
                Value::Null
            };
            patch["spec"] = json!({ "unschedulable": value });
        }
        let api: Api<Node> = Api::all(self.client.clone());
        let parameters = PatchParams::default();
        api.patch(&self.node, &parameters, &Patch::Merge(&patch))
            .await
            .map(|_| ())
    }

    /// The own Node, if there is one.
    pub(crate) async fn node(&self) -> kube::Result<Option<OwnNode>> {
        let api: Api<Node> = Api::all(self.client.clone());
        Ok(api.get_opt(&self.node).await?.map(OwnNode::of))
    }

    /// What Events are about.
    pub(crate) fn reference(&self, uid: &str) -> ObjectReference {
        about_node(&self.node, uid)
    }
}

/// The `data` of the ConfigMap `name`, if there is one.
pub(crate) async fn services(
    client: &Client,
    namespace: &str,
    name: &str,
) -> kube::Result<Option<BTreeMap<String, String>>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await?;
    Ok(found.map(|found| found.data.unwrap_or_default()))
}

/// What the cluster says of its trust bundle.
pub(crate) async fn bundle(client: &Client, namespace: &str) -> kube::Result<Published> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    Ok(published(api.get_opt(object::TRUSTED_CA).await?))
}

fn published(found: Option<ConfigMap>) -> Published {
    Published::of(found.map(|it| it.data.unwrap_or_default()))
}

/// Every services ConfigMap of ours: name and `data`.
pub(crate) async fn all_services(
    client: &Client,
    namespace: &str,
) -> kube::Result<Vec<(String, BTreeMap<String, String>)>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let label = format!("{}=true", evenkeel_api::names::label::SERVICES);
    let found = api.list(&ListParams::default().labels(&label)).await?;
    let pair = |map: ConfigMap| (map.name_any(), map.data.unwrap_or_default());
    Ok(found.items.into_iter().map(pair).collect())
}

/// The one Node whose internal address is one of `addresses`, waited for; or why there is no telling. `last` says why
/// nobody was found so far.
pub(crate) async fn find_node(
    client: &Client,
    addresses: &[IpAddr],
    last: &mut String,
) -> Result<String, String> {
    let api: Api<Node> = Api::all(client.clone());
    let mut changes = watcher::watcher(api, watcher::Config::default())
        .default_backoff()
        .boxed();
    let is_managed_node = |node: &Node| {
        let status = node.status.as_ref();
        let mut listed = status.iter().flat_map(|it| it.addresses.iter().flatten());
        listed.any(|it| {
            it.type_ == "InternalIP" && it.address.parse().is_ok_and(|it| addresses.contains(&it))
        })
    };
    let mut listed = Vec::new();
    while let Some(change) = changes.next().await {
        match change {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(node)) => {
                listed.extend(is_managed_node(&node).then(|| node.name_any()));
            }
            // There was nobody else at that time.
            Ok(watcher::Event::Apply(node)) if is_managed_node(&node) => return Ok(node.name_any()),
            Ok(watcher::Event::InitDone) => match listed.as_slice() {
                [] => {}
                [name] => return Ok(name.clone()),
                _ => {
                    return Err(format!(
                        "several Nodes have an internal address of this machine ({}): delete the stale ones",
                        listed.join(", ")
                    ));
                }
            },
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {}
            Err(error) => *last = error.to_string(),
        }
    }
    Err("the watch of Nodes ended".to_owned())
}

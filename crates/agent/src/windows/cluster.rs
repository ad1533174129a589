//! The cluster, as a Windows node's agent uses it: the services ConfigMap that it is told of, the trust bundle, and
//! nothing else of it is ever held.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evenkeel_api::names::object;
use evenkeel_plan::windows::trust::Published;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::trigger::{Change, Trigger};
use crate::node_client::watch_object;
use crate::own_node::OwnNode;

/// What the worker needs of the own Node.
pub(crate) fn read(mut node: Node) -> OwnNode {
    node.metadata.managed_fields = None;
    // Pulled images are most of a Node, and no command wants them.
    if let Some(status) = &mut node.status {
        status.images = None;
    }
    OwnNode {
        uid: node.uid().unwrap_or_default(),
        annotations: node.annotations().clone(),
        object: serde_json::to_value(&node).unwrap_or_default(),
    }
}

/// Puts every version of the ConfigMap `name` into the queue, and that there is none.
pub(crate) fn watch_services(
    client: &Client,
    namespace: &str,
    name: &str,
    triggers: UnboundedSender<Trigger>,
) -> JoinHandle<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let shown = name.to_owned();
    watch_object(api, "ConfigMap", name, triggers, move |found| {
        Trigger::System(Change::Services {
            name: shown.clone(),
            data: found.map(|found| found.data.unwrap_or_default()),
        })
    })
}

/// Puts every version of the trust bundle into the queue, and that there is none.
pub(crate) fn watch_bundle(
    client: &Client,
    namespace: &str,
    triggers: UnboundedSender<Trigger>,
) -> JoinHandle<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    watch_object(api, "ConfigMap", object::TRUSTED_CA, triggers, |found| {
        Trigger::System(Change::Bundle(published(found)))
    })
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

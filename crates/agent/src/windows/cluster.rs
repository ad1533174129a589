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
///
/// With a `name` that its kubelet was given it is the Node of that name, also while it has no internal address, because its
/// cloud has still to give it one. One that has another machine's is not taken, and none while another Node has this
/// machine's.
pub(crate) async fn find_node(
    client: &Client,
    name: Option<&str>,
    addresses: &[IpAddr],
    last: &mut String,
) -> Result<String, String> {
    let api: Api<Node> = Api::all(client.clone());
    let mut changes = watcher::watcher(api, watcher::Config::default())
        .default_backoff()
        .boxed();
    let relation = |node: &Node| {
        let status = node.status.as_ref();
        let listed = status.iter().flat_map(|it| it.addresses.iter().flatten());
        let internal = listed.filter(|it| it.type_ == "InternalIP");
        let internal: Vec<_> = internal.map(|it| it.address.as_str()).collect();
        Relation::of(&node.name_any(), &internal, name, addresses)
    };
    let mut listed = Vec::new();
    while let Some(change) = changes.next().await {
        match change {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(node)) => {
                let relation = relation(&node);
                listed.extend((relation != Relation::None).then(|| (relation, node.name_any())));
            }
            // There was nobody else at that time.
            Ok(watcher::Event::Apply(node)) if relation(&node) == Relation::Own => {
                return Ok(node.name_any());
            }
            Ok(watcher::Event::InitDone) => {
                let own = listed.iter().find(|(it, _)| *it == Relation::Own);
                match (own, listed.len()) {
                    (Some((_, own)), 1) => return Ok(own.clone()),
                    (Some(_), _) => {
                        let names: Vec<_> = listed.into_iter().map(|(_, name)| name).collect();
                        return Err(format!(
                            "several Nodes have an internal address of this machine ({}): delete the stale ones",
                            names.join(", ")
                        ));
                    }
                    (None, _) => {}
                }
            }
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {}
            Err(error) => *last = error.to_string(),
        }
    }
    Err("the watch of Nodes ended".to_owned())
}

/// What a Node is to this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    None,
    /// It has an address of this machine, and another name than its kubelet was given.
    SameAddress,
    Own,
}

impl Relation {
    /// Of a Node with these internal addresses to a machine with these `addresses`, whose kubelet was given `own` as its
    /// name, if any.
    fn of(node: &str, internal: &[&str], own: Option<&str>, addresses: &[IpAddr]) -> Self {
        let mut parsed = internal.iter().filter_map(|it| it.parse().ok());
        let is_here = parsed.any(|it: IpAddr| addresses.contains(&it));
        match own {
            None if is_here => Self::Own,
            Some(own) if own == node && (is_here || internal.is_empty()) => Self::Own,
            Some(_) if is_here => Self::SameAddress,
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers H22, W02.
    #[test]
    fn a_machine_is_the_node_of_its_name_or_else_the_one_at_its_address() {
        use Relation::{None as Nobody, Own, SameAddress};
        let own: [IpAddr; 1] = [[10, 0, 0, 1].into()];
        let of = |node, internal: &[&str], name| Relation::of(node, internal, name, &own);
        assert_eq!(of("a", &["10.0.0.1"], None), Own);
        assert_eq!(of("a", &["10.0.0.2"], None), Nobody);
        // Nobody can tell, until somebody gives it one.
        assert_eq!(of("a", &[], None), Nobody);
        assert_eq!(of("a", &["10.0.0.1"], Some("a")), Own);
        assert_eq!(of("a", &[], Some("a")), Own, "its cloud gives it one");
        assert_eq!(of("a", &["10.0.0.2"], Some("a")), Nobody, "another's");
        assert_eq!(of("b", &["10.0.0.1"], Some("a")), SameAddress);
        assert_eq!(of("b", &[], Some("a")), Nobody);
    }
}

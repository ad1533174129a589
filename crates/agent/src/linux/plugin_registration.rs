//! Registers the kubelet's plugins in the node's own list of extensions, and keeps that up to date. What is
//! to be in it is decided by `evenkeel_plan::readiness::registration`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_host::linux::Sockets;
use evenkeel_plan::readiness::{PLUGINS, Registration, registration};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::core::PartialObjectMeta;
use serde_json::json;
use tokio::sync::watch;

use crate::node_client::NodeClient;
use crate::node_report::NodeSnapshot;

/// How long after something failed it is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// What nobody was told of is found after this time.
const LOOK: Duration = Duration::from_mins(5);

/// Registers until it is aborted.
pub(crate) async fn register(
    root: PathBuf,
    own_node: NodeClient,
    mut seen: watch::Receiver<NodeSnapshot>,
) {
    let mut said = String::new();
    loop {
        let outcome = keep(&root, &own_node, &mut seen).await;
        let Err(why) = outcome else {
            return;
        };
        if said != why {
            tracing::warn!("cannot register the kubelet's plugins, will retry: {why}");
            said = why;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Keeps the list up to date until that fails, or nobody shows the Node any more.
async fn keep(
    root: &std::path::Path,
    own_node: &NodeClient,
    seen: &mut watch::Receiver<NodeSnapshot>,
) -> Result<(), String> {
    let sockets = Sockets::below(root, PLUGINS).map_err(|error| error.with_causes())?;
    loop {
        let names = sockets.look().map_err(|error| error.with_causes())?;
        let list = {
            let node = seen.borrow_and_update();
            node.annotations.get(annotation::SYSTEM_EXTENSIONS).cloned()
        };
        if registration(list.as_deref(), &names)? != Registration::Right {
            write(own_node, &names).await?;
        }
        tokio::select! {
            changed = sockets.changed() => changed.map_err(|error| error.with_causes())?,
            changed = seen.changed() => if changed.is_err() { return Ok(()) },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Writes what is to be in the list as it is now; whoever was quicker is seen by the watch.
async fn write(own_node: &NodeClient, names: &BTreeSet<String>) -> Result<(), String> {
    let failed = |error: kube::Error| error.to_string();
    let api: Api<PartialObjectMeta<Node>> = Api::all(own_node.client.clone());
    let found = api.get_metadata_opt(&own_node.name).await.map_err(failed)?;
    let Some(PartialObjectMeta { metadata, .. }) = found else {
        return Ok(());
    };
    let list = metadata.annotations.as_ref();
    let list = list.and_then(|it| it.get(annotation::SYSTEM_EXTENSIONS));
    if let Registration::Becomes(text) = registration(list.map(String::as_str), names)? {
        // Provided that the Node is as it was seen.
        let body = json!({ "metadata": {
            "uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "annotations": { annotation::SYSTEM_EXTENSIONS: text },
        } });
        own_node.merge(&body).await.map_err(failed)?;
        let count = names.len();
        tracing::info!(plugins = count, "registered the kubelet's plugins");
    }
    Ok(())
}

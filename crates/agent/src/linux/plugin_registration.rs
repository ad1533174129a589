//! Registers the kubelet's plugins in the node's own list of extensions, and keeps that up to date. What is
//! to be in it is decided by `evenkeel_plan::readiness::registration`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_host::linux::Sockets;
use evenkeel_plan::readiness::{PLUGINS, Registration, registration};
use tokio::sync::watch;

use super::cluster::Cluster;
use crate::reporter::Seen;

/// How long after something failed it is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// What nobody was told of is found after this time.
const LOOK: Duration = Duration::from_mins(5);

/// Registers until it is aborted.
pub(crate) async fn register(root: PathBuf, cluster: Cluster, mut seen: watch::Receiver<Seen>) {
    let mut said = String::new();
    loop {
        let outcome = keep(&root, &cluster, &mut seen).await;
        let Err(why) = outcome else {
            return;
        };
        if said != why {
            tracing::warn!("cannot register the kubelet's plugins, and try again: {why}");
            said = why;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Keeps the list up to date until that fails, or nobody shows the Node any more.
async fn keep(
    root: &std::path::Path,
    cluster: &Cluster,
    seen: &mut watch::Receiver<Seen>,
) -> Result<(), String> {
    let sockets = Sockets::below(root, PLUGINS).map_err(|error| error.with_causes())?;
    loop {
        let names = sockets.look().map_err(|error| error.with_causes())?;
        let list = {
            let node = seen.borrow_and_update();
            node.annotations.get(annotation::SYSTEM_EXTENSIONS).cloned()
        };
        if registration(list.as_deref(), &names)? != Registration::Right {
            write(cluster, &names).await?;
        }
        tokio::select! {
            changed = sockets.changed() => changed.map_err(|error| error.with_causes())?,
            changed = seen.changed() => if changed.is_err() { return Ok(()) },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Writes what is to be in the list as it is now; whoever was quicker is seen by the watch.
async fn write(cluster: &Cluster, names: &BTreeSet<String>) -> Result<(), String> {
    let failed = |error: kube::Error| error.to_string();
    let Some(metadata) = cluster.metadata().await.map_err(failed)? else {
        return Ok(());
    };
    let list = metadata.annotations.as_ref();
    let list = list.and_then(|it| it.get(annotation::SYSTEM_EXTENSIONS));
    if let Registration::Becomes(text) = registration(list.map(String::as_str), names)? {
        let change = [(annotation::SYSTEM_EXTENSIONS, text.as_deref())].into();
        cluster
            .annotate_as_seen(&metadata, &change)
            .await
            .map_err(failed)?;
        let count = names.len();
        tracing::info!(plugins = count, "registered the kubelet's plugins");
    }
    Ok(())
}

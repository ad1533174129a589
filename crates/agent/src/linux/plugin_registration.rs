//! Registers the kubelet's plugins in the node's own list of extensions, and keeps that up to date. What is
//! to be in it is decided by `evenkeel_plan::readiness::Plugins`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_host::linux::Sockets;
use evenkeel_plan::readiness::{Kubelet, Moment, PLUGIN_FOLDERS, Plugins, Registration};
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

/// Keeps the plugins of this node in its list.
pub(crate) struct PluginRegistration {
    root: PathBuf,
    own_node: NodeClient,
    seen: watch::Receiver<NodeSnapshot>,
    kubelet: watch::Receiver<Kubelet>,
    plugins: Plugins,
    start: Instant,
}

/// The sockets of one folder of the kubelet.
struct PluginFolder {
    path: String,
    sockets: Sockets,
}

impl PluginFolder {
    /// The paths of its sockets on the machine.
    fn look(&self) -> Result<Vec<String>, String> {
        let names = self.sockets.look().map_err(|error| error.with_causes())?;
        let paths = names.iter().map(|name| format!("{}/{name}", self.path));
        Ok(paths.collect())
    }

    async fn changed(&self) -> Result<(), String> {
        let changed = self.sockets.changed().await;
        changed.map_err(|error| error.with_causes())
    }
}

impl PluginRegistration {
    pub(crate) fn new(
        root: PathBuf,
        own_node: NodeClient,
        seen: watch::Receiver<NodeSnapshot>,
        kubelet: watch::Receiver<Kubelet>,
        forgotten_after: Duration,
    ) -> Self {
        Self {
            root,
            own_node,
            seen,
            kubelet,
            plugins: Plugins::new(forgotten_after),
            start: Instant::now(),
        }
    }

    /// Registers until it is aborted.
    pub(crate) async fn run(mut self) {
        let mut said = String::new();
        loop {
            let Err(why) = self.keep().await else {
                return;
            };
            if said != why {
                tracing::warn!("cannot register the kubelet's plugins, will retry: {why}");
                said = why;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    /// The folders of the kubelet as it is now.
    fn folders(&mut self) -> Result<[PluginFolder; 2], String> {
        let kubelet = self.kubelet.borrow_and_update().folder.clone();
        let [registry, devices] = PLUGIN_FOLDERS.map(|folder| {
            let path = format!("{kubelet}/{folder}");
            let sockets = Sockets::below(&self.root, &path);
            let sockets = sockets.map_err(|error| error.with_causes())?;
            Ok::<_, String>(PluginFolder { path, sockets })
        });
        Ok([registry?, devices?])
    }

    /// Keeps the list up to date until that fails, or nobody shows the Node any more.
    async fn keep(&mut self) -> Result<(), String> {
        let mut folders = self.folders()?;
        loop {
            let mut sockets = BTreeSet::new();
            for folder in &folders {
                sockets.extend(folder.look()?);
            }
            let list = {
                let node = self.seen.borrow_and_update();
                node.annotations.get(annotation::SYSTEM_EXTENSIONS).cloned()
            };
            let now = self.now();
            let registration = self.plugins.registration(list.as_deref(), &sockets, now)?;
            if registration != Registration::Right {
                self.write(&sockets).await?;
            }
            let forgets = self.plugins.forgets_next();
            let pause = forgets.map_or(LOOK, |at| at.since(self.now()).clamp(AGAIN, LOOK));
            let [registry, devices] = &folders;
            tokio::select! {
                changed = registry.changed() => changed?,
                changed = devices.changed() => changed?,
                changed = self.seen.changed() => if changed.is_err() { return Ok(()) },
                Ok(()) = self.kubelet.changed() => folders = self.folders()?,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Writes what is to be in the list as it is now; whoever was quicker is seen by the watch.
    async fn write(&mut self, sockets: &BTreeSet<String>) -> Result<(), String> {
        let failed = |error: kube::Error| error.to_string();
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.own_node.client.clone());
        let found = api.get_metadata_opt(&self.own_node.name).await;
        let Some(PartialObjectMeta { metadata, .. }) = found.map_err(failed)? else {
            return Ok(());
        };
        let list = metadata.annotations.as_ref();
        let list = list.and_then(|it| it.get(annotation::SYSTEM_EXTENSIONS));
        let now = self.now();
        let list = list.map(String::as_str);
        if let Registration::Becomes(text) = self.plugins.registration(list, sockets, now)? {
            // Provided that the Node is as it was seen.
            let body = json!({ "metadata": {
                "uid": metadata.uid, "resourceVersion": metadata.resource_version,
                "annotations": { annotation::SYSTEM_EXTENSIONS: text },
            } });
            self.own_node.merge(&body).await.map_err(failed)?;
            let count = sockets.len();
            tracing::info!(sockets = count, "registered the kubelet's plugins");
        }
        Ok(())
    }
}

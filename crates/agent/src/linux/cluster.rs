//! The cluster, as the worker uses it: its own Node and the MachineConfig it is to have, and nothing
//! else of it is ever held.

use std::collections::BTreeMap;

use evenkeel_api::names::group;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{GetParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta, Request};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, core::DynamicObject};
use serde_json::json;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::own_node::OwnNode;
use super::trigger::Trigger;
use crate::node_report::NodeSnapshot;
use crate::reconcile::about_node;

const VERSION: &str = "v1";
const KIND: &str = "MachineConfig";
const PLURAL: &str = "machineconfigs";

/// The API server, for one node.
pub(crate) struct Cluster {
    client: Client,
    node: String,
}

impl Cluster {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self {
            client,
            node: node.to_owned(),
        }
    }

    /// Puts every change of the own Node into the queue, and shows it to the reporter.
    pub(crate) fn watch_node(
        &self,
        triggers: UnboundedSender<Trigger>,
        shown: watch::Sender<NodeSnapshot>,
    ) -> JoinHandle<()> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let name = self.node.clone();
        tokio::spawn(async move {
            let mut changes = watcher::watch_object(api, &name).default_backoff().boxed();
            while let Some(change) = changes.next().await {
                match change {
                    Ok(node) => {
                        NodeSnapshot::of(node.as_ref().map(|it| &it.metadata)).show(&shown);
                        let node = node.map(|node| OwnNode {
                            uid: node.metadata.uid.unwrap_or_default(),
                            annotations: node.metadata.annotations.unwrap_or_default(),
                        });
                        if triggers.send(Trigger::Node(node)).is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(node = name, %error, "cannot watch the Node"),
                }
            }
        })
    }

    /// Puts every version of the MachineConfig `name` into the queue, and that there is none.
    pub(crate) fn watch_config(
        &self,
        name: &str,
        triggers: UnboundedSender<Trigger>,
    ) -> JoinHandle<()> {
        let kind = GroupVersionKind::gvk(group::MACHINE_CONFIGURATION, VERSION, KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        let api: Api<PartialObjectMeta<DynamicObject>> =
            Api::all_with(self.client.clone(), &resource);
        let name = name.to_owned();
        tokio::spawn(async move {
            let mut changes = watcher::watch_object(api, &name).default_backoff().boxed();
            while let Some(change) = changes.next().await {
                match change {
                    Ok(config) => {
                        let version = config.and_then(|config| config.metadata.resource_version);
                        let name = name.clone();
                        if triggers.send(Trigger::Config { name, version }).is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(config = name, %error, "cannot watch the MachineConfig");
                    }
                }
            }
        })
    }

    /// The MachineConfig `name` as its author wrote it, if there is one.
    pub(crate) async fn config(&self, name: &str) -> kube::Result<Option<String>> {
        let folder = format!("/apis/{}/{VERSION}/{PLURAL}", group::MACHINE_CONFIGURATION);
        let request = Request::new(folder)
            .get(name, &GetParams::default())
            .map_err(kube::Error::BuildRequest)?;
        match self.client.request_text(request).await {
            Ok(text) => Ok(Some(text)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes annotations on the own Node, in one request.
    pub(crate) async fn annotate(
        &self,
        changes: &BTreeMap<&'static str, &str>,
    ) -> kube::Result<()> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let patch = json!({ "metadata": { "annotations": changes } });
        let parameters = PatchParams::default();
        api.patch(&self.node, &parameters, &Patch::Merge(&patch))
            .await
            .map(|_| ())
    }

    /// The metadata of the own Node as it is now, if there is one.
    pub(crate) async fn metadata(&self) -> kube::Result<Option<ObjectMeta>> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let found = api.get_metadata_opt(&self.node).await?;
        Ok(found.map(|it| it.metadata))
    }

    /// Writes annotations on the own Node, or takes them off, provided that it is as it was `seen`.
    pub(crate) async fn annotate_as_seen(
        &self,
        seen: &ObjectMeta,
        changes: &BTreeMap<&'static str, Option<&str>>,
    ) -> kube::Result<()> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let patch = json!({ "metadata": {
            "uid": seen.uid, "resourceVersion": seen.resource_version, "annotations": changes,
        } });
        let parameters = PatchParams::default();
        api.patch(&self.node, &parameters, &Patch::Merge(&patch))
            .await
            .map(|_| ())
    }

    /// What Events are about.
    pub(crate) fn reference(&self, uid: &str) -> ObjectReference {
        about_node(&self.node, uid)
    }
}

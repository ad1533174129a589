//! The MachineConfig that a node is to have, as the API server gives it; nothing else of the cluster is ever held.

use evenkeel_api::names::group;
use kube::api::GetParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta, Request};
use kube::{Api, Client};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::trigger::{Change, Trigger};
use crate::node_client::watch_object;

const VERSION: &str = "v1";
const KIND: &str = "MachineConfig";
const PLURAL: &str = "machineconfigs";

/// Puts every version of the MachineConfig `name` into the queue, and that there is none.
pub(crate) fn watch_config(
    client: &Client,
    name: &str,
    triggers: UnboundedSender<Trigger>,
) -> JoinHandle<()> {
    let kind = GroupVersionKind::gvk(group::MACHINE_CONFIGURATION, VERSION, KIND);
    let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &resource);
    let shown = name.to_owned();
    watch_object(api, KIND, name, triggers, move |config| {
        Trigger::System(Change::Config {
            name: shown.clone(),
            version: config.and_then(|config| config.metadata.resource_version),
        })
    })
}

/// The MachineConfig `name` as its author wrote it, if there is one.
pub(crate) async fn config(client: &Client, name: &str) -> kube::Result<Option<String>> {
    let folder = format!("/apis/{}/{VERSION}/{PLURAL}", group::MACHINE_CONFIGURATION);
    let request = Request::new(folder)
        .get(name, &GetParams::default())
        .map_err(kube::Error::BuildRequest)?;
    match client.request_text(request).await {
        Ok(text) => Ok(Some(text)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

//! Services ConfigMaps, as their controller uses them: of each only whether it is right, not what it says.

use std::collections::BTreeMap;

use evenkeel_api::names::{label, object};
use evenkeel_api::windows::payload::checksum;
use evenkeel_api::windows::services::Services;
use evenkeel_api::windows::windows_pool::KIND;
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::windows::proxy::{ProxySettings, last_given};
use evenkeel_plan::windows::service_maps::ObservedMap;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::objects::Objects;
use crate::store::{Identity, Kept, Store};

/// A ConfigMap as it was at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptMap {
    pub(crate) map: ObservedMap,
    /// The proxy that it declares, if it is one that an operator would write.
    pub(crate) proxy: Option<ProxySettings>,
    version: String,
}

impl From<ConfigMap> for KeptMap {
    fn from(object: ConfigMap) -> Self {
        let metadata = object.metadata;
        let data: BTreeMap<String, String> = object.data.unwrap_or_default();
        let is_text = object.binary_data.is_none_or(|it| it.is_empty());
        let name = metadata.name.unwrap_or_default();
        let owners = metadata.owner_references.unwrap_or_default();
        let labels = metadata.labels.unwrap_or_default();
        let read = Services::from_data(&name, &data).ok();
        let labelled = labels.get(label::SERVICES).is_some_and(|it| it == "true");
        let immutable = object.immutable == Some(true);
        // The text of a services hash, over what stands there and not over what it means.
        let written = serde_json::to_vec(&data).unwrap_or_default();
        Self {
            map: ObservedMap {
                uid: metadata.uid.unwrap_or_default(),
                is_going: metadata.deletion_timestamp.is_some(),
                immutable,
                labelled,
                owner: owners
                    .into_iter()
                    .find(|it| it.kind == KIND)
                    .map(|it| it.uid),
                digest: if is_text {
                    checksum(&written)
                } else {
                    String::new()
                },
                holds: is_text && read.is_some(),
                name,
            },
            proxy: read
                .filter(|_| is_text && labelled && immutable)
                .map(|(services, _)| ProxySettings::declared_in(&services)),
            version: metadata.resource_version.unwrap_or_default(),
        }
    }
}

impl Kept for KeptMap {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.map.name,
            uid: &self.map.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

/// All services ConfigMaps of the operator's namespace, whoever made them.
#[derive(Clone)]
pub(crate) struct ServiceMaps(Objects<ConfigMap, KeptMap>);

impl ServiceMaps {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self(Objects::new(Api::namespaced(client, namespace)))
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<KeptMap> {
        self.0.store()
    }

    /// The proxy that nodes were given last, as far as ConfigMaps tell.
    pub(crate) fn last_proxy(&self) -> ProxySettings {
        self.store().look(|all| {
            let maps = all.values();
            let maps = maps.filter_map(|it| Some((it.map.name.as_str(), it.proxy.as_ref()?)));
            last_given(maps)
        })
    }

    /// Keeps them, until the program is asked to stop. An impostor need not have our label: all ConfigMaps
    /// of the namespace pass by here, and those of another name are forgotten at once.
    pub(crate) async fn keep(&self, check: Check, stop: &Stop) {
        let changes = watcher(self.0.api().clone(), watcher::Config::default());
        let changes = changes.filter(|change| {
            let object = match change {
                Ok(
                    watcher::Event::Apply(it)
                    | watcher::Event::InitApply(it)
                    | watcher::Event::Delete(it),
                ) => Some(it),
                _ => None,
            };
            let name = object.and_then(|it| it.metadata.name.as_deref());
            let is_wanted = name.is_none_or(|it| it.starts_with(object::SERVICES_PREFIX));
            std::future::ready(is_wanted)
        });
        let kept = self.store().keep("configmaps", changes, check, stop);
        kept.await;
    }

    /// Makes the ConfigMap `name`.
    pub(crate) async fn create(
        &self,
        name: &str,
        data: &BTreeMap<String, String>,
        owner: Option<&Value>,
    ) -> kube::Result<()> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": { label::SERVICES: "true" },
                "ownerReferences": owner.map(|owner| [owner]),
            },
            "immutable": true,
            "data": data,
        });
        self.0.create(object).await.map(|_| ())
    }

    /// Gives a ConfigMap our label and its owner.
    pub(crate) async fn mark(
        &self,
        name: &str,
        uid: &str,
        owner: Option<&Value>,
    ) -> kube::Result<()> {
        let mut patch = json!({ "metadata": {
            "uid": uid,
            "labels": { label::SERVICES: "true" },
        } });
        if let Some(owner) = owner {
            patch["metadata"]["ownerReferences"] = json!([owner]);
        }
        self.0.merge(name, patch).await.map(|_| ())
    }

    /// Deletes the very ConfigMap that was seen.
    pub(crate) async fn delete(&self, name: &str, uid: &str) -> kube::Result<()> {
        self.0.delete(name, uid).await
    }
}

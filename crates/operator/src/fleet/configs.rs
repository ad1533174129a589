//! MachineConfigs, as the controllers use them: of all of them only their metadata is kept; what they
//! say is read when it is needed, and forgotten.

use evenkeel_api::names::{group, label};
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::fleet::render::ConfigSnapshot;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, PostParams};
use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta, Request};
use kube::runtime::watcher::watcher;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::fleet::nodes::watching;
use crate::objects::{only, resource};
use crate::store::{Identity, Kept, Store};

const KIND: &str = "MachineConfig";
const PLURAL: &str = "machineconfigs";
/// How many are read at a time.
const PAGE: u32 = 50;

/// A MachineConfig at one version, without what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedConfig {
    pub(crate) config: ConfigSnapshot,
    pub(crate) uid: String,
    pub(crate) version: String,
}

impl From<PartialObjectMeta<DynamicObject>> for ObservedConfig {
    fn from(object: PartialObjectMeta<DynamicObject>) -> Self {
        let metadata = object.metadata;
        let owners = metadata.owner_references.unwrap_or_default();
        let owner = owners.into_iter().find(|it| it.controller == Some(true));
        Self {
            config: ConfigSnapshot {
                name: metadata.name.unwrap_or_default(),
                labels: metadata.labels.unwrap_or_default(),
                owner: owner.map(|it| it.uid),
            },
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
        }
    }
}

impl Kept for ObservedConfig {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: &self.config.name,
            uid: &self.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        // What it says is not kept: every version may say something else.
        self.version == other.version
    }
}

impl ObservedConfig {
    /// How an Event names this MachineConfig.
    pub(crate) fn reference(&self) -> ObjectReference {
        let api_version = format!("{}/v1", group::MACHINE_CONFIGURATION);
        self.identity().reference(api_version, KIND)
    }
}

/// All MachineConfigs.
#[derive(Clone)]
pub(crate) struct Configs {
    client: Client,
    api: Api<DynamicObject>,
    /// The same, of which the API server sends nothing but metadata.
    metadata: Api<PartialObjectMeta<DynamicObject>>,
    store: Store<ObservedConfig>,
}

/// A page of a list, each item as it was written.
#[derive(Deserialize)]
struct ConfigPage {
    metadata: ListMeta,
    items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

impl Configs {
    pub(crate) fn new(client: Client) -> Self {
        let kind = resource(group::MACHINE_CONFIGURATION, "v1", KIND, PLURAL);
        Self {
            api: Api::all_with(client.clone(), &kind),
            metadata: Api::all_with(client.clone(), &kind),
            client,
            store: Store::new(),
        }
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<ObservedConfig> {
        &self.store
    }

    /// Keeps their metadata, until the program is asked to stop.
    pub(crate) async fn keep(&self, check: Check, stop: &Stop) {
        let changes = watcher(self.metadata.clone(), watching(None));
        self.store.keep(PLURAL, changes, check, stop).await;
    }

    /// Name, version and text of those that `selector` selects and that are not rendered.
    pub(crate) async fn sources(
        &self,
        selector: &str,
    ) -> kube::Result<Vec<(String, String, String)>> {
        let not_rendered = format!("!{}", label::RENDERED);
        let labels = match selector {
            "" => not_rendered,
            selector => format!("{selector},{not_rendered}"),
        };
        let mut sources = Vec::new();
        let mut parameters = ListParams::default().labels(&labels).limit(PAGE);
        loop {
            let request = Request::new(self.api.resource_url())
                .list(&parameters)
                .map_err(kube::Error::BuildRequest)?;
            let text = self.client.request_text(request).await?;
            let page: ConfigPage = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
            for item in page.items {
                let named: Named =
                    serde_json::from_str(item.get()).map_err(kube::Error::SerdeError)?;
                sources.push((
                    named.metadata.name.unwrap_or_default(),
                    named.metadata.resource_version.unwrap_or_default(),
                    item.get().to_owned(),
                ));
            }
            match page.metadata.continue_.filter(|it| !it.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(sources),
            }
        }
    }

    /// What the MachineConfig says, with its version, if there is one.
    pub(crate) async fn read(&self, name: &str) -> kube::Result<Option<DynamicObject>> {
        self.api.get_opt(name).await
    }

    /// Makes `document` exist, in the place of `old` if it is there.
    pub(crate) async fn write(
        &self,
        document: &Value,
        old: Option<&DynamicObject>,
    ) -> kube::Result<()> {
        let mut object: DynamicObject =
            serde_json::from_value(document.clone()).map_err(kube::Error::SerdeError)?;
        let parameters = PostParams::default();
        let written = match old {
            None => self.api.create(&parameters, &object).await?,
            Some(old) => {
                object.metadata.resource_version = old.metadata.resource_version.clone();
                object.metadata.uid = old.metadata.uid.clone();
                let name = object.metadata.name.clone().unwrap_or_default();
                self.api.replace(&name, &parameters, &object).await?
            }
        };
        let metadata = json!({ "metadata": written.metadata });
        if let Ok(seen) = serde_json::from_value::<PartialObjectMeta<DynamicObject>>(metadata) {
            self.store.put(seen.into());
        }
        Ok(())
    }

    /// Deletes what was `seen`, if it is still so.
    pub(crate) async fn delete(&self, seen: &ObservedConfig) -> kube::Result<()> {
        let same = only(Some(&seen.uid), Some(&seen.version));
        match self.api.delete(&seen.config.name, &same).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

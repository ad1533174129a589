//! Objects of one kind, as a controller uses them: those that a watch shows, and how they are written. Whatever is read or
//! written is known at once, also before the watch has shown it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use evenkeel_api::names::program;
use evenkeel_daemon::{Check, Stop};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::store::{Kept, Store};

/// Says of which kind a type is that has no more of an object than we read.
macro_rules! narrow {
    ($object:ty, $kind:literal, $plural:literal, $group:literal, $scope:ty) => {
        impl kube::Resource for $object {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &kube::core::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use narrow;

/// Reads of an object's metadata what anybody looks at here. Who manages which of its fields is most of it: that is
/// skipped, and no value is made of it.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(source: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Narrow {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
    let read = Narrow::deserialize(source)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        labels: read.labels,
        annotations: read.annotations,
        ..ObjectMeta::default()
    })
}

/// Objects of the kind `K`, each kept as a `T`. Clones are the same.
#[derive(Clone)]
pub(crate) struct Objects<K, T> {
    api: Api<K>,
    store: Store<T>,
}

impl<K, T> Objects<K, T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Kept + From<K> + Clone,
{
    pub(crate) fn new(api: Api<K>) -> Self {
        Self {
            api,
            store: Store::new(),
        }
    }

    /// What is known of them.
    pub(crate) fn store(&self) -> &Store<T> {
        &self.store
    }

    /// The API server, for what is not said here.
    pub(crate) fn api(&self) -> &Api<K> {
        &self.api
    }

    /// Keeps those that `config` selects, until the program is asked to stop.
    pub(crate) async fn keep(
        &self,
        what: &str,
        config: watcher::Config,
        check: Check,
        stop: &Stop,
    ) {
        let changes = watcher(self.api.clone(), config);
        self.store.keep(what, changes, check, stop).await;
    }

    /// The object as it is now, if there is one.
    pub(crate) async fn read(&self, name: &str) -> kube::Result<Option<T>> {
        let found = self.api.get_opt(name).await?;
        Ok(found.map(|it| self.noted(it)))
    }

    /// Merges `body` into the object.
    pub(crate) async fn merge(&self, name: &str, body: Value) -> kube::Result<T> {
        let written = self.api.patch(name, &ours(), &Patch::Merge(body)).await?;
        Ok(self.noted(written))
    }

    /// Merges `body` into the object, provided that it is still as it was `seen`.
    pub(crate) async fn merge_as_seen(&self, seen: &T, body: Value) -> kube::Result<T> {
        let name = seen.identity().name;
        self.merge(name, as_seen(seen, body)).await
    }

    /// Merges `status` into that of the object, provided that it is still as it was `seen`.
    pub(crate) async fn merge_status_as_seen(
        &self,
        seen: &T,
        status: &impl Serialize,
    ) -> kube::Result<T> {
        let body = Patch::Merge(as_seen(seen, json!({ "status": status })));
        let name = seen.identity().name;
        let written = self.api.patch_status(name, &ours(), &body).await?;
        Ok(self.noted(written))
    }

    /// Deletes the very object that was seen. One that is gone is what was wanted; one that something holds is gone when the
    /// watch tells.
    pub(crate) async fn delete(&self, name: &str, uid: &str) -> kube::Result<()> {
        let very = only(Some(uid), None);
        let held = match self.api.delete(name, &very).await {
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            other => other?.left(),
        };
        match held {
            Some(held) => _ = self.noted(held),
            None => self.store.remove(name, uid),
        }
        Ok(())
    }

    /// Takes note of an object as it is now.
    pub(crate) fn noted(&self, object: K) -> T {
        let seen = T::from(object);
        self.store.put(seen.clone());
        seen
    }
}

impl<K, T> Objects<K, T>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static,
    T: Kept + From<K> + Clone,
{
    /// Makes an object.
    pub(crate) async fn create(&self, object: Value) -> kube::Result<T> {
        let object: K = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let made = self.api.create(&PostParams::default(), &object).await?;
        Ok(self.noted(made))
    }
}

/// All objects of which `page` is the first, each as `read` takes it.
pub(crate) async fn list_all<K, T>(
    api: &Api<K>,
    mut page: ListParams,
    read: impl Fn(K) -> T,
) -> kube::Result<Vec<T>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut all = Vec::new();
    loop {
        let list = api.list(&page).await?;
        all.extend(list.items.into_iter().map(&read));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// A kind, for requests.
pub(crate) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// `body`, for the object as it was seen and no other.
fn as_seen(seen: &impl Kept, mut body: Value) -> Value {
    let identity = seen.identity();
    body["metadata"]["uid"] = json!(identity.uid);
    body["metadata"]["resourceVersion"] = json!(identity.version);
    body
}

/// Deletes the object with this `uid` only, and at this `version` only.
pub(crate) fn only(uid: Option<&str>, version: Option<&str>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: version.map(str::to_owned),
        }),
        ..DeleteParams::default()
    }
}

/// What we write is known as ours.
pub(crate) fn ours() -> PatchParams {
    PatchParams {
        field_manager: Some(program::OPERATOR.to_owned()),
        ..PatchParams::default()
    }
}

//! The ConfigMap with the trust bundle, as its controller uses it: of it only whose it is and what it asks for,
//! never what it says.

use evenkeel_api::names::{label, object};
use evenkeel_api::windows::windows_pool::KIND;
use evenkeel_daemon::{Check, Stop};
use evenkeel_plan::windows::trusted_ca::ObservedBundle;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::objects::Objects;
use crate::store::{Identity, Kept, Store};

const NAME: &str = object::TRUSTED_CA;
const YES: &str = "true";

/// The ConfigMap as it was at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptBundle {
    bundle: ObservedBundle,
    version: String,
}

impl From<ConfigMap> for KeptBundle {
    fn from(map: ConfigMap) -> Self {
        let metadata = map.metadata;
        let labels = metadata.labels.unwrap_or_default();
        let has = |name: &str| labels.get(name).is_some_and(|it| it == YES);
        let mut owners = metadata.owner_references.into_iter().flatten();
        let text = map
            .data
            .and_then(|mut it| it.remove(object::TRUSTED_CA_FILE));
        Self {
            bundle: ObservedBundle {
                uid: metadata.uid.unwrap_or_default(),
                is_going: metadata.deletion_timestamp.is_some(),
                asks: has(label::INJECT_TRUSTED_CA),
                marked: has(label::TRUSTED_CA),
                owned: owners.any(|it| it.kind == KIND),
                is_filled: text.is_some_and(|it| !it.trim().is_empty()),
            },
            version: metadata.resource_version.unwrap_or_default(),
        }
    }
}

impl Kept for KeptBundle {
    fn identity(&self) -> Identity<'_> {
        Identity {
            name: NAME,
            uid: &self.bundle.uid,
            version: &self.version,
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        self.bundle == other.bundle
    }
}

/// The ConfigMap of the operator's namespace, whoever made it.
#[derive(Clone)]
pub(crate) struct TrustedCa(Objects<ConfigMap, KeptBundle>);

impl TrustedCa {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self(Objects::new(Api::namespaced(client, namespace)))
    }

    /// What is known of it.
    pub(crate) fn store(&self) -> &Store<KeptBundle> {
        self.0.store()
    }

    /// As it was seen last.
    pub(crate) fn seen(&self) -> Option<ObservedBundle> {
        self.store()
            .look(|all| all.get(NAME).map(|it| it.bundle.clone()))
    }

    /// Keeps it, until the program is asked to stop.
    pub(crate) async fn keep(&self, check: Check, stop: &Stop) {
        let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        self.0.keep("configmaps", only, check, stop).await;
    }

    /// Makes it, empty: the cluster fills it in.
    pub(crate) async fn create(&self, owner: Option<&Value>) -> kube::Result<()> {
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": NAME,
                "labels": { label::INJECT_TRUSTED_CA: YES, label::TRUSTED_CA: YES },
                "ownerReferences": owner.map(|owner| [owner]),
            },
        });
        self.0.create(map).await.map(|_| ())
    }

    /// Writes the labels that it lacks, and nothing else.
    pub(crate) async fn mend(&self, uid: &str, asks: bool, mark: bool) -> kube::Result<()> {
        let mut labels = json!({});
        for (name, is_due) in [(label::INJECT_TRUSTED_CA, asks), (label::TRUSTED_CA, mark)] {
            if is_due {
                labels[name] = json!(YES);
            }
        }
        let body = json!({ "metadata": { "uid": uid, "labels": labels } });
        self.0.merge(NAME, body).await.map(|_| ())
    }

    /// Deletes the very one that was seen.
    pub(crate) async fn delete(&self, uid: &str) -> kube::Result<()> {
        self.0.delete(NAME, uid).await
    }
}

//! The pods of one node, as narrow as a drain needs them: listed, and evicted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_plan::fleet::drain::{self, Owner, Pod, Refusal};
use evenkeel_plan::readiness::is_tolerated_by;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use kube::core::Status;
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

/// How many pods are asked for at a time.
const PAGE: u32 = 250;

/// What is read of a Pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PodObject {
    metadata: ObjectMeta,
    spec: Spec,
    status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    priority_class_name: Option<String>,
    volumes: Vec<Volume>,
    tolerations: Vec<Toleration>,
    node_selector: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Toleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    empty_dir: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
}

impl Resource for PodObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl From<PodObject> for Pod {
    fn from(object: PodObject) -> Self {
        let PodObject {
            metadata,
            spec,
            status,
        } = object;
        let owners = metadata.owner_references.unwrap_or_default();
        let controller = owners.into_iter().find(|it| it.controller == Some(true));
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            owner: controller.map(|it| Owner {
                kind: it.kind,
                name: it.name,
                uid: it.uid,
            }),
            ours: None,
            priority_class: spec.priority_class_name,
            annotations: metadata.annotations.unwrap_or_default(),
            phase: status.phase,
            ending: metadata.deletion_timestamp.is_some(),
            tolerates_readiness: spec
                .tolerations
                .iter()
                .any(|it| is_tolerated_by(it.key.as_deref(), it.operator.as_deref())),
            has_empty_dir: spec.volumes.iter().any(|it| it.empty_dir.is_some()),
            node_selector: spec.node_selector,
            tolerations: spec
                .tolerations
                .into_iter()
                .map(|it| drain::Toleration {
                    key: it.key,
                    operator: it.operator,
                    value: it.value,
                    effect: it.effect,
                })
                .collect(),
        }
    }
}

/// The pod of this name in `namespace`, if there is one. (To list pods is all that the operator may do with them.)
pub(crate) async fn named(
    client: &Client,
    namespace: &str,
    name: &str,
) -> kube::Result<Option<Pod>> {
    let api: Api<PodObject> = Api::namespaced(client.clone(), namespace);
    let only = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = api.list(&only).await?;
    Ok(list.items.into_iter().next().map(Pod::from))
}

/// All pods that are bound to the node `name`.
pub(crate) async fn of_node(client: &Client, name: &str) -> kube::Result<Vec<Pod>> {
    let api: Api<PodObject> = Api::all(client.clone());
    let mut page = ListParams::default()
        .fields(&format!("spec.nodeName={name}"))
        .limit(PAGE);
    let mut pods = Vec::new();
    loop {
        let list = api.list(&page).await?;
        pods.extend(list.items.into_iter().map(Pod::from));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(pods),
        }
    }
}

/// What became of the eviction of a pod.
#[derive(Debug)]
pub(crate) enum Eviction {
    /// It is on its way.
    Accepted,
    /// It is gone, or the one of that name is another by now: the next list will tell.
    Gone,
    /// Not now, and not again before this time is over.
    Refused(Refusal, Duration),
}

/// Evicts exactly this pod, with its own grace.
pub(crate) async fn evict(client: &Client, pod: &Pod) -> Eviction {
    let api: Api<PodObject> = Api::namespaced(client.clone(), &pod.namespace);
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": { "preconditions": { "uid": pod.uid } },
    });
    // Not `Api::evict`, which sends the options under a name that the API server does not know.
    let asked: kube::Result<Status> = api
        .create_subresource("eviction", &pod.name, &PostParams::default(), &eviction)
        .await;
    match asked {
        Ok(_) => Eviction::Accepted,
        Err(kube::Error::Api(status)) => answer(&status),
        Err(error) => {
            let refusal = Refusal::Failed(error.to_string());
            Eviction::Refused(refusal, Duration::ZERO)
        }
    }
}

fn answer(status: &Status) -> Eviction {
    match status.code {
        // 404: gone already. 409: the uid is another, or somebody wrote to it just now.
        404 | 409 => Eviction::Gone,
        code => {
            let details = status.details.as_ref();
            let cause = details.and_then(|details| {
                let mut causes = details.causes.iter();
                causes.find(|cause| cause.reason == "DisruptionBudget")
            });
            let budget = cause.map(|cause| cause.message.as_str());
            let wait = details.map_or(0, |details| details.retry_after_seconds);
            let refusal = Refusal::of(code, budget, &status.message);
            Eviction::Refused(refusal, Duration::from_secs(wait.into()))
        }
    }
}

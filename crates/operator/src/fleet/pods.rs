//! The pods of one node, as narrow as a drain needs them: listed, and evicted.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use evenkeel_api::notice::Notice;
use evenkeel_plan::fleet::drain::{self, Attempt, Eviction, Owner, Pod, Refusal};
use evenkeel_plan::readiness::is_tolerated_by;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use kube::core::Status;
use kube::{Api, Client};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use crate::fleet::drain::metrics::DrainMetrics;
use crate::objects::{list_all, narrow};

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

narrow!(PodObject, "Pod", "pods", "", NamespaceResourceScope);

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
            ends: metadata.deletion_timestamp.map(|it| it.0),
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
    let page = ListParams::default()
        .fields(&format!("spec.nodeName={name}"))
        .limit(PAGE);
    list_all(&api, page, Pod::from).await
}

/// Asks for the evictions of `pods` of `node`, `at_once` of them at a time; tells what people should hear of refusals and of what is
/// lost, and takes note in `attempts` of who was refused. Says how many were evicted.
pub(crate) async fn evict<'p>(
    client: &Client,
    node: &str,
    pods: impl Iterator<Item = &'p Pod>,
    at_once: usize,
    attempts: &mut BTreeMap<String, Attempt>,
    metrics: &DrainMetrics,
    tell: impl Fn(Notice),
) -> usize {
    let answers = futures::stream::iter(pods).map(async |pod| (pod, evict_one(client, pod).await));
    let mut answers = pin!(answers.buffer_unordered(at_once));
    let mut evicted = Vec::new();
    while let Some((pod, answer)) = answers.next().await {
        metrics.evicted(answer.category());
        match &answer {
            Eviction::Accepted => evicted.push(pod),
            Eviction::Gone => {}
            Eviction::Refused(refusal, _) => {
                tracing::info!(node, %pod, "not evicted: {refusal:?}");
            }
        }
        drain::answered(attempts, pod, answer, Timestamp::now()).map(&tell);
    }
    drain::losses(&evicted).into_iter().for_each(tell);
    evicted.len()
}

/// Evicts exactly this pod, with its own grace.
async fn evict_one(client: &Client, pod: &Pod) -> Eviction {
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
    let details = status.details.as_ref();
    let cause = details.and_then(|details| {
        let mut causes = details.causes.iter();
        causes.find(|cause| cause.reason == "DisruptionBudget")
    });
    let budget = cause.map(|cause| cause.message.as_str());
    let wait = details.map_or(0, |details| details.retry_after_seconds);
    let wait = Duration::from_secs(wait.into());
    Eviction::refused(status.code, budget, &status.message, wait)
}

//! The watches that evidence comes from, each in a task of its own, as narrow as decisions need it; and
//! besides them a look at the API server every half second, which tells whether silence means anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::RuleTaint;
use evenkeel_plan::readiness::{Feed, LeaseSnapshot, PodSnapshot};
use futures::{FutureExt, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::task::{AbortHandle, JoinSet};

use crate::fleet::nodes::PAGE;
use crate::objects::{metadata, narrow};

/// How long a kind that the cluster does not have is left alone.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How many Leases are asked for at a time. A policy bounds those of nodes to a sixth of the largest object, and a new leader
/// reads all of them before it decides.
const LEASES: u32 = 50;
/// How often Leases are listened to: thousands are renewed all the time, and each alone would wake us.
const PACE: Duration = Duration::from_millis(100);
/// How often the API server is looked at, and how soon it must answer.
const CANARY: Duration = Duration::from_millis(500);
pub(super) const LATE: Duration = Duration::from_secs(1);

/// What a watch has to say.
#[derive(Debug)]
pub(super) enum Heard {
    Relisting(Feed),
    Listed(Feed),
    Lease(Feed, String, LeaseSnapshot),
    LostLease(Feed, String),
    Pod(Feed, PodSnapshot),
    LostPod(Feed, String, String),
    /// It cannot be watched, and why.
    Failed(Feed, String),
    /// No pod is left on a node that does not tolerate these taints.
    Evicted(String, BTreeSet<RuleTaint>),
    /// Whether the API server answers in time.
    Watch(bool),
}

/// All watches that run.
pub(super) struct Feeds {
    client: Client,
    heard: Sender<Heard>,
    tasks: JoinSet<()>,
    running: BTreeMap<Feed, AbortHandle>,
    /// Namespace and name of our own Lease, and who looks at it.
    own_lease: (String, String),
    canary: Option<AbortHandle>,
}

impl Feeds {
    /// None yet; our own Lease is `name` of `namespace`.
    pub(super) fn new(
        client: Client,
        heard: Sender<Heard>,
        (namespace, name): (&str, &str),
    ) -> Self {
        Self {
            client,
            heard,
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            own_lease: (namespace.to_owned(), name.to_owned()),
            canary: None,
        }
    }

    /// Looks at the Lease `name` of `namespace` again and again, while silence may mean something: as long as anything is
    /// followed.
    fn look_at_the_server(&mut self, is_wanted: bool) {
        if !is_wanted {
            if let Some(task) = self.canary.take() {
                task.abort();
            }
            return;
        }
        if self.canary.is_some() {
            return;
        }
        let (namespace, name) = self.own_lease.clone();
        let api: Api<LeaseObject> = Api::namespaced(self.client.clone(), &namespace);
        let heard = self.heard.clone();
        let task = self.tasks.spawn(async move {
            loop {
                let answer = tokio::time::timeout(LATE, api.get_opt(&name)).await;
                let answers = Heard::Watch(matches!(answer, Ok(Ok(_))));
                if heard.send(answers).await.is_err() {
                    return;
                }
                tokio::time::sleep(CANARY).await;
            }
        });
        self.canary = Some(task);
    }

    /// Runs these and no others.
    pub(super) fn run(&mut self, wanted: &BTreeSet<Feed>) {
        self.look_at_the_server(!wanted.is_empty());
        self.running.retain(|feed, task| {
            let stays = wanted.contains(feed);
            if !stays {
                task.abort();
            }
            stays
        });
        for feed in wanted {
            if !self.running.contains_key(feed) {
                self.start(feed);
            }
        }
        // Whoever was aborted has ended by the next time.
        while self.tasks.try_join_next().is_some() {}
    }

    /// Begins anew with one, on another connection.
    pub(super) fn restart(&mut self, feed: &Feed) {
        if let Some(task) = self.running.remove(feed) {
            task.abort();
            self.start(feed);
        }
    }

    fn start(&mut self, feed: &Feed) {
        let (client, heard, own) = (self.client.clone(), self.heard.clone(), feed.clone());
        let task = match feed {
            Feed::Leases { namespace } => {
                let api: Api<LeaseObject> = Api::namespaced(client, namespace);
                self.tasks.spawn(async move {
                    let config = watcher::Config::default().page_size(LEASES);
                    follow(api, config, &own, &heard, Some(PACE), lease).await;
                })
            }
            Feed::Pods {
                namespace,
                selector,
            } => {
                let api: Api<EvidencePod> = Api::namespaced(client, namespace);
                let config = watcher::Config::default().labels(selector).page_size(PAGE);
                self.tasks.spawn(async move {
                    follow(api, config, &own, &heard, None, pod).await;
                })
            }
            Feed::Objects { .. } => self.tasks.spawn(objects(client, own, heard)),
        };
        self.running.insert(feed.clone(), task);
    }
}

/// Reads one object of a feed, as it is now.
pub(super) async fn read(
    client: &Client,
    feed: &Feed,
    name: &str,
) -> kube::Result<Option<LeaseSnapshot>> {
    match feed {
        Feed::Leases { namespace } => {
            let api: Api<LeaseObject> = Api::namespaced(client.clone(), namespace);
            Ok(api.get_opt(name).await?.map(|it| snapshot(&it)))
        }
        Feed::Objects {
            api_version,
            kind,
            namespace,
            lease,
        } => {
            let Some(api) = dynamic(client, api_version, kind, namespace).await? else {
                return Ok(None);
            };
            let found = api.get_opt(name).await?;
            Ok(found.and_then(|it| LeaseSnapshot::read_inside(&it.data, lease)))
        }
        Feed::Pods { .. } => Ok(None),
    }
}

/// What is read of a Lease.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeaseObject {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: LeaseSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u32>,
    /// Compared with nothing but itself.
    renew_time: Option<String>,
}

/// What is read of a Pod that tells of an extension.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct EvidencePod {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: PodSpec,
    status: EvidenceStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EvidenceStatus {
    phase: Option<String>,
    conditions: Vec<PodCondition>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    restart_count: u32,
}

narrow!(
    LeaseObject,
    "Lease",
    "leases",
    "coordination.k8s.io",
    NamespaceResourceScope
);
narrow!(EvidencePod, "Pod", "pods", "", NamespaceResourceScope);

fn snapshot(object: &LeaseObject) -> LeaseSnapshot {
    let spec = &object.spec;
    let annotations = object.metadata.annotations.as_ref();
    LeaseSnapshot {
        renewed: spec
            .renew_time
            .clone()
            .unwrap_or_else(|| "never".to_owned()),
        holder: spec.holder_identity.clone().unwrap_or_default(),
        lasts: spec
            .lease_duration_seconds
            .map(|seconds| Duration::from_secs(seconds.into())),
        report: annotations.and_then(|it| it.get(annotation::REPORT).cloned()),
    }
}

fn lease(object: LeaseObject, is_there: bool, feed: &Feed) -> Option<Heard> {
    let snapshot = snapshot(&object);
    let name = object.metadata.name?;
    Some(if is_there {
        Heard::Lease(feed.clone(), name, snapshot)
    } else {
        Heard::LostLease(feed.clone(), name)
    })
}

fn pod(object: EvidencePod, is_there: bool, feed: &Feed) -> Option<Heard> {
    let EvidencePod {
        metadata,
        spec,
        status,
    } = object;
    let (name, node) = (metadata.name?, spec.node_name?);
    if !is_there {
        return Some(Heard::LostPod(feed.clone(), node, name));
    }
    let ready = status.conditions.iter().find(|it| it.kind == "Ready");
    let started: Vec<_> = status
        .container_statuses
        .iter()
        .map(|it| (it.container_id.as_deref(), it.restart_count))
        .collect();
    let since = ready.and_then(|it| it.last_transition_time.as_deref());
    let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let snapshot = PodSnapshot {
        mark: format!(
            "{:?} {:?} {since:?} {started:?}",
            metadata.uid,
            ready.map(|it| &it.status)
        ),
        ready: ready.is_some_and(|it| it.status == "True"),
        ending: is_over || metadata.deletion_timestamp.is_some(),
        name,
        node,
    };
    Some(Heard::Pod(feed.clone(), snapshot))
}

/// Follows a watch for ever. With a pace it is listened to so often, and what came meanwhile is heard together.
async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    feed: &Feed,
    heard: &Sender<Heard>,
    pace: Option<Duration>,
    read: impl Fn(K, bool, &Feed) -> Option<Heard>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut changes = std::pin::pin!(watcher(api, config).default_backoff());
    // What is listed is asked for page by page, and nobody waits between them.
    let mut is_listed = false;
    loop {
        let change = match (changes.next().now_or_never(), pace) {
            (Some(change), _) => change,
            (None, Some(pace)) if is_listed => {
                tokio::time::sleep(pace).await;
                changes.next().await
            }
            (None, _) => changes.next().await,
        };
        let Some(change) = change else {
            return;
        };
        match change {
            Ok(watcher::Event::InitDone) => is_listed = true,
            Ok(watcher::Event::Init) => is_listed = false,
            _ => {}
        }
        let said = match change {
            Ok(watcher::Event::Init) => Some(Heard::Relisting(feed.clone())),
            Ok(watcher::Event::InitDone) => Some(Heard::Listed(feed.clone())),
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                read(object, true, feed)
            }
            Ok(watcher::Event::Delete(object)) => read(object, false, feed),
            Err(error) => Some(Heard::Failed(feed.clone(), error.to_string())),
        };
        if let Some(said) = said
            && heard.send(said).await.is_err()
        {
            return;
        }
    }
}

/// Where objects of a kind are; nothing if the cluster does not have it.
async fn dynamic(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: &str,
) -> kube::Result<Option<Api<DynamicObject>>> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    match kube::discovery::pinned_kind(client, &kind).await {
        Ok((resource, _)) => Ok(Some(Api::namespaced_with(
            client.clone(),
            namespace,
            &resource,
        ))),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(kube::Error::Discovery(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Follows objects with a Lease inside, as soon as the cluster has their kind.
async fn objects(client: Client, feed: Feed, heard: Sender<Heard>) {
    let Feed::Objects {
        api_version,
        kind,
        namespace,
        lease,
    } = &feed
    else {
        return;
    };
    loop {
        let why = match dynamic(&client, api_version, kind, namespace).await {
            Ok(Some(api)) => {
                let read = |object: DynamicObject, is_there: bool, feed: &Feed| {
                    let name = object.metadata.name.clone()?;
                    Some(
                        match LeaseSnapshot::read_inside(&object.data, lease).filter(|_| is_there) {
                            Some(snapshot) => Heard::Lease(feed.clone(), name, snapshot),
                            None => Heard::LostLease(feed.clone(), name),
                        },
                    )
                };
                let config = watcher::Config::default().page_size(PAGE);
                return follow(api, config, &feed, &heard, Some(PACE), read).await;
            }
            // What the cluster does not have tells nothing: neither that something is healthy nor that it is silent.
            Ok(None) => format!("the cluster does not serve kind {kind} of {api_version}"),
            Err(error) => error.to_string(),
        };
        if heard.send(Heard::Failed(feed.clone(), why)).await.is_err() {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

//! The pods bound to a node, moved along as a kubelet moves them: to Running and Ready, and away when
//! they are deleted. No container runs: all start at once, never end by themselves, and use up their
//! whole grace. Init containers are not reported.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::kubelet::{Kubelet, Stage};
use crate::{Doing, Result};

/// How long a kubelet waits after an answer that it did not get.
const AGAIN: Duration = Duration::from_millis(500);

/// Follows the pods of one node.
pub(super) async fn follow_one(kubelet: Arc<Kubelet>) {
    let only = format!("spec.nodeName={}", kubelet.name());
    let events = events(kubelet.client.clone(), &only);
    let follow = events.for_each(|event| {
        take(&kubelet, event);
        std::future::ready(())
    });
    follow.await;
}

/// Follows the pods of all nodes through one watch.
pub(super) async fn follow_all(client: Client, kubelets: HashMap<String, Arc<Kubelet>>) {
    let mut events = std::pin::pin!(events(client, "spec.nodeName!="));
    while let Some(event) = events.next().await {
        let (Event::Apply(pod) | Event::InitApply(pod) | Event::Delete(pod)) = &event else {
            continue;
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        if let Some(kubelet) = node.and_then(|node| kubelets.get(node)) {
            take(kubelet, event);
        }
    }
}

fn events(client: Client, only: &str) -> impl Stream<Item = Event<Pod>> + use<> {
    let config = watcher::Config::default().fields(only);
    watcher(Api::all(client), config)
        .default_backoff()
        .filter_map(|event| std::future::ready(event.ok()))
}

fn take(kubelet: &Arc<Kubelet>, event: Event<Pod>) {
    match event {
        Event::Apply(pod) | Event::InitApply(pod) => {
            if let Some(stage) = next(kubelet, &pod) {
                tokio::spawn(move_along(kubelet.clone(), pod, stage));
            }
        }
        Event::Delete(pod) => {
            kubelet.with_pods(|pods| pods.remove(&pod.uid().unwrap_or_default()));
        }
        Event::Init | Event::InitDone => {}
    }
}

/// What is to be done about `pod`, if it is not being done already.
fn next(kubelet: &Kubelet, pod: &Pod) -> Option<Stage> {
    let uid = pod.uid()?;
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let wanted = match pod.metadata.deletion_grace_period_seconds {
        Some(grace) if pod.metadata.deletion_timestamp.is_some() => Stage::Ending(grace),
        _ if matches!(phase, None | Some("Pending")) => Stage::Started,
        _ => return None,
    };
    kubelet.with_pods(|pods| {
        let news = match (pods.get(&uid), wanted) {
            // A second deletion may shorten the grace, never lengthen it.
            (Some(Stage::Ending(had)), Stage::Ending(grace)) => grace < *had,
            (Some(Stage::Ending(_) | Stage::Started), Stage::Started) => false,
            (Some(Stage::Started), Stage::Ending(_)) | (None, _) => true,
        };
        news.then(|| {
            pods.insert(uid, wanted);
            wanted
        })
    })
}

async fn move_along(kubelet: Arc<Kubelet>, pod: Pod, stage: Stage) {
    match stage {
        Stage::Started => insist(&kubelet, &pod, &Write::Status(running(&kubelet, &pod, 0))).await,
        Stage::Ending(grace) => {
            tokio::time::sleep(Duration::from_secs(grace.unsigned_abs())).await;
            let uid = pod.uid().unwrap_or_default();
            if kubelet.with_pods(|pods| pods.get(&uid) != Some(&stage)) {
                return;
            }
            insist(&kubelet, &pod, &Write::Status(ended(&pod))).await;
            insist(&kubelet, &pod, &Write::Delete).await;
        }
    }
}

/// Every container starts anew: first none is ready, then all are.
pub(super) async fn restart_all(kubelet: &Kubelet) -> Result<()> {
    let pods: Api<Pod> = Api::all(kubelet.client.clone());
    let mine = ListParams::default().fields(&format!("spec.nodeName={}", kubelet.name()));
    let mut mine = pods
        .list(&mine)
        .await
        .doing(|| format!("cannot list the pods of node {}", kubelet.name()))?
        .items;
    mine.retain(|pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    });
    if !kubelet.is_up() {
        return Ok(());
    }
    for pod in &mine {
        insist(kubelet, pod, &Write::Status(stopped(pod))).await;
    }
    for pod in &mine {
        insist(kubelet, pod, &Write::Status(running(kubelet, pod, 1))).await;
    }
    Ok(())
}

enum Write {
    Status(Value),
    Delete,
}

/// Writes until it is written, or the pod or the node is gone, or the server will not have it.
async fn insist(kubelet: &Kubelet, pod: &Pod, write: &Write) {
    let namespace = pod.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(kubelet.client.clone(), &namespace);
    let name = pod.name_any();
    while kubelet.may_write().await {
        let answer = match write {
            Write::Status(status) => {
                // The uid makes sure that it is this pod and not a later one of the same name.
                let patch = json!({ "metadata": { "uid": pod.uid() }, "status": status });
                pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
                    .await
                    .map(|_| ())
            }
            Write::Delete => {
                let only = Preconditions {
                    uid: pod.uid(),
                    resource_version: None,
                };
                let now = DeleteParams {
                    grace_period_seconds: Some(0),
                    preconditions: Some(only),
                    ..DeleteParams::default()
                };
                pods.delete(&name, &now).await.map(|_| ())
            }
        };
        match answer {
            Ok(()) => return,
            Err(kube::Error::Api(answer)) if matches!(answer.code, 400 | 404 | 422) => return,
            Err(kube::Error::Api(answer)) if answer.code == 409 => {
                let now = pods.get_opt(&name).await;
                if now.is_ok_and(|now| now.is_none_or(|now| now.uid() != pod.uid())) {
                    return;
                }
            }
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// The status of a pod whose containers run, each restarted `restarts` times more than before.
fn running(kubelet: &Kubelet, pod: &Pod, restarts: i32) -> Value {
    let now = Time(Timestamp::now());
    let containers = containers(pod, |status| {
        status["ready"] = json!(true);
        status["started"] = json!(true);
        status["restartCount"] =
            json!(status["restartCount"].as_i64().unwrap_or(0) + i64::from(restarts));
        status["state"] = json!({ "running": { "startedAt": now } });
    });
    let host_ip = kubelet.host_ip();
    let on_host = pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.host_network == Some(true));
    let pod_ip = if on_host {
        host_ip.clone()
    } else {
        sandbox_ip(&pod.uid().unwrap_or_default(), &kubelet.boot_id())
    };
    let start = pod
        .status
        .as_ref()
        .and_then(|status| status.start_time.clone());
    json!({
        "phase": "Running",
        "conditions": conditions("True"),
        "hostIP": host_ip,
        "hostIPs": [{ "$patch": "replace" }, { "ip": host_ip }],
        "podIP": pod_ip,
        "podIPs": [{ "$patch": "replace" }, { "ip": pod_ip }],
        "startTime": start.unwrap_or(now),
        "containerStatuses": containers,
    })
}

/// The status of a pod whose machine went down under it.
fn stopped(pod: &Pod) -> Value {
    let now = Time(Timestamp::now());
    let containers = containers(pod, |status| {
        let started = status["state"]["running"]["startedAt"].take();
        let before = terminated(255, "Unknown", &started, &now);
        status["ready"] = json!(false);
        status["started"] = json!(false);
        status["state"] = json!({ "waiting": { "reason": "ContainerCreating" } });
        status["lastState"] = before;
    });
    json!({ "conditions": conditions("False"), "containerStatuses": containers })
}

/// The status of a pod that was deleted and whose containers have ended.
fn ended(pod: &Pod) -> Value {
    let now = Time(Timestamp::now());
    let containers = containers(pod, |status| {
        let started = status["state"]["running"]["startedAt"].take();
        status["ready"] = json!(false);
        status["started"] = json!(false);
        status["state"] = terminated(0, "Completed", &started, &now);
    });
    json!({
        "phase": "Succeeded",
        "conditions": conditions("False"),
        "containerStatuses": containers,
    })
}

fn terminated(exit_code: i32, reason: &str, started: &Value, finished: &Time) -> Value {
    json!({ "terminated": {
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": started,
        "finishedAt": finished,
    }})
}

fn conditions(ready: &str) -> Value {
    let now = Time(Timestamp::now());
    let condition =
        |kind, status| json!({ "type": kind, "status": status, "lastTransitionTime": now });
    json!([
        condition("PodReadyToStartContainers", ready),
        condition("Initialized", "True"),
        condition("Ready", ready),
        condition("ContainersReady", ready),
    ])
}

/// The status of each container, as it was, with `change` made to it.
fn containers(pod: &Pod, change: impl Fn(&mut Value)) -> Vec<Value> {
    let known: &[ContainerStatus] = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default();
    let wanted = pod.spec.iter().flat_map(|spec| &spec.containers);
    wanted
        .map(|container| {
            let was = known.iter().find(|status| status.name == container.name);
            let image = container.image.as_deref().unwrap_or_default();
            let mut status = was
                .and_then(|was| serde_json::to_value(was).ok())
                .unwrap_or_else(|| json!({ "name": container.name, "restartCount": 0 }));
            status["image"] = json!(image);
            status["imageID"] = json!(format!("testbed://{image}"));
            change(&mut status);
            status["containerID"] = json!(format!(
                "testbed://{}/{}/{}",
                pod.uid().unwrap_or_default(),
                container.name,
                status["restartCount"]
            ));
            status
        })
        .collect()
}

/// A pod's address: another one after the machine restarted, as its sandbox is another one.
fn sandbox_ip(uid: &str, boot_id: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (uid, boot_id).hash(&mut hasher);
    let [a, b, c, ..] = hasher.finish().to_be_bytes();
    Ipv4Addr::new(10, a & 127, b, c).to_string()
}

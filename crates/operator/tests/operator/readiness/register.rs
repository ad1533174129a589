//! A real kubelet that registers its Node with the taint, as on clusters without admission policies for new nodes: Kubernetes
//! 1.33 to 1.35.

use std::time::Duration;

use evenkeel_api::names::{annotation, taint};
use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, SystemdNode, need};
use futures::StreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use serde_json::json;
use tokio::sync::mpsc;

use super::bed::is_tainted;
use crate::scene::{Scene, annotated};

const NAME: &str = "registers";
const PATIENCE: Duration = Duration::from_mins(3);

/// When its kubelet last said how its node is.
fn heard(node: &Node) -> Option<String> {
    let status = node.status.as_ref()?;
    let ready = status
        .conditions
        .iter()
        .flatten()
        .find(|it| it.type_ == "Ready")?;
    ready
        .last_heartbeat_time
        .as_ref()
        .map(|it| format!("{:?}", it.0))
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status
        .and_then(|it| it.conditions.as_ref())
        .into_iter()
        .flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

async fn until_node(scene: &Scene, what: &str, is_it: impl Fn(&Node) -> bool) -> Result<Node> {
    until_async(what, PATIENCE, async || {
        let node = scene
            .nodes()
            .get_opt(NAME)
            .await
            .doing(|| "cannot read the Node")?;
        Ok(match node {
            Some(node) if is_it(&node) => Look::Found(node),
            other => Look::NotYet(format!("{:?}", other.and_then(|it| it.spec))),
        })
    })
    .await
}

async fn until_runs(scene: &Scene, pod: &str) -> Result<()> {
    until_async(&format!("pod {pod} to run"), PATIENCE, async || {
        let pod = scene.pods().get(pod).await.doing(|| "no pod")?;
        let phase = pod.status.as_ref().and_then(|it| it.phase.clone());
        Ok(if phase.as_deref() == Some("Running") {
            Look::Found(())
        } else {
            Look::NotYet(format!("{:?}", pod.status))
        })
    })
    .await
}

/// Covers N06.
#[tokio::test]
async fn a_real_kubelet_that_registers_with_the_taint_is_never_without_it_until_it_is_ready()
-> Result<()> {
    let needs = [ControlPlane::NEEDS, SystemdNode::NEEDS, Cluster::NEEDS];
    for need in needs {
        if need::skip(need)? {
            return Ok(());
        }
    }
    let cluster = Cluster::start(&[NAME], &[]).await?;
    let scene = Scene::on(cluster.control_plane(), "reg").await?;
    scene.let_agents_in()?;
    let dp = json!({ "name": "dp", "lease": { "expiry": "5m" } });
    scene
        .rule("dp", json!({ "extensions": [dp], "evictAfter": "0s" }))
        .await?;

    // The machine comes as a new node, with the label of the rule, and with the taint.
    let machine = cluster.node(0);
    machine.run(&["systemctl", "stop", "kubelet.service"])?;
    let options = format!(
        "--node-labels=place={} --register-with-taints={}:NoSchedule",
        scene.name,
        taint::META_READINESS
    );
    let edit = format!("s#^ExecStart=.*#& {options}#");
    machine.run(&["sed", "-i", &edit, "/etc/systemd/system/kubelet.service"])?;
    machine.run(&["systemctl", "daemon-reload"])?;
    let deleted = scene.nodes().delete(NAME, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the Node")?;
    let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let changes = watcher(scene.nodes(), only)
        .default_backoff()
        .applied_objects();
    let (tell, mut told) = mpsc::unbounded_channel();
    let watching = tokio::spawn(changes.for_each(move |change| {
        _ = tell.send(change);
        std::future::ready(())
    }));
    // A pod waits for any node with that label, and tolerates nothing.
    let guest = json!({
        "metadata": { "name": "guest" },
        "spec": {
            "nodeSelector": { "place": scene.name },
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "pause", "image": "pause:1", "imagePullPolicy": "Never" }],
        },
    });
    scene.create::<Pod>(guest).await?;
    machine.run(&["systemctl", "start", "kubelet.service"])?;

    // Nobody of ours runs yet: the kubelet did it alone.
    let new = until_node(&scene, "the new Node to be ready", is_ready).await?;
    assert!(is_tainted(&new), "{:?}", new.spec);
    assert_eq!(annotated(&new, annotation::READINESS_OWNERS), None);

    // The operator takes it over: it says whose it is, and removes it when the evidence is there.
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    let rule = scene.called("dp");
    let taken_over = |it: &Node| annotated(it, annotation::READINESS_OWNERS) == Some(rule.as_str());
    let held = until_node(&scene, "the taint to have its owner", taken_over).await?;
    assert!(is_tainted(&held));
    let guest = scene.pods().get("guest").await.doing(|| "no pod")?;
    assert_eq!(guest.spec.and_then(|it| it.node_name), None, "nobody came");
    scene.renew(NAME, "dp", SignedDuration::ZERO).await?;
    scene.tainted(NAME, false).await?;
    loop {
        let next = told
            .recv()
            .await
            .ok_or_else(|| Error::failed("the watch ended"))?;
        let next = next.doing(|| "the watch failed")?;
        if next.metadata.uid != new.metadata.uid {
            continue;
        }
        if !is_tainted(&next) {
            break;
        }
    }
    watching.abort();
    until_runs(&scene, "guest").await?;

    // Its kubelet starts again: a Node that is there already does not get the taint from it.
    let before = heard(&scene.node(NAME).await?);
    machine.run(&["systemctl", "restart", "kubelet.service"])?;
    let again = |it: &Node| is_ready(it) && heard(it) != before;
    let again = until_node(&scene, "the kubelet to be heard again", again).await?;
    assert_eq!(again.metadata.uid, new.metadata.uid);
    assert!(!is_tainted(&again), "{:?}", again.spec);
    until_runs(&scene, "guest").await
}

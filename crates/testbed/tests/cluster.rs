//! A real cluster is one: its nodes are machines, their pods run, and both come back from a boot.

#![cfg(target_os = "linux")]

use std::time::Duration;

use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, SystemdNode, need};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

const PATIENCE: Duration = Duration::from_mins(3);

async fn running(api: &Api<Pod>, name: &str, restarts: i32) -> Result<Pod> {
    until_async(&format!("pod {name} to run"), PATIENCE, async || {
        let pod = api.get(name).await.doing(|| "cannot read the pod")?;
        let containers = pod
            .status
            .as_ref()
            .and_then(|it| it.container_statuses.clone());
        let is_running = containers.iter().flatten().any(|it| {
            it.state.as_ref().is_some_and(|it| it.running.is_some()) && it.restart_count == restarts
        });
        Ok(if is_running {
            Look::Found(pod)
        } else {
            Look::NotYet(format!("{:?}", pod.status))
        })
    })
    .await
}

#[tokio::test]
async fn a_pod_runs_on_a_real_node_with_a_network_and_comes_back_from_a_boot() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)?
        || need::skip(SystemdNode::NEEDS)?
        || need::skip(Cluster::NEEDS)?
    {
        return Ok(());
    }
    let mut cluster = Cluster::start(&["real"], &[]).await?;
    let client = cluster.control_plane().admin_kubeconfig().client().await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({
        "metadata": { "name": "pause" },
        "spec": {
            "containers": [{ "name": "pause", "image": "pause:1", "imagePullPolicy": "Never" }],
            "terminationGracePeriodSeconds": 1,
        },
    });
    let pod = serde_json::from_value(pod).doing(|| "no pod")?;
    pods.create(&PostParams::default(), &pod)
        .await
        .doing(|| "cannot make the pod")?;
    let pod = running(&pods, "pause", 0).await?;
    let address = pod.status.and_then(|it| it.pod_ip).unwrap_or_default();
    assert!(address.starts_with("10."), "{address}");

    let nodes: Api<Node> = Api::all(client);
    let boot = async || {
        let node = nodes.get("real").await.doing(|| "cannot read the node")?;
        Ok::<_, evenkeel_testbed::Error>(
            node.status.and_then(|it| it.node_info).map(|it| it.boot_id),
        )
    };
    let before = boot().await?;
    assert_eq!(before, Some(cluster.node(0).boot_id()?));
    cluster.node_mut(0).reboot()?;
    running(&pods, "pause", 1).await?;
    cluster.until_ready("real").await?;
    let after = boot().await?;
    assert_ne!(after, before, "it is another boot");
    assert_eq!(after, Some(cluster.node(0).boot_id()?));
    Ok(())
}

//! A real cluster is one: its nodes are machines, their pods run, and both come back from a boot.

#![cfg(target_os = "linux")]

use std::time::Duration;

use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until, until_async};
use evenkeel_testbed::{Doing, Result, SystemdNode, need};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client};
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

/// Makes a pod that only waits, and waits until it runs.
async fn paused(client: Client) -> Result<(Api<Pod>, Pod)> {
    let pods: Api<Pod> = Api::namespaced(client, "default");
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
    Ok((pods, pod))
}

fn skip() -> Result<bool> {
    Ok(need::skip(ControlPlane::NEEDS)?
        || need::skip(SystemdNode::NEEDS)?
        || need::skip(Cluster::NEEDS)?)
}

#[tokio::test]
async fn a_pod_runs_on_a_real_node_with_a_network_and_comes_back_from_a_boot() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let mut cluster = Cluster::start(&["real"], &[]).await?;
    let client = cluster.control_plane().admin_kubeconfig().client().await?;
    let (pods, pod) = paused(client.clone()).await?;
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

/// The kubelet's own port tells whether it runs; its pods are there all the time.
#[tokio::test]
async fn a_nodes_kubelet_and_runtime_are_units_of_its_machine() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let cluster = Cluster::start(&["units"], &[]).await?;
    let client = cluster.control_plane().admin_kubeconfig().client().await?;
    let (pods, pod) = paused(client).await?;
    let node = cluster.node(0);
    let serves = |expected: bool| {
        let what = format!("the kubelet to serve: {expected}");
        until(&what, PATIENCE, || {
            let asked = node.run(&["bash", "-c", "exec 3<> /dev/tcp/127.0.0.1/10250"]);
            Ok(match asked {
                Ok(_) if expected => Look::Found(()),
                Err(_) if !expected => Look::Found(()),
                Ok(_) => Look::NotYet("it does".to_owned()),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
    };
    let invocation = |unit: &str| node.run(&["systemctl", "show", "--property=InvocationID", unit]);
    serves(true)?;
    node.run(&["systemctl", "stop", "kubelet.service"])?;
    serves(false)?;
    node.run(&["systemctl", "start", "kubelet.service"])?;
    serves(true)?;
    for (unit, command) in [
        ("kubelet.service", "restart"),
        ("kubelet.service", "kill --signal=KILL"),
        ("containerd.service", "restart"),
    ] {
        let before = invocation(unit)?;
        node.run(&["sh", "-euc", &format!("systemctl {command} {unit}")])?;
        until(&format!("{unit} to run anew"), PATIENCE, || {
            let now = invocation(unit)?;
            Ok(if now == before {
                Look::NotYet(now)
            } else {
                Look::Found(())
            })
        })?;
        serves(true)?;
    }
    cluster.until_ready("units").await?;
    let after = running(&pods, "pause", 0).await?;
    assert_eq!(after.metadata.uid, pod.metadata.uid);
    Ok(())
}

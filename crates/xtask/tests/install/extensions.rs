//! What real extensions of a node do: a device plugin and a storage driver that register at its kubelet, and the network of its
//! pods, of which the kubelet says in a condition whether it works.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use serde_json::{Value, json};

use crate::installed::{Installed, PATIENCE, is_ready};
use crate::objects::web;
use crate::release::Release;
use crate::skip;

const NODE: &str = "only";
const RESOURCE: &str = "example.com/device";
const DRIVER: &str = "storage.example.com";
/// The network of the node's pods, as its container runtime reads it.
const NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";
/// How soon a node is tainted after the socket of a plugin is gone: the agent's probes have a period of 5 s, and three must fail.
const TAINTED: Duration = Duration::from_secs(20);
/// How long the agent misses a plugin before it forgets it here.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// A device plugin and a storage driver become extensions of their node by registering at its kubelet, and a rule looks at what
/// the kubelet says of the pods' network. The node is open while all of them work.
///
/// Covers K07.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn a_node_is_open_while_its_device_plugin_its_driver_and_its_network_work() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let files = Scratch::new("extensions")?;
    let mut images = release.images();
    images.push(Cluster::extension_image(files.path())?);
    let options = [
        "--set=agent.registerKubeletPlugins=true".to_owned(),
        format!("--set=agent.forgetPluginsAfter={}s", FORGOTTEN.as_secs()),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let chart = release.chart();
    let installed = Installed::with(&[NODE], &release, &chart, &images, &options).await?;
    installed.until_ready(2, 1).await?;
    installed.apply(&web(2))?;
    installed.until_ready_in("default", 2).await?;
    let workload = workload(&installed)?;

    // They register, and the kubelet knows them.
    installed.apply(&plugin("device", RESOURCE))?;
    installed.apply(&plugin("driver", DRIVER))?;
    until_listed(&installed, &["device", DRIVER]).await?;
    installed
        .until_node(NODE, "the kubelet to have the device", |node| {
            node["status"]["allocatable"][RESOURCE] == "1"
        })
        .await?;
    until_async("the kubelet to have the driver", PATIENCE, async || {
        let drivers = installed.get(&["csinodes", NODE])?["spec"]["drivers"].take();
        Ok(if drivers.to_string().contains(DRIVER) {
            Look::Found(())
        } else {
            Look::NotYet(drivers.to_string())
        })
    })
    .await?;
    installed.until_tainted(NODE, false).await?;

    // Each of them closes the node while it is away.
    for kind in ["device", "driver"] {
        let begun = Instant::now();
        stop(&installed, kind, true)?;
        installed.until_tainted(NODE, true).await?;
        let took = begun.elapsed();
        println!(
            "proof: {kind} stopped: tainted after {:.1} s",
            took.as_secs_f64()
        );
        assert!(!is_soak() || took < TAINTED, "{kind}: {took:?}");
        stop(&installed, kind, false)?;
        installed.until_tainted(NODE, false).await?;
    }

    // A kubelet that starts removes the sockets of device plugins: they are missed, and not forgotten. They register again so soon,
    // and the agent asks them at once, that the node need not be closed for it.
    let node = installed.cluster.node(0);
    let before = kubelet_start(&installed)?;
    node.run(&["systemctl", "restart", "kubelet.service"])?;
    until_async(
        "the agent to tell of another kubelet",
        PATIENCE,
        async || {
            let now = kubelet_start(&installed)?;
            Ok(if now == before {
                Look::NotYet(now.to_string())
            } else {
                Look::Found(())
            })
        },
    )
    .await?;
    installed
        .until_node(NODE, "the kubelet to have the device again", |node| {
            node["status"]["allocatable"][RESOURCE] == "1"
        })
        .await?;
    installed.until_tainted(NODE, false).await?;
    until_listed(&installed, &["device", DRIVER]).await?;

    // Whoever goes for good is forgotten, and closes the node no longer than that takes.
    installed.control_plane().kubectl(&[
        "delete",
        "daemonset",
        "device",
        "--namespace=default",
        "--wait",
    ])?;
    installed.until_tainted(NODE, true).await?;
    until_listed(&installed, &[DRIVER]).await?;
    installed.until_tainted(NODE, false).await?;

    // The network of the pods, by the kubelet's own word.
    installed.apply(&network_rule())?;
    until_rule_holds(&installed).await?;
    let network = node.read(NETWORK)?;
    node.run(&["rm", NETWORK])?;
    installed
        .until_node(NODE, "the kubelet to miss the network", |node| {
            let conditions = node["status"]["conditions"].to_string();
            !is_ready(node) && conditions.contains("cni plugin not initialized")
        })
        .await?;
    installed.until_tainted(NODE, true).await?;
    node.write(NETWORK, &network)?;
    installed
        .until_node(NODE, "the node to be ready", is_ready)
        .await?;
    installed.until_tainted(NODE, false).await?;

    installed.until_clean().await?;
    assert_eq!(self::workload(&installed)?, workload, "a pod was disturbed");
    Ok(())
}

/// Which start of the kubelet the agent tells of.
fn kubelet_start(installed: &Installed) -> Result<Value> {
    let lease = format!("{NODE}.evenkeel-agent");
    let lease = installed.get(&["lease", &lease, "--namespace=node-extensions"])?;
    let report = lease["metadata"]["annotations"]["evenkeel.dev/report"].as_str();
    let report: Value =
        serde_json::from_str(report.unwrap_or_default()).doing(|| "the report is no JSON")?;
    Ok(report["kubeletStart"].clone())
}

/// One of them on each node; it can always be scheduled, as extensions must.
fn plugin(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": kind, "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "extension": kind } },
            "template": {
                "metadata": { "labels": { "extension": kind } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{
                        "name": kind,
                        "image": Cluster::EXTENSION_IMAGE,
                        "imagePullPolicy": "Never",
                        "args": [kind, name],
                        "volumeMounts": [{ "name": "kubelet", "mountPath": "/var/lib/kubelet" }],
                    }],
                    "volumes": [{ "name": "kubelet", "hostPath": { "path": "/var/lib/kubelet" } }],
                },
            },
        },
    })
}

/// Moves all pods of one of them away, or back.
fn stop(installed: &Installed, kind: &str, is_stopped: bool) -> Result<()> {
    let nowhere = if is_stopped {
        json!("nowhere")
    } else {
        Value::Null
    };
    let patch =
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "at": nowhere } } } } });
    let patch = format!("--patch={patch}");
    let words = ["patch", "daemonset", kind, "--namespace=default", &patch];
    installed.control_plane().kubectl(&words).map(|_| ())
}

fn network_rule() -> Value {
    json!({
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "NodeReadinessRule",
        "metadata": { "name": "network" },
        "spec": {
            "nodeSelector": { "matchLabels": { "kubernetes.io/os": "linux" } },
            "evictAfter": "0s",
            "extensions": [{ "name": "network", "condition": { "type": "Ready" } }],
        },
    })
}

/// The pods of people's workload.
fn workload(installed: &Installed) -> Result<BTreeSet<String>> {
    let pods = installed.get(&["pods", "--namespace=default", "--selector=app=web"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let of = |pod: &Value| {
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        format!("{} {restarts}", pod["metadata"]["uid"])
    };
    Ok(pods.iter().map(of).collect())
}

/// Waits until these, and no others, are in the node's own list.
async fn until_listed(installed: &Installed, names: &[&str]) -> Result<()> {
    until_async("the node's own list", PATIENCE, async || {
        let list = installed.annotation(NODE, "evenkeel.dev/system-extensions")?;
        let entries: Vec<Value> = match list.as_str() {
            "" => Vec::new(),
            text => serde_json::from_str(text).doing(|| "the list is no JSON")?,
        };
        let found: BTreeSet<&str> = entries
            .iter()
            .filter_map(|it| it["name"].as_str())
            .collect();
        Ok(if found == names.iter().copied().collect() {
            Look::Found(())
        } else {
            Look::NotYet(list)
        })
    })
    .await
}

async fn until_rule_holds(installed: &Installed) -> Result<()> {
    until_async("the rule to be followed", PATIENCE, async || {
        let rule = installed.get(&["nodereadinessrules", "network"])?;
        Ok(if rule["status"]["nodes"]["ready"] == 1 {
            Look::Found(())
        } else {
            Look::NotYet(rule["status"].to_string())
        })
    })
    .await
}

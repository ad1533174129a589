//! `helm uninstall` of what is at work: what people run is not touched, and nothing of ours is left.

use std::collections::BTreeMap;

use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use serde_json::{Value, json};

use crate::installed::{Installed, PATIENCE, is_ready, is_tainted};
use crate::objects::{config, pool, web};
use crate::release::Release;
use crate::skip;

const NODES: [&str; 2] = ["first", "second"];
/// How many pods people run.
const PODS: usize = 4;

/// What stays, by kind and a beginning of its names: docs/install.md says so.
const STAYS: [(&str, &str); 14] = [
    // They are people's.
    ("MachineConfig", ""),
    ("MachineConfigPool", ""),
    ("NodeReadinessRule", ""),
    // Their kinds; with a kind all of its objects would go.
    ("CustomResourceDefinition", "machineconfigs."),
    ("CustomResourceDefinition", "machineconfigpools."),
    ("CustomResourceDefinition", "nodereadinessrules."),
    ("CustomResourceDefinition", "rolloutpolicies."),
    ("CustomResourceDefinition", "windowspools."),
    ("APIService", "v1alpha1.evenkeel.dev"),
    // Helm made the one, other extensions use the other. Kubernetes has two objects in each namespace.
    ("Namespace", "evenkeel"),
    ("Namespace", "node-extensions"),
    ("ServiceAccount", "default"),
    ("ConfigMap", "kube-root-ca.crt"),
    // What happened; the API server forgets it after an hour.
    ("Event", ""),
];

/// A rule taints one node, a drain that a budget blocks cordons another, and then all of it goes.
///
/// Covers K06.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn an_uninstall_in_a_drain_leaves_pods_and_nodes_running_and_nothing_of_ours() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&NODES, &release).await?;
    installed.until_ready(2, NODES.len()).await?;
    installed.apply(&web(PODS))?;
    installed.apply(&budget())?;
    installed.until_ready_in("default", PODS).await?;
    let before = pods(&installed)?;
    assert_eq!(before.len(), PODS);
    let boots = boots(&installed)?;

    installed
        .control_plane()
        .kubectl(&["label", "node", "second", "gpu=true"])?;
    installed.apply(&rule())?;
    installed.apply(&config("blocked"))?;
    installed.apply(&pool())?;
    until_async("a taint and a cordon of ours", PATIENCE, async || {
        let nodes = nodes(&installed)?;
        let is_ours = |node: &Value| {
            node["spec"]["unschedulable"] == true
                && node["metadata"]["annotations"]["evenkeel.dev/cordoned-by"].is_string()
        };
        Ok(
            if nodes.iter().any(is_tainted) && nodes.iter().any(is_ours) {
                Look::Found(())
            } else {
                let specs = nodes.iter().map(|it| it["spec"].to_string());
                Look::NotYet(specs.collect::<Vec<_>>().join(", "))
            },
        )
    })
    .await?;

    installed.helm(&["uninstall"], &["--timeout=5m"])?;

    assert_eq!(pods(&installed)?, before, "what people run was disturbed");
    assert_eq!(self::boots(&installed)?, boots, "a node was rebooted");
    for node in nodes(&installed)? {
        assert!(is_ready(&node), "{node}");
        assert_ne!(node["spec"]["unschedulable"], true, "{node}");
        assert_eq!(node["spec"]["taints"], Value::Null, "{node}");
    }
    // What objects own is removed behind them.
    until_async("nothing of ours to be left", PATIENCE, async || {
        let left = left(&installed)?;
        Ok(if left.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(left.join("\n"))
        })
    })
    .await?;
    assert_eq!(pods(&installed)?, before, "what people run was disturbed");
    // Whoever installs again finds what was left, and takes it up.
    installed.helm(&["install", &release.chart()], &[])?;
    installed.until_ready(2, NODES.len()).await
}

fn budget() -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "minAvailable": PODS, "selector": { "matchLabels": { "app": "web" } } },
    })
}

/// Nobody renews that Lease.
fn rule() -> Value {
    json!({
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "NodeReadinessRule",
        "metadata": { "name": "gpu" },
        "spec": {
            "nodeSelector": { "matchLabels": { "gpu": "true" } },
            "evictAfter": "0s",
            "extensions": [{
                "name": "device-plugin",
                "lease": { "namespace": "node-extensions", "name": "{node}.device-plugin", "expiry": "10s" },
            }],
        },
    })
}

fn nodes(installed: &Installed) -> Result<Vec<Value>> {
    let nodes = installed.get(&["nodes"])?;
    Ok(nodes["items"].as_array().cloned().unwrap_or_default())
}

fn boots(installed: &Installed) -> Result<Vec<String>> {
    let numbers = 0..NODES.len();
    numbers
        .map(|it| installed.cluster.node(it).boot_id())
        .collect()
}

/// People's pods by uid, and how often their containers were started again.
fn pods(installed: &Installed) -> Result<BTreeMap<String, Value>> {
    let pods = installed.get(&["pods", "--namespace", "default"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let of = |pod: &Value| {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let status = &pod["status"]["containerStatuses"][0];
        let restarts = status["restartCount"].clone();
        (uid.to_owned(), json!([is_ready(pod), restarts]))
    };
    Ok(pods.iter().map(of).collect())
}

/// Every object of any kind in any namespace that speaks of us, but for what is to stay.
fn left(installed: &Installed) -> Result<Vec<String>> {
    let control_plane = installed.control_plane();
    let kinds = control_plane.kubectl(&["api-resources", "--verbs=list", "--output=name"])?;
    let kinds: Vec<&str> = kinds.lines().collect();
    assert!(kinds.len() > 50, "{kinds:?}");
    let all = installed.get(&[&kinds.join(","), "--all-namespaces"])?;
    let all = all["items"].as_array().cloned().unwrap_or_default();
    assert!(all.len() > 100, "{}", all.len());
    let mut left = Vec::new();
    for mut object in all {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if STAYS
            .iter()
            .any(|(of, begin)| *of == kind && name.starts_with(begin))
        {
            continue;
        }
        // Who wrote a field once is no object of ours.
        object["metadata"]["managedFields"] = Value::Null;
        // Which images a machine has is its kubelet's to say, and to clear away.
        object["status"]["images"] = Value::Null;
        let text = serde_json::to_string(&object).doing(|| "no text")?;
        if text.contains("evenkeel") {
            left.push(format!("{kind} {name}: {text}"));
        }
    }
    Ok(left)
}

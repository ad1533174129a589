//! Kubelets and container runtimes that stop, die, come back as another version, or do not come back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Result, SystemdNode};
use serde_json::{Value, json};

use crate::installed::{Installed, NAMESPACE, PATIENCE, is_ready, until_updated};
use crate::objects::{config, pool, web};
use crate::release::Release;
use crate::skip;

const NODES: [&str; 2] = ["first", "second"];
/// Whose clients the kubelet serves: it is read when that starts.
const AUTHORITY: &str = "/etc/kubernetes/kubelet-ca.crt";
/// How soon a node is tainted after its kubelet or its runtime.
const TAINTED: Duration = Duration::from_secs(2);
/// How soon the pods of a node are heard again under another kubelet: that renews its Lease every 10 s, and they count 10 s later.
const HEARD: Duration = Duration::from_secs(30);
/// How long a drain waits here for pods that no kubelet ends.
const BOUND: Duration = Duration::from_secs(10);
/// What the operator may need on top of that: it looks at a node that is drained every two seconds.
const LOOK: Duration = Duration::from_secs(5);

/// Covers K04.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn another_kubelet_or_runtime_closes_a_node_for_a_moment_and_disturbs_no_pod() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&NODES, &release).await?;
    installed.until_ready(2, NODES.len()).await?;
    installed.apply(&web(2))?;
    installed.apply(&plugin())?;
    installed.until_ready_in("default", 4).await?;
    // Evicts sooner than a kubelet is heard again: waiting for that is no reason.
    installed.apply(&rule("8s"))?;
    until_rule_holds(&installed).await?;
    let pods = pods(&installed)?;
    let node = installed.cluster.node(0);

    for (what, command) in [
        ("restarted", "systemctl restart kubelet.service"),
        (
            "killed",
            "start() { systemctl show --property=InvocationID kubelet.service; }
             before=$(start)
             systemctl kill --signal=KILL kubelet.service
             while [ \"$(start)\" = \"$before\" ]; do sleep 0.1; done",
        ),
        // There is one kubelet in this test bed. This is another file, which calls itself another version, with another setting.
        (
            "upgraded",
            "systemctl stop kubelet.service
             LC_ALL=C sed -i s/v1[.]37[.]0/v1.37.1/g /usr/bin/kubelet
             echo 'maxPods: 64' >> /etc/kubernetes/kubelet.yaml
             systemctl start kubelet.service",
        ),
    ] {
        node.run(&["sh", "-euc", command])?;
        let begun = Instant::now();
        installed.until_tainted(NODES[0], true).await?;
        let tainted = begun.elapsed();
        installed.until_tainted(NODES[0], false).await?;
        let back = begun.elapsed();
        println!(
            "proof: kubelet {what}: tainted after {:.1} s, open again after {:.1} s",
            tainted.as_secs_f64(),
            back.as_secs_f64()
        );
        assert!(!is_soak() || tainted < TAINTED, "{what}: {tainted:?}");
        assert!(!is_soak() || back < HEARD, "{what}: {back:?}");
        assert_eq!(self::pods(&installed)?, pods, "kubelet {what}");
    }
    installed
        .until_node(
            NODES[0],
            "first to say that it has another kubelet",
            |node| {
                node["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.1"
                    && node["status"]["capacity"]["pods"] == "64"
            },
        )
        .await?;

    installed.apply(&rule("1m"))?;
    node.run(&["systemctl", "stop", "containerd.service"])?;
    let begun = Instant::now();
    installed.until_tainted(NODES[0], true).await?;
    let tainted = begun.elapsed();
    node.run(&["systemctl", "start", "containerd.service"])?;
    installed.until_tainted(NODES[0], false).await?;
    println!(
        "proof: containerd stopped: tainted after {:.1} s",
        tainted.as_secs_f64()
    );
    assert!(!is_soak() || tainted < TAINTED, "{tainted:?}");
    node.run(&["systemctl", "restart", "containerd.service"])?;
    installed.cluster.until_ready(NODES[0]).await?;
    installed.until_tainted(NODES[0], false).await?;
    assert_eq!(self::pods(&installed)?, pods, "containerd");
    installed.until_clean().await
}

/// The node of the first zone loses its kubelet in the middle of a drain, and then by a configuration of its own. The other zone
/// waits for it; it must not wait for the other zone.
///
/// Covers K04.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn a_node_without_a_kubelet_is_drained_and_repaired_by_its_next_configuration() -> Result<()>
{
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&NODES, &release).await?;
    installed.until_ready(2, NODES.len()).await?;
    for (node, zone) in NODES.iter().zip(["a", "b"]) {
        let zone = format!("topology.kubernetes.io/zone={zone}");
        installed
            .control_plane()
            .kubectl(&["label", "node", node, &zone])?;
    }
    installed.apply(&web(2))?;
    installed.apply(&budget())?;
    installed.until_ready_in("default", 2).await?;
    let [first, second] = [0, 1].map(|it| installed.cluster.node(it));

    // The budget holds the drain until the kubelet is dead.
    let boots = [first.boot_id()?, second.boot_id()?];
    installed.apply(&config("one"))?;
    installed.apply(&hasty_pool())?;
    let granted = "evenkeel.dev/drain-granted";
    installed
        .until_node(NODES[0], "first to be drained", |node| {
            !node["metadata"]["annotations"][granted].is_null()
        })
        .await?;
    first.run(&["systemctl", "stop", "kubelet.service"])?;
    let budget = ["delete", "poddisruptionbudget", "web"];
    installed.control_plane().kubectl(&budget)?;
    installed
        .until_node(NODES[0], "first to be not ready", |node| !is_ready(node))
        .await?;
    let begun = Instant::now();
    installed
        .until_node(NODES[0], "the drain to end", |node| {
            let of = |it: &str| {
                let name = format!("machineconfiguration.openshift.io/{it}");
                node["metadata"]["annotations"][name].clone()
            };
            of("lastAppliedDrain") == of("desiredDrain")
        })
        .await?;
    let took = begun.elapsed();
    println!(
        "proof: a drain without a kubelet ended {:.1} s after the node was not ready, the bound is {BOUND:?}",
        took.as_secs_f64()
    );
    // The node's condition has whole seconds.
    assert!(took + Duration::from_secs(2) > BOUND, "{took:?}");
    assert!(!is_soak() || took < BOUND + LOOK, "{took:?}");
    let events = installed.get(&["events", "--all-namespaces"])?;
    assert!(
        events.to_string().contains("DrainSkipsTerminating"),
        "{events}"
    );
    until_updated(&installed, first, &boots[0], "one").await?;
    until_updated(&installed, second, &boots[1], "one").await?;
    installed.until_ready(2, NODES.len()).await?;

    // A certificate that is none disrupts nobody, until the kubelet starts with it.
    let boots = [first.boot_id()?, second.boot_id()?];
    let authority = first.read(AUTHORITY)?;
    installed.apply(&with_authority("one", b"none"))?;
    for node in [first, second] {
        until_authority(node, b"none").await?;
    }
    installed.until_clean().await?;
    first.run(&["systemctl", "restart", "kubelet.service"])?;
    installed
        .until_node(NODES[0], "first to be not ready", |node| !is_ready(node))
        .await?;
    installed.apply(&with_authority("two", &authority))?;
    let begun = Instant::now();
    until_updated(&installed, first, &boots[0], "two").await?;
    println!(
        "proof: a node whose kubelet was dead ran its next configuration after {:.0} s, with a boot",
        begun.elapsed().as_secs_f64()
    );
    until_updated(&installed, second, &boots[1], "two").await?;
    installed.until_ready(2, NODES.len()).await?;
    installed.until_ready_in("default", 2).await?;
    installed.until_clean().await?;
    for name in NODES {
        let node = installed.get(&["node", name])?;
        assert!(is_ready(&node), "{node}");
        assert_ne!(node["spec"]["unschedulable"], true, "{node}");
    }
    Ok(())
}

/// Waits until the operator follows the rule, and finds both nodes ready.
async fn until_rule_holds(installed: &Installed) -> Result<()> {
    until_async("the rule to be followed", PATIENCE, async || {
        let rule = installed.get(&["nodereadinessrules", "all"])?;
        let nodes = &rule["status"]["nodes"];
        Ok(if nodes["total"] == 2 && nodes["ready"] == 2 {
            Look::Found(())
        } else {
            Look::NotYet(rule["status"].to_string())
        })
    })
    .await
}

async fn until_authority(node: &SystemdNode, contents: &[u8]) -> Result<()> {
    let what = format!("node {} to have the certificate", node.name());
    until_async(&what, PATIENCE, async || {
        let file = node.read(AUTHORITY)?;
        Ok(if file == contents {
            Look::Found(())
        } else {
            Look::NotYet(String::from_utf8_lossy(&file).into_owned())
        })
    })
    .await
}

/// All pods of ours and of the workload, with how often their containers were started again.
fn pods(installed: &Installed) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for namespace in ["default", NAMESPACE] {
        let pods = installed.get(&["pods", "--namespace", namespace])?;
        for pod in pods["items"].as_array().cloned().unwrap_or_default() {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            let deleted = &pod["metadata"]["deletionTimestamp"];
            all.insert(
                pod["metadata"]["uid"].to_string(),
                format!("{} {restarts} {deleted}", pod["metadata"]["name"]),
            );
        }
    }
    Ok(all)
}

/// What stands for an extension: a pod on every node.
fn plugin() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "plugin", "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": "plugin" } },
            "template": {
                "metadata": { "labels": { "app": "plugin" } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "tolerations": [{ "key": "kubernetes.io/MetaReadiness", "operator": "Exists" }],
                    "containers": [{ "name": "plugin", "image": "pause:1", "imagePullPolicy": "Never" }],
                },
            },
        },
    })
}

fn rule(evict_after: &str) -> Value {
    json!({
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "NodeReadinessRule",
        "metadata": { "name": "all" },
        "spec": {
            "nodeSelector": { "matchLabels": { "kubernetes.io/os": "linux" } },
            "evictAfter": evict_after,
            "extensions": [
                {
                    "name": "plugin",
                    "pods": { "namespace": "default", "selector": { "matchLabels": { "app": "plugin" } } },
                },
                {
                    "name": "runtime",
                    "probe": { "service": { "name": "containerd.service" }, "period": "1s", "failureThreshold": 1 },
                },
            ],
        },
    })
}

fn budget() -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } },
    })
}

/// A pool whose drains wait only briefly for pods that no kubelet ends.
fn hasty_pool() -> Value {
    let mut pool = pool();
    let bound = format!("{}s", BOUND.as_secs());
    pool["metadata"]["annotations"] = json!({ "evenkeel.dev/drain-skip-wait-for-delete": bound });
    pool
}

/// A configuration with a file that needs a reboot, and the authority of the kubelet's clients, which needs nothing.
fn with_authority(contents: &str, authority: &[u8]) -> Value {
    let mut config = config(contents);
    let encoded: Vec<_> = authority.iter().map(|it| format!("%{it:02X}")).collect();
    let encoded = encoded.concat();
    let files = &mut config["spec"]["config"]["storage"]["files"];
    if let Some(files) = files.as_array_mut() {
        files.push(json!({
            "path": AUTHORITY,
            "mode": 0o644,
            "overwrite": true,
            "contents": { "source": format!("data:,{encoded}") },
        }));
    }
    config
}

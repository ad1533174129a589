//! `explain`, `readiness dry-run` and readiness in `status`, typed by somebody who may only look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_api::fleet::machine_config_pool::Condition;
use evenkeel_api::readiness::{NodeCounts, RuleStatus, Worst};
use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Result, need};
use serde_json::{Value, json};

use super::fleet::Fleet;

fn rule(name: &str, extensions: &Value) -> Value {
    json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule", "metadata": { "name": name },
        "spec": { "nodeSelector": { "matchLabels": { "pool": "gpu" } }, "extensions": extensions },
    })
}

fn lease(node: &str, extension: &str, second: u32) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": format!("{node}.{extension}"), "namespace": "node-extensions" },
        "spec": { "holderIdentity": node, "leaseDurationSeconds": 10, "renewTime": format!("2026-01-01T00:00:{second:02}.000000Z") },
    })
}

/// Covers X07.
#[test]
fn explain_says_what_a_node_waits_for_and_a_dry_run_whom_a_rule_would_taint() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    for node in ["gpu-1", "gpu-2"] {
        fleet.node(node, "gpu", "rendered-gpu-1")?;
        fleet.apply(&lease(node, "dp", 0))?;
    }
    fleet.node("web-1", "web", "rendered-web-1")?;
    // A status object with a Lease inside, which is not renewed.
    fleet.apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "plugins.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": "Plugin", "plural": "plugins" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            } } }],
        },
    }))?;
    fleet.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/plugins.example.com",
    ])?;
    for words in [
        &[
            "clusterrole",
            "plugins",
            "--verb=list",
            "--resource=plugins.example.com",
        ][..],
        &[
            "clusterrolebinding",
            "plugins",
            "--clusterrole=plugins",
            "--user=viewer",
        ][..],
    ] {
        fleet.kubectl(&[&["create"], words].concat())?;
    }
    fleet.apply(&json!({
        "apiVersion": "example.com/v1", "kind": "Plugin",
        "metadata": { "name": "gpu-2", "namespace": "node-extensions" },
        "lease": { "holderIdentity": "gpu-2", "leaseDurationSeconds": 3, "renewTime": "2026-01-01T00:00:00.000000Z" },
    }))?;
    let plugin = json!({ "apiVersion": "example.com/v1", "kind": "Plugin", "namespace": "node-extensions", "name": "{node}", "lease": ".lease" });
    let extensions = json!([
        { "name": "dp", "lease": { "expiry": "4s" } },
        { "name": "soft", "status": plugin, "affectsReadiness": false },
        { "name": "log", "lease": { "expiry": "4s" }, "affectsReadiness": false },
    ]);
    let file = fleet.give("rule.json", &rule("gpu", &extensions))?;

    // The lease of gpu-1 goes on being renewed; its clock is in another year. That of gpu-2 does not.
    let stopped = Arc::<AtomicBool>::default();
    let said = std::thread::scope(|scope| {
        let asked = Arc::clone(&stopped);
        let fleet = &fleet;
        scope.spawn(move || {
            let mut second = 1;
            while !asked.load(Ordering::SeqCst) {
                _ = fleet.apply(&lease("gpu-1", "dp", second % 60));
                second += 1;
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let dry_run = ["readiness", "dry-run", "-f", &file, "--wait", "5s"];
        let tried = fleet.says("viewer", &dry_run);
        let json = fleet.says("viewer", &[&dry_run[..], &["-o", "json"]].concat());
        fleet.kubectl(&["apply", "-f", &file])?;
        let taint = json!([{ "key": "kubernetes.io/MetaReadiness", "effect": "NoSchedule" }]);
        let patch = json!({ "spec": { "taints": taint }, "metadata": { "annotations": { "evenkeel.dev/readiness-owners": "gpu" } } });
        fleet.kubectl(&[
            "patch",
            "node",
            "gpu-2",
            "--type=merge",
            "-p",
            &patch.to_string(),
        ])?;
        let well = fleet.says("viewer", &["explain", "gpu-1"]);
        let held = fleet.says("viewer", &["explain", "gpu-2"]);
        let document = fleet.says("viewer", &["explain", "gpu-2", "-o", "json"]);
        let other = fleet.says("viewer", &["explain", "web-1"]);
        stopped.store(true, Ordering::SeqCst);
        Ok::<_, evenkeel_testbed::Error>([tried?, json?, well?, held?, document?, other?])
    });
    stopped.store(true, Ordering::SeqCst);
    let [tried, json, well, held, document, other] = said?;
    fleet.kubectl(&["delete", "nodereadinessrules", "--all"])?;

    assert_eq!(tried.code, Some(2), "{tried:?}");
    assert!(
        tried
            .out
            .contains("rule gpu: 1 of 2 nodes would be tainted now"),
        "{tried:?}"
    );
    assert!(
        tried
            .out
            .contains("dp: Lease node-extensions/gpu-2.dp was not renewed for 4s"),
        "{tried:?}"
    );
    let tainted = &json.json()["tainted"];
    assert_eq!(tainted.as_array().map(Vec::len), Some(1), "{tainted}");
    assert_eq!(tainted[0]["node"], "gpu-2");

    assert_eq!(well.code, Some(0), "{well:?}");
    assert!(well.out.contains("gpu-1: ready for pods"), "{well:?}");
    assert!(well.out.contains("no (optional)"), "{well:?}");
    assert_eq!(held.code, Some(2), "{held:?}");
    for words in [
        "gpu-2: not ready for pods",
        "held by gpu",
        "silent",
        "soft       gpu   Plugin node-extensions/gpu-2                silent",
        "! dp: Lease node-extensions/gpu-2.dp was not renewed for 4s",
        "Next: waiting for dp to be healthy; then the operator removes the taint",
        "configuration: Done, current rendered-gpu-1",
    ] {
        assert!(held.out.contains(words), "{words}: {held:?}");
    }
    let document = document.json();
    assert_eq!(document["heldBy"], json!(["gpu"]));
    let blocking: Vec<_> = document["extensions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|it| it["blocks"] == true)
        .collect();
    assert_eq!(blocking.len(), 1, "{document}");
    assert_eq!(blocking[0]["extension"], "dp");
    assert!(
        other
            .out
            .contains("nothing: no readiness rule selects this node"),
        "{other:?}"
    );

    let wrong = fleet.says("viewer", &["explain", "nobody"])?;
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong
            .err
            .contains("node nobody does not exist: `kubectl get nodes`"),
        "{wrong:?}"
    );
    let pool = fleet.give("pool.json", &super::fleet::machine_config("m", "web", &[]))?;
    let wrong = fleet.says("viewer", &["readiness", "dry-run", "-f", &pool])?;
    assert!(wrong.err.contains("give a NodeReadinessRule"), "{wrong:?}");
    Ok(())
}

/// Covers N01.
#[test]
fn explain_judges_a_condition_as_the_operator_does() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    fleet.node("gpu-1", "gpu", "rendered-gpu-1")?;
    let extensions = json!([{ "name": "net", "condition": { "type": "NetReady" } }]);
    fleet.apply(&rule("net", &extensions))?;
    let write = |minute: u32| {
        let at = format!("2026-01-01T00:{minute:02}:00Z");
        let condition = json!({
            "type": "NetReady", "status": "True", "reason": "Test", "message": "",
            "lastHeartbeatTime": at, "lastTransitionTime": at,
        });
        let patch = json!({ "status": { "conditions": [condition] } }).to_string();
        let words = ["patch", "node", "gpu-1", "--subresource=status"];
        fleet.kubectl(&[&words[..], &["--type=strategic", "-p", &patch]].concat())?;
        Ok::<_, evenkeel_testbed::Error>(format!("True {at} {at}"))
    };
    let hold = |record: Option<&str>| {
        let taint = json!([{ "key": "kubernetes.io/MetaReadiness", "effect": "NoSchedule" }]);
        let annotations = json!({ "evenkeel.dev/readiness-owners": "net", "evenkeel.dev/readiness-record": record });
        let patch =
            json!({ "spec": { "taints": taint }, "metadata": { "annotations": annotations } });
        let patch = patch.to_string();
        fleet.kubectl(&["patch", "node", "gpu-1", "--type=merge", "-p", &patch])
    };
    // A new node whose condition came once: the operator opens it.
    let before = write(1)?;
    hold(None)?;
    let said = fleet.says("viewer", &["explain", "gpu-1", "-o", "json"])?;
    let said = said.json();
    assert_eq!(said["extensions"][0]["says"], "healthy", "{said}");
    // It was rebooted after that: the operator waits.
    let record = json!({ "before": { "net/net": before } }).to_string();
    hold(Some(&record))?;
    let said = fleet.says("viewer", &["explain", "gpu-1"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    for words in [
        "! net: condition NetReady was not written since the reboot",
        "Next: waiting for net to be healthy; then the operator removes the taint",
    ] {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
    // It is written again.
    write(2)?;
    let said = fleet.says("viewer", &["explain", "gpu-1", "-o", "json"])?;
    let said = said.json();
    assert_eq!(said["extensions"][0]["says"], "healthy", "{said}");
    assert_eq!(said["extensions"][0]["blocks"], false, "{said}");
    fleet.kubectl(&["delete", "nodereadinessrules", "--all"])?;
    Ok(())
}

/// Covers R11, X07.
#[test]
fn status_tells_every_rule_what_its_limits_hold_back_and_the_worst_few() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let said = fleet.says("viewer", &["status", "-o", "json"])?.json();
    assert_eq!(said["readiness"], json!({ "rules": [], "zones": [] }));
    for (node, zone) in [("gpu-1", "a"), ("gpu-2", "a"), ("gpu-3", "b")] {
        fleet.node(node, "gpu", "rendered-gpu-1")?;
        let zone = format!("topology.kubernetes.io/zone={zone}");
        fleet.kubectl(&["label", "node", node, &zone])?;
    }
    fleet.node("web-1", "web", "rendered-web-1")?;
    let extensions = json!([{ "name": "dp", "lease": {} }]);
    fleet.apply(&rule("gpu", &extensions))?;
    let said = fleet.says("viewer", &["status"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.out.contains(
            "! rule gpu: the operator has not processed this rule yet: check that it runs"
        ),
        "{said:?}"
    );

    // What an operator says of it, in a storm.
    let condition = |kind: &str, status: &str, reason: &str, message: &str| Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        last_transition_time: None,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let limits = "zone a: 2 of 2 nodes are not ready and 2 are quiet: one taint for silence every 1s, no evictions in a zone of up to 50 nodes";
    let mut status = RuleStatus {
        observed_generation: 1,
        nodes: NodeCounts {
            total: 3,
            ready: 1,
            not_ready: 2,
            evicting: 1,
            held_back: 1,
        },
        worst: vec![Worst {
            node: "gpu-2".to_owned(),
            extension: "dp".to_owned(),
            why: "Lease node-extensions/gpu-2.dp was not renewed for 10s".to_owned(),
        }],
        conditions: vec![
            condition("Valid", "True", "Followed", ""),
            condition("Guarded", "True", "Storm", limits),
        ],
    };
    let write = |status: &RuleStatus| {
        let patch = json!({ "status": status }).to_string();
        let words = ["patch", "nodereadinessrule", "gpu", "--subresource=status"];
        fleet.kubectl(&[&words[..], &["--type=merge", "-p", &patch]].concat())
    };
    write(&status)?;
    for node in ["gpu-1", "gpu-2"] {
        let taint = json!([{ "key": "kubernetes.io/MetaReadiness", "effect": "NoSchedule" }]);
        let patch = json!({ "spec": { "taints": taint }, "metadata": { "annotations": { "evenkeel.dev/readiness-owners": "gpu" } } });
        let patch = patch.to_string();
        fleet.kubectl(&["patch", "node", node, "--type=merge", "-p", &patch])?;
    }
    let said = fleet.says("viewer", &["status"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    let shown: String = said
        .out
        .split_inclusive('\n')
        .skip_while(|line| !line.starts_with("RULE"))
        .collect();
    assert_eq!(
        shown,
        format!(
            "RULE  STATE    READY   EVICTING  HELD BACK
gpu   guarded  1 of 3  1         1
! rule gpu: {limits}

ZONE  NOT READY
a     2 of 2
b     0 of 1

NODE   RULE  EXTENSION  WHY
gpu-2  gpu   dp         Lease node-extensions/gpu-2.dp was not renewed for 10s
and 1 more; run `evenkeel explain NODE` for the cause
"
        ),
        "{said:?}"
    );
    let json = fleet.says("viewer", &["status", "-o", "json"])?.json();
    let readiness = &json["readiness"];
    assert_eq!(readiness["rules"][0]["nodes"]["heldBack"], 1);
    assert_eq!(readiness["rules"][0]["problems"], json!([limits]));
    assert_eq!(
        readiness["zones"][0],
        json!({ "zone": "a", "nodes": 2, "notReady": 2 })
    );

    // It is over.
    status.nodes = NodeCounts {
        total: 3,
        ready: 3,
        ..NodeCounts::default()
    };
    status.worst.clear();
    status.conditions[1] = condition("Guarded", "False", "Calm", "");
    // A merge would leave what is not there any more.
    let mut calm = json!({ "status": status });
    calm["status"]["worst"] = Value::Null;
    let words = ["patch", "nodereadinessrule", "gpu", "--subresource=status"];
    let calm = calm.to_string();
    fleet.kubectl(&[&words[..], &["--type=merge", "-p", &calm]].concat())?;
    for node in ["gpu-1", "gpu-2"] {
        let patch = json!({ "spec": { "taints": null }, "metadata": { "annotations": { "evenkeel.dev/readiness-owners": null } } });
        let patch = patch.to_string();
        fleet.kubectl(&["patch", "node", node, "--type=merge", "-p", &patch])?;
    }
    let said = fleet.says("viewer", &["status"])?;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.ends_with(
            "RULE  STATE     READY   EVICTING  HELD BACK\ngpu   followed  3 of 3  0         0\n"
        ),
        "{said:?}"
    );
    fleet.kubectl(&["delete", "nodereadinessrules", "--all"])?;
    Ok(())
}

/// Covers N07, X07.
#[test]
fn status_shows_the_rules_of_node_readiness_controller_and_which_nobody_follows() -> Result<()> {
    const KIND: &str = "nodereadinessrules.readiness.node.x-k8s.io";
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let definition = include_str!("../../../operator/tests/operator/readiness/nrc/crd.json");
    let definition: Value = serde_json::from_str(definition).doing(|| "no definition")?;
    fleet.apply(&definition)?;
    let definition = format!("crd/{KIND}");
    fleet.kubectl(&["wait", "--for=condition=Established", &definition])?;
    // Who may look with this option may look at them, too.
    let chart = Chart::render("evenkeel", &["--set=readiness.nrcRules=true"])?;
    chart.component("people").apply(fleet.control_plane)?;
    for node in ["gpu-1", "gpu-2"] {
        fleet.node(node, "gpu", "rendered-gpu-1")?;
    }
    let taint = json!([{ "key": "readiness.k8s.io/network", "effect": "NoSchedule" }]);
    let patch = json!({ "spec": { "taints": taint } }).to_string();
    fleet.kubectl(&["patch", "node", "gpu-2", "--type=merge", "-p", &patch])?;
    fleet.apply(&json!({
        "apiVersion": "readiness.node.x-k8s.io/v1alpha1", "kind": "NodeReadinessRule", "metadata": { "name": "network" },
        "spec": {
            "conditions": [{ "type": "NetReady", "requiredStatus": "True" }], "enforcementMode": "continuous",
            "taint": { "key": "readiness.k8s.io/network", "effect": "NoSchedule" },
            "nodeSelector": { "matchLabels": { "pool": "gpu" } },
        },
    }))?;
    let said = fleet.says("viewer", &["status"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    for words in [
        "nrc/network  not followed  1 of 2",
        "! rule nrc/network: nobody follows this rule: run node-readiness-controller, or the operator with --nrc-rules",
    ] {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }

    // Whoever follows it has not come to one node.
    let failed = json!({ "nodeName": "gpu-2", "reason": "Conflict", "message": "the Node was changed", "lastEvaluationTime": "2026-01-01T00:00:00Z" });
    let patch =
        json!({ "status": { "observedGeneration": 1, "failedNodes": [failed] } }).to_string();
    let words = [
        "patch",
        KIND,
        "network",
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    fleet.kubectl(&[&words[..], &[&patch]].concat())?;
    let said = fleet.says("viewer", &["status", "-o", "json"])?.json();
    let rule = &said["readiness"]["rules"][0];
    assert_eq!(rule["state"], "followed", "{rule}");
    assert_eq!(
        rule["nodes"],
        json!({ "total": 2, "ready": 1, "notReady": 1 })
    );
    assert_eq!(
        rule["problems"],
        json!(["node gpu-2 cannot be written: the Node was changed"])
    );

    // All is well.
    let patch = json!({ "spec": { "taints": null } }).to_string();
    fleet.kubectl(&["patch", "node", "gpu-2", "--type=merge", "-p", &patch])?;
    let patch = json!({ "status": { "failedNodes": null } }).to_string();
    fleet.kubectl(&[&words[..], &[&patch]].concat())?;
    let said = fleet.says("viewer", &["status"])?;
    fleet.kubectl(&["delete", &definition])?;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("nrc/network  followed  2 of 2"),
        "{said:?}"
    );
    Ok(())
}

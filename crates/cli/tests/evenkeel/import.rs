//! `readiness import`: rules of node-readiness-controller as ours.

use std::io::Write;
use std::process::Stdio;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Result, need};
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::scene::{Scene, evenkeel, program};

fn theirs(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "readiness.node.x-k8s.io/v1alpha1", "kind": "NodeReadinessRule",
        "metadata": {
            "name": name, "uid": "u", "labels": { "team": "net" },
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}" },
            "finalizers": ["readiness.node.x-k8s.io/cleanup-taints"],
        },
        "spec": spec,
        "status": { "observedGeneration": 1, "appliedNodes": ["a"] },
    })
}

fn all() -> Value {
    let selector = json!({ "matchLabels": { "pool": "imported" } });
    let taint = |effect: &str| json!({ "key": "readiness.k8s.io/net", "value": "pending", "effect": effect });
    let boot = theirs(
        "boot",
        &json!({
            "conditions": [
                { "type": "example.com/CalicoReady", "requiredStatus": "True" },
                { "type": "KernelDeadlock", "requiredStatus": "False", "defaultStatus": "False" },
                { "type": "Odd", "requiredStatus": "Unknown" },
            ],
            "enforcementMode": "bootstrap-only", "taint": taint("NoSchedule"), "nodeSelector": selector,
        }),
    );
    let always = theirs(
        "always",
        &json!({
            "conditions": [
                { "type": "Calico", "requiredStatus": "True" }, { "type": "Cilium", "requiredStatus": "True" },
            ],
            "conditionPolicy": "anyOf", "enforcementMode": "continuous", "taint": taint("NoExecute"),
            "nodeSelector": { "matchExpressions": [{ "key": "pool", "operator": "In", "values": ["imported"] }] },
            "dryRun": true,
        }),
    );
    json!({ "apiVersion": "v1", "kind": "List", "items": [boot, always] })
}

/// Covers N09.
#[test]
fn rules_of_node_readiness_controller_become_ours_and_it_says_what_differs() -> Result<()> {
    let mut child = program()
        .args(["readiness", "import", "-f", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .doing(|| "cannot start evenkeel")?;
    if let Some(mut input) = child.stdin.take() {
        let text = all().to_string();
        input.write_all(text.as_bytes()).doing(|| "cannot write")?;
    }
    let said = child.wait_with_output().doing(|| "it did not end")?;
    assert!(said.status.success(), "{said:?}");
    let list: Value = serde_json::from_slice(&said.stdout).doing(|| "no JSON")?;
    let selector = json!({ "matchLabels": { "pool": "imported" } });
    assert_eq!(
        list["items"][0],
        json!({
            "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule",
            "metadata": { "name": "boot", "labels": { "team": "net" } },
            "spec": {
                "nodeSelector": selector, "enforcement": "Bootstrap", "evictAfter": "0s",
                "taint": { "key": "readiness.k8s.io/net", "value": "pending" },
                "extensions": [
                    { "name": "example.com-calico-ready", "condition": { "type": "example.com/CalicoReady" } },
                    { "name": "kernel-deadlock", "condition": {
                        "type": "KernelDeadlock", "status": "False", "defaultStatus": "False",
                    } },
                    { "name": "odd", "condition": { "type": "Odd", "status": "Unknown", "defaultStatus": "Unknown" } },
                ],
            },
        })
    );
    let spec = &list["items"][1]["spec"];
    assert_eq!(spec["taint"]["effect"], "NoExecute");
    assert_eq!(spec["evictAfter"], "10s");
    assert_eq!(spec["dryRun"], true);
    assert_eq!(
        spec["extensions"],
        json!([{ "name": "conditions", "anyOf": [{ "type": "Calico" }, { "type": "Cilium" }] }])
    );
    let notes = String::from_utf8_lossy(&said.stderr);
    for (rule, word) in [
        ("boot", "nodes that have completed it are judged once more"),
        (
            "always",
            "NoExecute: the taint is NoSchedule until the pods were evicted",
        ),
        (
            "always",
            "after a reboot, a condition counts once its writer writes it again",
        ),
    ] {
        let is_said = notes
            .lines()
            .any(|it| it.starts_with(&format!("warning: rule {rule}: {word}")));
        assert!(is_said, "{rule} {word}: {notes}");
    }
    // As YAML it is what check takes, one document for each.
    let scene = Scene::new();
    let file = scene.give_json("theirs.json", &all());
    let yaml = evenkeel(&["readiness", "import", "-f", &file]);
    let ours = scene.give("ours.yaml", &yaml.out);
    let checked = evenkeel(&["check", &ours]);
    assert_eq!(checked.code, Some(0), "{}{}", yaml.out, checked.err);
    assert_eq!(yaml.out.matches("\n---\n").count(), 1, "{}", yaml.out);
    // Anything else is refused.
    let mut broken = all();
    broken["items"][0]["spec"]["conditionPolicy"] = json!("mostOf");
    broken["items"][1]["spec"]["taint"]["key"] = json!("example.com/x");
    for (name, given, message) in [
        (
            "policy",
            broken.clone(),
            "conditionPolicy \"mostOf\" is unknown: use allOf or anyOf",
        ),
        (
            "key",
            broken,
            "taint.key \"example.com/x\" does not begin with readiness.k8s.io/",
        ),
        (
            "kind",
            json!({ "apiVersion": "v1", "kind": "Node" }),
            "this is no NodeReadinessRule",
        ),
    ] {
        let file = scene.give_json(name, &given);
        let said = evenkeel(&["readiness", "import", "-f", &file]);
        assert!(
            said.code == Some(1) && said.err.contains(message),
            "{name}: {}",
            said.err
        );
    }
    Ok(())
}

/// Covers N09.
#[test]
fn imported_rules_are_accepted_beside_theirs_and_kubectl_tells_them_apart() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let file = fleet.give("theirs.json", &all())?;
    let said = evenkeel(&["readiness", "import", "-f", &file, "-o", "json"]);
    let list: Value = serde_json::from_str(&said.out).doing(|| "no JSON")?;
    for rule in list["items"].as_array().into_iter().flatten() {
        fleet.apply(rule)?;
    }
    let found = fleet.kubectl(&[
        "get",
        "ekr",
        "always",
        "-o",
        "jsonpath={.spec.taint.effect}",
    ])?;
    assert_eq!(found, "NoExecute");
    let names = fleet.kubectl(&[
        "get",
        "crd",
        "nodereadinessrules.evenkeel.dev",
        "-o",
        "jsonpath={.spec.names.shortNames}",
    ])?;
    assert!(!names.contains("nrr"), "{names}");
    Ok(())
}

//! What a rule or a node names and the cluster does not have, or nobody may read: others do not notice.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::{Doing, Result, need};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::bed::{EXTENSIONS, is_tainted};
use crate::scene::{Scene, alone};

/// Longer than a kind that the cluster does not have is left alone.
const EXPIRY: Duration = Duration::from_secs(32);

/// A kind that the operator may watch, and may not read one by one.
fn unreadable() -> [Value; 2] {
    let names = json!({ "kind": "Unreadable", "plural": "unreadables" });
    let any = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    [
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "unreadables.example.com" },
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": names,
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": any }],
            },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": "list-unreadables", "labels": { "evenkeel.dev/aggregate-to-readiness": "true" } },
            "rules": [{ "apiGroups": ["example.com"], "resources": ["unreadables"], "verbs": ["list", "watch"] }],
        }),
    ]
}

fn apply(scene: &Scene, name: &str, object: &Value) -> Result<()> {
    let file = scene.scratch.path().join(name);
    std::fs::write(&file, object.to_string()).doing(|| "cannot write")?;
    let file = file.display().to_string();
    scene.control_plane.kubectl(&["apply", "-f", &file])?;
    Ok(())
}

fn of(kind: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": kind, "namespace": EXTENSIONS, "name": "{node}", "lease": ".lease",
    })
}

fn reason(status: &Value) -> Value {
    let conditions = status["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|it| it["type"] == "Valid"));
    found.map(|it| it["reason"].clone()).unwrap_or_default()
}

/// Covers N03, S03.
#[tokio::test]
async fn a_lease_expires_in_time_beside_a_rule_and_a_node_that_name_what_is_not_there() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("missing").await?;
    scene.prepare_readiness()?;
    let guard = alone();
    for (number, object) in unreadable().iter().enumerate() {
        apply(&scene, &format!("theirs-{number}.json"), object)?;
    }
    scene.control_plane.kubectl(&[
        "wait",
        "--for=condition=Established",
        "crd/unreadables.example.com",
    ])?;
    drop(guard);
    let mut nodes = Vec::new();
    for role in ["odd", "own", "good"] {
        let node = scene.describe(role).label("role", role);
        nodes.push(scene.start(node).await?);
    }
    let [odd, own, good] = [0, 1, 2].map(|it: usize| nodes[it].name().to_owned());
    let lease = json!({ "holderIdentity": odd, "leaseDurationSeconds": 3, "renewTime": "2026-01-01T00:00:00.000000Z" });
    let object = json!({
        "apiVersion": "example.com/v1", "kind": "Unreadable",
        "metadata": { "name": odd, "namespace": EXTENSIONS }, "lease": lease,
    });
    apply(&scene, "object.json", &object)?;
    let list = json!([{ "name": "m", "status": of("MissingToo") }]).to_string();
    let list = json!({ "metadata": { "annotations": { annotation::SYSTEM_EXTENSIONS: list } } });
    scene.patch(&own, &list).await?;
    let selects = |role: &str| json!({ "matchLabels": { "place": scene.name, "role": role } });
    let rule = |role: &str, extension: Value| json!({ "nodeSelector": selects(role), "extensions": [extension], "evictAfter": "0s" });
    let missing = json!({ "name": "m", "status": of("Missing") });
    scene.rule("missing", rule("odd", missing)).await?;
    let unread = json!({ "name": "u", "status": of("Unreadable") });
    scene.rule("unread", rule("odd", unread)).await?;
    let expiry = format!("{}s", EXPIRY.as_secs());
    let lease = json!({ "name": "dp", "lease": { "expiry": expiry } });
    scene.rule("good", rule("good", lease)).await?;
    scene.renew(&good, "dp", SignedDuration::ZERO).await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;

    // Each says so, and nobody else does.
    for rule in ["missing", "unread"] {
        scene
            .rule_status(rule, |it| reason(it) == "CannotWatch")
            .await?;
    }
    let note = scene.event(&own, "CannotWatch").await?;
    assert!(note.contains("does not serve kind MissingToo"), "{note}");
    let good_one = scene
        .rule_status("good", |it| it["nodes"]["ready"] == 1)
        .await?;
    assert_eq!(reason(&good_one), "Followed");

    let promise = "tainted within two seconds of its end";
    let is_kept = |silent: &Duration| *silent < EXPIRY + Duration::from_secs(2);
    let silent = kept_async(promise, is_kept, async || {
        scene.renew(&good, "dp", SignedDuration::ZERO).await?;
        let last = Instant::now();
        scene.tainted(&good, false).await?;
        let tainted = scene.tainted(&good, true).await;
        tainted.map_err(|error| scene.explain(&error))?;
        Ok(last.elapsed())
    })
    .await?;
    println!(
        "proof: a Lease of {EXPIRY:?} beside kinds that are missing or may not be read: tainted {silent:?} after its last renewal"
    );
    // What is not there tells nothing, and taints nobody.
    for node in [&odd, &own] {
        assert!(!is_tainted(&scene.node(node).await?), "{}", scene.log());
    }
    let said = scene.events(&own).await?;
    let said = said.iter().filter(|(reason, _)| reason == "CannotWatch");
    assert_eq!(said.count(), 1, "once");
    let log = scene.log();
    let said = log
        .lines()
        .filter(|it| it.contains("does not serve kind Missing of"));
    assert_eq!(said.count(), 1, "once: {log}");
    Ok(())
}

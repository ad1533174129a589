//! `explain` and `readiness dry-run`, typed by somebody who may only look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Result, need};
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
    let extensions = json!([
        { "name": "dp", "lease": { "expiry": "4s" } },
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
        let tried = fleet.says("viewer", &["readiness", "dry-run", "-f", &file]);
        let json = fleet.says(
            "viewer",
            &["readiness", "dry-run", "-f", &file, "-o", "json"],
        );
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
    assert!(well.out.contains("no, it is optional"), "{well:?}");
    assert_eq!(held.code, Some(2), "{held:?}");
    for words in [
        "gpu-2: not ready for pods",
        "held by gpu",
        "silent",
        "! dp: Lease node-extensions/gpu-2.dp was not renewed for 4s",
        "Next: the taint goes when dp is well",
        "configuration: Done, runs rendered-gpu-1",
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
        other.out.contains("no readiness rule is about this node"),
        "{other:?}"
    );

    let wrong = fleet.says("viewer", &["explain", "nobody"])?;
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong
            .err
            .contains("there is no node nobody: `kubectl get nodes`"),
        "{wrong:?}"
    );
    let pool = fleet.give("pool.json", &super::fleet::machine_config("m", "web", &[]))?;
    let wrong = fleet.says("viewer", &["readiness", "dry-run", "-f", &pool])?;
    assert!(wrong.err.contains("give a NodeReadinessRule"), "{wrong:?}");
    Ok(())
}

//! How far upgrades of Windows nodes are, and who may hold them.

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Result, need};
use serde_json::json;

use super::fleet::Fleet;

const OLD: &str = "1.2.3-abc1234";
const NEW: &str = "1.3.0-bbbbbbb";

#[test]
fn upgrades_are_shown_node_by_node_and_held_by_whoever_may() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let none = fleet.says("editor", &["upgrade", "pause"])?;
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(
        none.err.contains("WindowsPool windows does not exist"),
        "{none:?}"
    );
    fleet.apply(&json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "WindowsPool",
        "metadata": { "name": "windows" }, "spec": {},
    }))?;
    for (name, version) in [("win-1", NEW), ("win-2", OLD), ("win-3", OLD)] {
        fleet.apply(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "labels": { "kubernetes.io/os": "windows" },
                "annotations": { "windowsmachineconfig.openshift.io/version": version },
            },
        }))?;
        let ready = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
        let patch = ["patch", "node", name, "--subresource=status", "-p", ready];
        fleet.kubectl(&patch)?;
    }
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let status = json!({ "status": {
        "version": NEW, "nodes": { "total": 3, "updated": 1, "updating": 1, "failing": 0 },
        "updating": [{ "node": "win-2", "to": NEW, "phase": "Draining" }],
        "conditions": [
            condition("Upgradeable", "True", "AsExpected"),
            condition("Updating", "True", "RollingOut"),
            condition("Degraded", "False", "AsExpected"),
        ],
    } });
    let status = status.to_string();
    let pool = ["patch", "windowspool", "windows", "--type=merge"];
    fleet.kubectl(&[&pool[..], &["--subresource=status", "-p", &status]].concat())?;

    let said = fleet.says("viewer", &["status"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    let row = |first: &str| {
        let mut lines = said.out.lines();
        let line = lines.find(|it| it.starts_with(first)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        row("windows "),
        format!("windows rolling out 1 of 3 [######--------------] {NEW}")
    );
    assert_eq!(row("win-1"), "", "it is done: {said:?}");
    assert_eq!(
        row("win-2"),
        format!("win-2 {OLD} → {NEW} Draining its pods to leave")
    );
    assert_eq!(
        row("win-3"),
        format!("win-3 {OLD} → {NEW} Waiting win-2 to finish")
    );
    let explained = fleet.says("viewer", &["explain", "win-3", "--wait", "0s"])?;
    let line = "  rollout of pool windows: Waiting, win-2 to finish\n";
    assert!(explained.out.contains(line), "{explained:?}");
    let shown = fleet.says("viewer", &["status", "-o", "json"])?.json();
    assert_eq!(shown["windows"]["nodes"][1]["from"], OLD);
    assert_eq!(
        shown["windows"]["nodes"][1]["waitsFor"],
        "its pods to leave"
    );

    let denied = fleet.says("viewer", &["upgrade", "pause"])?;
    assert_eq!(denied.code, Some(1));
    assert!(denied.err.contains("evenkeel-editor"), "{denied:?}");
    for (words, is_paused, says) in [
        ("pause", "true", "no further node is upgraded or removed"),
        ("pause", "true", "already paused"),
        ("resume", "false", "Resumed Windows nodes"),
        ("resume", "false", "not paused"),
    ] {
        let said = fleet.says("editor", &["upgrade", words])?;
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.contains(says), "{said:?}");
        let paused = [
            "get",
            "windowspool",
            "windows",
            "-o",
            "jsonpath={.spec.paused}",
        ];
        assert_eq!(fleet.kubectl(&paused)?.trim(), is_paused);
    }
    fleet.kubectl(&["delete", "windowspool", "windows"])?;
    Ok(())
}

//! How far Windows instances are, and a host key that has changed.

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Result, need};
use serde_json::{Value, json};

use super::fleet::Fleet;

fn map(kind: &str, name: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind, "data": data,
        "metadata": { "name": name, "namespace": "evenkeel" },
    })
}

/// What the removal of a node waits for, to whoever may read it; to others what its Node says.
fn removal_is_explained(fleet: &Fleet) -> Result<()> {
    fleet.node("win-out", "win", "none")?;
    let label = ["label", "--overwrite", "node", "win-out"];
    fleet.kubectl(&[&label[..], &["kubernetes.io/os=windows"]].concat())?;
    let waits = "waiting: node win-1 is unavailable and maxUnavailable is 1";
    let leaving = json!({
        "state": "Leaving", "since": "2026-01-02T03:04:05Z", "node": "win-out", "message": waits,
    });
    let data = json!({ "10.0.0.3": leaving.to_string() });
    fleet.apply(&map("ConfigMap", "windows-instances-status", &data))?;
    let said = fleet.says("supporter", &["status", "instances"])?;
    assert!(said.out.contains(waits), "{said:?}");
    let explain = ["explain", "win-out", "--wait", "0s"];
    let said = fleet.says("supporter", &explain)?;
    assert!(said.out.contains(&format!("removal: {waits}")), "{said:?}");
    let said = fleet.says("supporter", &[&explain[..], &["-o", "json"]].concat())?;
    assert_eq!(said.json()["removal"], waits);
    let said = fleet.says("viewer", &explain)?;
    assert!(!said.out.contains("removal:"), "{said:?}");
    let asked = "machineconfiguration.openshift.io/desiredDrain";
    let granted = ("evenkeel.dev/drain-granted", "2026-01-02T03:04:05Z");
    fleet.annotate("win-out", &[(asked, "drain-removal"), granted])?;
    let said = fleet.says("viewer", &explain)?;
    let words = "removal: waiting: its pods must leave first";
    assert!(said.out.contains(words), "{said:?}");
    let gone = ["delete", "node", "win-out"];
    fleet.kubectl(&gone).map(|_| ())
}

/// Covers S14.
#[test]
fn instances_are_shown_and_a_new_host_key_is_trusted_by_whoever_may() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let role = ["create", "rolebinding", "keeper", "--user=keeper"];
    let role = [
        &role[..],
        &["--clusterrole=evenkeel-instances", "-n", "evenkeel"],
    ]
    .concat();
    fleet.kubectl(&role)?;
    let none = fleet.says("keeper", &["status", "instances"])?;
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(none.out.contains("no Windows instances"), "{none:?}");
    let ready = json!({ "state": "Ready", "since": "2026-01-02T03:04:05Z", "node": "win-1", "user": "Administrator" });
    let failing = json!({
        "state": "Failing", "since": "2026-01-02T03:04:05Z", "category": "HostKeyChanged",
        "message": "its host key has changed", "failures": 2,
    });
    // One as an operator before this one wrote it, and one of which both have written: the newer counts.
    let data = json!({ "10.0.0.1": ready.to_string(), "win-2.example": ready.to_string() });
    fleet.apply(&map("ConfigMap", "windows-instances-status", &data))?;
    let own = json!({ "instance": "win-2.example", "status": failing.to_string() });
    let mut own = map("ConfigMap", "windows-instance-0123456789abcdef0123", &own);
    own["metadata"]["labels"] = json!({ "evenkeel.dev/instance-status": "true" });
    fleet.apply(&own)?;
    let said = fleet.says("keeper", &["status", "instances"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    let rows: Vec<Vec<&str>> = said
        .out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[1][..3], ["10.0.0.1", "Ready", "win-1"], "{said:?}");
    assert!(rows[2].contains(&"Failing") && said.out.contains("host key has changed"));
    let said = fleet.says("keeper", &["status", "instances", "-o", "json"])?;
    let instances = &said.json()["instances"];
    assert_eq!(instances[0]["instance"], "10.0.0.1");
    assert_eq!(instances[1]["category"], "HostKeyChanged");

    removal_is_explained(&fleet)?;

    let trust = ["instances", "trust", "WIN-2.example"];
    let unknown = fleet.says("keeper", &trust)?;
    assert_eq!(unknown.code, Some(1));
    assert!(
        unknown
            .err
            .contains("no host key of WIN-2.example is pinned"),
        "{unknown:?}"
    );
    let keys = json!({ "10.0.0.1": "a2V5", "win-2.example": "a2V5" });
    fleet.apply(&map("Secret", "evenkeel-host-keys", &keys))?;
    let denied = fleet.says("viewer", &trust)?;
    assert_eq!(denied.code, Some(1));
    assert!(denied.err.contains("evenkeel-instances"), "{denied:?}");
    let said = fleet.says("keeper", &trust)?;
    assert_eq!(said.code, Some(0), "{said:?}");
    let left = [
        "get",
        "secret",
        "evenkeel-host-keys",
        "-n",
        "evenkeel",
        "-o",
        "jsonpath={.data}",
    ];
    assert_eq!(fleet.kubectl(&left)?.trim(), r#"{"10.0.0.1":"a2V5"}"#);
    fleet.kubectl(&[
        "delete",
        "secret/evenkeel-host-keys",
        "configmap/windows-instances-status",
        "configmap/windows-instance-0123456789abcdef0123",
        "-n",
        "evenkeel",
    ])?;
    Ok(())
}

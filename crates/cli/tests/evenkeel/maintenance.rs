//! When nodes of a pool may start, as `evenkeel` tells it.

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Result, need};
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::scene::evenkeel;

fn policy(spec: &Value) -> Value {
    json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "RolloutPolicy",
        "metadata": { "name": "nights" }, "spec": spec,
    })
}

/// Covers T01.
#[test]
fn the_next_ten_windows_are_listed_and_everybody_hears_what_a_node_waits_for() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    fleet.node("a", "worker", "old")?;
    fleet.pool("worker", "new", |pool| {
        pool["metadata"]["annotations"] = json!({ "evenkeel.dev/rollout-policy": "nights" });
    })?;
    let windows = |words: &[&str]| fleet.says("viewer", &[&["rollout", "windows"], words].concat());

    let missing = windows(&["worker"])?;
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(
        missing.out.contains("RolloutPolicy nights does not exist"),
        "{missing:?}"
    );
    let status = fleet.says("viewer", &["status"])?;
    assert!(
        status.out.contains("RolloutPolicy nights does not exist"),
        "{status:?}"
    );

    // A freeze that outlasts this test and all windows of the next months.
    fleet.apply(&policy(&json!({
        "windows": [{ "schedule": "last day 02:30", "duration": "30m", "timezone": "Europe/Prague" }],
        "freezes": [{ "from": "2020-01-01", "to": "2099-12-31" }],
    })))?;
    let frozen = windows(&["worker", "-o", "json"])?;
    assert_eq!(frozen.code, Some(0), "{frozen:?}");
    let document = frozen.json();
    assert_eq!(
        (&document["open"], &document["policy"]),
        (&json!(false), &json!("nights"))
    );
    assert_eq!(document["nextChange"], "2100-01-31T01:30:00Z");
    let listed = document["windows"].as_array().cloned().unwrap_or_default();
    assert_eq!(listed.len(), 10);
    assert!(
        listed
            .iter()
            .all(|it| it["frozen"] == "yes" && it["schedule"] == "last day 02:30"),
        "{listed:?}"
    );
    assert!(
        frozen
            .err
            .contains("windows are shorter than the drain timeout of 1h"),
        "{frozen:?}"
    );
    let text = windows(&["worker"])?;
    assert!(text.out.starts_with("worker (RolloutPolicy nights): Closed: a freeze is in force: the next window opens at 2100-01-31T01:30:00Z."), "{text:?}");
    assert_eq!(text.out.matches("Europe/Prague").count(), 10, "{text:?}");
    let why = "a freeze is in force: the next window opens at 2100-01-31T01:30:00Z";
    for words in [["status"].as_slice(), &["explain", "a"]] {
        let said = fleet.says("viewer", words)?;
        assert!(said.out.contains(why), "{said:?}");
    }
    assert!(
        fleet
            .says("viewer", &["status"])?
            .out
            .contains("waiting for a window")
    );

    // In an emergency, and without a policy, nodes may start at any time.
    fleet.kubectl(&[
        "annotate",
        "mcp",
        "worker",
        "evenkeel.dev/rollout-override=jane: CVE-2026-1234",
    ])?;
    let overridden = windows(&["worker"])?;
    assert!(
        overridden
            .out
            .contains("Open: jane overrides the maintenance windows and freezes: CVE-2026-1234"),
        "{overridden:?}"
    );
    fleet.kubectl(&[
        "annotate",
        "mcp",
        "worker",
        "evenkeel.dev/rollout-policy-",
        "evenkeel.dev/rollout-override-",
    ])?;
    let without = windows(&["worker"])?;
    assert!(
        without
            .out
            .contains("names no RolloutPolicy: nodes may start at any time"),
        "{without:?}"
    );
    let nobody = windows(&["nobody"])?;
    assert_eq!(nobody.code, Some(1));
    assert!(
        nobody.err.contains("pool nobody does not exist"),
        "{nobody:?}"
    );

    // People with the editor's role write policies, and `check` names what is wrong before.
    let wrong = policy(
        &json!({ "windows": [{ "schedule": "Sat 25:00", "duration": "6h", "timezone": "Prague" }] }),
    );
    let file = fleet.give("wrong.json", &wrong)?;
    let checked = evenkeel(&["check", &file]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    for place in [
        "spec.windows[0].schedule: \"Sat 25:00\" is not a schedule",
        "spec.windows[0].timezone: \"Prague\" is not a time zone",
    ] {
        assert!(checked.out.contains(place), "{checked:?}");
    }
    for (person, may) in [("viewer", "no"), ("editor", "yes")] {
        let words = ["auth", "can-i", "create", "rolloutpolicies", "--as", person];
        let answer = fleet
            .kubectl(&words)
            .unwrap_or_else(|error| error.to_string());
        assert!(answer.contains(may), "{person}: {answer}");
    }
    Ok(())
}

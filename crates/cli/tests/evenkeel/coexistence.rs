//! What the command line says of the coexistence with OpenShift's own operators: whose a node is, and who does the work.

use evenkeel_api::names::annotation;
use evenkeel_plan::fleet::coexistence::{Coexistence, CoexistenceReport, CoexistenceReports, Half};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Result, need};
use serde_json::json;

use super::fleet::{Fleet, VOUCHER};

fn reports(machine_config: Coexistence) -> CoexistenceReports {
    let windows = (Half::Windows, Coexistence::Absent);
    let all = [(Half::MachineConfig, machine_config), windows].into_iter();
    all.map(|(half, it)| (half.word().to_owned(), CoexistenceReport::of(half, it)))
        .collect()
}

/// Covers O01, O02, O03.
#[test]
fn status_and_explain_say_whose_a_node_is_and_who_does_the_work() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    fleet.pool("worker", "rendered-worker-1", |_| {})?;
    fleet.node("ours", "worker", "rendered-worker-1")?;
    fleet.node("theirs", "worker", "rendered-worker-1")?;
    fleet.node("late", "worker", "rendered-worker-0")?;
    fleet.kubectl(&["annotate", "node", "theirs", &format!("{VOUCHER}-")])?;
    let why = "desiredConfig rendered-worker-1 is foreign: no annotation evenkeel.dev/desired-config vouches for it, so Evenkeel changes nothing on this node";

    let said = fleet.says("viewer", &["explain", "theirs"])?;
    assert!(said.out.contains(why), "{said:?}");
    let said = fleet.says("viewer", &["explain", "theirs", "-o", "json"])?;
    assert_eq!(said.json()["foreign"], true);
    let said = fleet.says("viewer", &["explain", "ours"])?;
    assert!(!said.out.contains("foreign"), "{said:?}");

    // There is no operator: whose the node is, is known all the same.
    let said = fleet.says("viewer", &["status"])?;
    let line = format!("theirs  worker  Foreign  {why}\n");
    assert!(said.out.contains(&line), "{said:?}");
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(!said.out.contains("OpenShift"), "{said:?}");

    let _ = fleet.kubectl(&["create", "namespace", "evenkeel"]);
    let lease = |coexistence| {
        let text = json!(reports(coexistence)).to_string();
        fleet.apply(&json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": "evenkeel-operator", "namespace": "evenkeel",
                "annotations": { annotation::COEXISTENCE: text },
            },
        }))
    };
    for (coexistence, words, state) in [
        (
            Coexistence::Alive,
            "! OpenShift's machine-config operator is running: Evenkeel leaves pools and Linux nodes to it\n",
            "idle",
        ),
        (
            Coexistence::Lapsed,
            "start evenkeel-operator with --take-over=machine-config\n",
            "idle",
        ),
        (
            Coexistence::Waiting,
            "! --take-over=machine-config takes effect when OpenShift's machine-config operator is stopped",
            "idle",
        ),
        (
            Coexistence::TakenOver,
            "Evenkeel manages pools and Linux nodes because of --take-over=machine-config\n",
            "rolling out",
        ),
    ] {
        lease(coexistence)?;
        let said = fleet.says("viewer", &["status"])?;
        assert!(said.out.contains(words), "{words} is not in\n{}", said.out);
        assert!(said.out.contains(&format!("worker  {state}")), "{said:?}");
        let json = fleet.says("viewer", &["status", "-o", "json"])?.json();
        let told = &json["coexistence"]["machine-config"];
        assert_eq!(told["state"], coexistence.word());
        assert_eq!(told["idle"], coexistence.is_idle());
        assert_eq!(json["pools"][0]["state"], state);
        // What a node waits for is one thing, whoever is asked.
        let mut nodes = json["pools"][0]["nodes"].as_array().into_iter().flatten();
        let late = nodes.find(|it| it["node"] == "late");
        let waits_for = late.map(|it| it["waitsFor"].clone()).unwrap_or_default();
        let nothing = "nothing: OpenShift's operator manages this node";
        assert_eq!(waits_for == nothing, coexistence.is_idle(), "{waits_for}");
        let explain = ["explain", "late", "--wait", "0s", "-o", "json"];
        let explained = fleet.says("viewer", &explain)?.json();
        assert_eq!(explained["rollout"]["waitsFor"], waits_for);
    }
    lease(Coexistence::Absent)?;
    let said = fleet.says("viewer", &["status"])?;
    assert!(!said.out.contains("OpenShift"), "{said:?}");
    // Another namespace is another operator's.
    let said = fleet.says("viewer", &["status", "--namespace", "elsewhere"])?;
    assert!(!said.out.contains("OpenShift"), "{said:?}");
    Ok(())
}

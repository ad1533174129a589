//! What the agent of a Windows node reports of it: the same Lease as on Linux.

use std::time::{Duration, Instant};

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::readiness::Report;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result};
use serde_json::{Value, json};

use super::scene::{SOON, Scene};

/// How often the Lease is renewed when there is no news.
const HEARTBEAT: Duration = Duration::from_secs(10);

fn lease(scene: &Scene) -> Result<Value> {
    let name = format!("{}.evenkeel-agent", scene.name);
    let words = ["get", "lease", &name, "-n", "node-extensions"];
    let more = ["--ignore-not-found", "-o", "json"];
    let text = scene.kubectl(&[&words[..], &more[..]].concat())?;
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(&text).doing(|| "no Lease")
}

/// Waits for a report that is so.
pub(crate) fn until_said(
    scene: &Scene,
    what: &str,
    is_it: impl Fn(&Report) -> bool,
) -> Result<Report> {
    let found = until(what, SOON, || {
        let lease = lease(scene)?;
        let text = lease["metadata"]["annotations"]["evenkeel.dev/report"].as_str();
        let report = text.and_then(|text| Report::from_json(text).ok());
        Ok(match report {
            Some(report) if is_it(&report) => Look::Found(report),
            other => Look::NotYet(format!("{other:?}")),
        })
    });
    found.map_err(|error| Error::failed(format!("{error}\n{}", scene.log())))
}

/// Covers R03, R08, R16.
#[test]
fn a_windows_node_reports_restarts_probes_and_state_in_one_lease() -> Result<()> {
    let Some(mut scene) = Scene::start("win-report")? else {
        return Ok(());
    };
    let data = scene.data("", &json!([]))?;
    scene.at_rest(&data)?;
    let first = until_said(&scene, "a report of a node at rest", |it| {
        it.state == NodeState::Done && !it.kubelet_start.is_empty()
    })?;
    assert!(
        !first.boot_id.is_empty() && first.probes.is_empty(),
        "{first:?}"
    );
    let written = lease(&scene)?;
    assert_eq!(written["spec"]["holderIdentity"], scene.name.as_str());
    // Nobody goes by it yet.
    until("a Lease that is renewed seldom", SOON, || {
        let lasts = lease(&scene)?["spec"]["leaseDurationSeconds"].clone();
        Ok(if lasts == 120 {
            Look::Found(())
        } else {
            Look::NotYet(lasts.to_string())
        })
    })?;

    // A rule asks for probes.
    let probe = |name: &str, check: Value| {
        let mut probe = json!({ "period": "1s", "timeout": "1s", "failureThreshold": 1 });
        probe[check[0].as_str().unwrap_or_default()] = check[1].clone();
        json!({ "name": name, "probe": probe })
    };
    let rule = json!({
        "apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule", "metadata": { "name": scene.name },
        "spec": {
            "nodeSelector": { "matchLabels": { "reports": scene.name } },
            "extensions": [
                probe("network", json!(["service", { "name": "network" }])),
                probe("nobody", json!(["service", { "name": "nobody" }])),
                probe("runtime", json!(["unixSocket", { "path": r"\\.\pipe\containerd-containerd" }])),
                probe("closed", json!(["tcpSocket", { "port": 9 }])),
            ],
        },
    });
    let file = scene.instance.folder().join("rule.json");
    std::fs::write(&file, rule.to_string()).doing(|| "cannot write the rule")?;
    scene.kubectl(&["create", "-f", &file.display().to_string()])?;
    let label = format!("reports={}", scene.name);
    scene.kubectl(&["label", "node", &scene.name, &label])?;
    let probed = until_said(&scene, "all probes to be answered", |it| {
        it.probes.len() == 4
    })?;
    assert_eq!(lease(&scene)?["spec"]["leaseDurationSeconds"], 30);
    let healthy =
        |report: &Report, name: &str| report.probes.get(name).is_some_and(|it| it.healthy);
    assert_eq!(
        ["network", "nobody", "runtime", "closed"].map(|it| healthy(&probed, it)),
        [true, false, true, false],
        "{probed:?}"
    );
    assert_eq!(
        probed.probes["nobody"].message,
        "service nobody is not running"
    );

    // Whoever is at rest renews its Lease, with one write each time, and asks for nothing else.
    let asked = |resource: &str| -> Result<usize> {
        let all = scene.all_requests()?;
        Ok(all.iter().filter(|it| it.resource == resource).count())
    };
    let renewed = |lease: &Value| lease["spec"]["renewTime"].clone();
    let next = |after: &Value| {
        until("a renewal", SOON, || {
            let now = lease(&scene)?;
            Ok(if renewed(&now) == renewed(after) {
                Look::NotYet(renewed(&now).to_string())
            } else {
                Look::Found(now)
            })
        })
    };
    let start = next(&lease(&scene)?)?;
    let (begun, before, others) = (Instant::now(), asked("leases")?, scene.requests()?.len());
    let again = next(&start)?;
    let (took, writes) = (begun.elapsed(), asked("leases")? - before);
    println!(
        "proof: {writes} requests for the Lease of a Windows node in {took:?}, four probes each second"
    );
    assert_eq!(writes, 1, "one write each");
    assert!(took > HEARTBEAT / 2 && took < HEARTBEAT * 3 / 2, "{took:?}");
    assert_eq!(scene.requests()?.len(), others, "nothing else is asked");
    assert_eq!(
        again["metadata"]["annotations"], start["metadata"]["annotations"],
        "the report is rewritten only on change"
    );

    // Another start of the kubelet is told at once, and what was known before is asked anew.
    scene
        .instance
        .ask(&["windows-probe", "service", "stop", "kubelet"])?;
    let after = until_said(&scene, "another start of the kubelet", |it| {
        it.kubelet_start != first.kubelet_start
    })?;
    assert_eq!(after.boot_id, first.boot_id);
    until_said(&scene, "the probes once more", |it| healthy(it, "network"))?;

    scene.instance.reboot()?;
    until_said(&scene, "another boot", |it| {
        it.boot_id != first.boot_id && it.state == NodeState::Done && healthy(it, "network")
    })?;
    scene.kubectl(&["delete", "-f", &file.display().to_string()])?;
    // The next instance may have its address.
    scene.kubectl(&["delete", "node", &scene.name]).map(|_| ())
}

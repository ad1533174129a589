//! What a support bundle has in it, and what it has not.

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::need::Need;
use evenkeel_testbed::network::{GATEWAY, Network};
use evenkeel_testbed::{Doing, Result, need};
use serde_json::{Value, json};

use super::fleet::{Fleet, machine_config};
use super::scene::{Said, file};

const SECRET: &str = "hunter2-is-secret-9a7c";

/// Covers H36.
#[test]
fn a_bundle_has_what_helps_and_no_secret() -> Result<()> {
    let network = [Need::Root, Need::Program("ip", "iproute2")];
    if need::skip(ControlPlane::NEEDS)? || need::skip(&network)? {
        return Ok(());
    }
    let fleet = Fleet::start()?;
    let secrets = [
        ("/var/lib/kubelet/config.json", SECRET),
        ("/etc/app.conf", &format!("password = {SECRET}\n")),
        ("/etc/plain.conf", "plain-and-visible\n"),
    ];
    fleet.apply(&machine_config("99-secret", "worker", &secrets))?;
    fleet.pool("worker", "rendered-worker-1", |_| {})?;
    fleet.node("a", "worker", "rendered-worker-1")?;
    for object in [
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s", "namespace": "evenkeel" }, "stringData": { "k": SECRET } }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c", "namespace": "evenkeel" },
            "data": { "api-token": SECRET, "services": format!("run --token={SECRET}"), "seen": "seen-in-bundle" } }),
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "worker-ignition", "namespace": "evenkeel" }, "stringData": { "worker.ign": SECRET } }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "services-1-2-3-abc1234", "namespace": "evenkeel" }, "immutable": true,
            "data": { "services": "[{\"name\":\"kubelet\",\"command\":\"C:\\\\k\\\\kubelet.exe --v=3\",\"bootstrap\":true,\"priority\":0}]", "files": "[]" } }),
        json!({ "apiVersion": "evenkeel.dev/v1alpha1", "kind": "WindowsPool", "metadata": { "name": "windows" }, "spec": { "maxUnavailable": "17%" } }),
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "evenkeel" },
            "spec": { "containers": [{ "name": "c", "image": "i", "env": [{ "name": "DB_PASSWORD", "value": SECRET }] }] } }),
        json!({ "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e", "namespace": "default" },
            "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Drain", "reason": "Drained", "type": "Normal", "note": "all pods left",
            "reportingController": "evenkeel-operator", "reportingInstance": "x", "regarding": { "kind": "Node", "name": "a" } }),
    ] {
        fleet.apply(&object)?;
    }
    // A Windows node whose kubelet serves the logs of its agent, and one where nobody answers.
    let _network = Network::new("logs")?;
    let logs = fleet.path("log");
    std::fs::create_dir_all(logs.join("evenkeel")).doing(|| "cannot make a folder")?;
    let text = format!("INFO applying services version=1.2.3\nINFO token={SECRET}\n");
    std::fs::write(logs.join("evenkeel/agent.log"), text).doing(|| "cannot write a log")?;
    std::fs::write(logs.join("others.log"), "not-ours").doing(|| "cannot write a log")?;
    let _kubelet = fleet.serve_logs(&logs)?;
    fleet.windows_node("win-1", &GATEWAY.to_string())?;
    fleet.windows_node("win-2", "127.0.0.9")?;
    let root = fleet.path("root");
    let state = root.join("etc/machine-config-daemon/state");
    std::fs::create_dir_all(&state).doing(|| "cannot make a folder")?;
    let journal = json!({ "goal": "rendered-worker-1", "password": SECRET });
    std::fs::write(state.join("journal"), journal.to_string()).doing(|| "cannot write")?;
    let to = fleet.path("bundle.tar.gz").display().to_string();
    let root = root.display().to_string();
    let words = ["support-bundle", "--to", &to, "--root", &root];
    let ready = ["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"];
    fleet.kubectl(&[&ready[..], &["--namespace=evenkeel"]].concat())?;
    let said = fleet.says("supporter", &words)?;
    // Two nodes are doubles without a kubelet that has logs: that is all that is missing.
    assert_eq!(
        (said.code, said.err.lines().count()),
        (Some(2), 2),
        "{said:?}"
    );
    for missing in [
        "warning: logs/p/c.log: cannot read the log of pod p: ",
        "warning: logs/win-2: cannot read the logs of node win-2: ",
    ] {
        assert!(said.err.contains(missing), "{said:?}");
    }
    assert!(
        said.out.contains("review the file before you send it"),
        "{said:?}"
    );
    let unpacked = unpack(&to)?;
    let all = unpacked.iter().fold(String::new(), |all, (name, text)| {
        all + name + "\n" + text + "\n"
    });
    for there in [
        "evenkeel-support/objects/nodes.json",
        "evenkeel-support/objects/machineconfigpools.json",
        "evenkeel-support/objects/windowspools.json",
        "17%",
        "services-1-2-3-abc1234",
        "kubelet.exe --v=3",
        "evenkeel-support/journal.json",
        "evenkeel-support/about.json",
        "99-secret",
        "plain-and-visible",
        "all pods left",
        "seen-in-bundle",
        "evenkeel-support/logs/win-1/agent.log",
        "applying services version=1.2.3",
        "/var/lib/kubelet/config.json",
        "v1.37",
    ] {
        let encoded = percent(there);
        assert!(
            all.contains(there) || all.contains(&encoded),
            "{there} is not in {all}"
        );
    }
    assert!(!all.contains("not-ours"), "{all}");
    let encoded = percent(SECRET);
    for secret in [SECRET, &encoded, "aHVudGVyMi1pcy1zZWNyZXQtOWE3Y"] {
        assert!(
            !all.to_lowercase().contains(&secret.to_lowercase()),
            "{secret} is in the bundle"
        );
    }
    let mode = std::fs::metadata(&to).doing(|| "no bundle")?;
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777,
        0o600
    );

    // Who may see less gets less, and is told.
    let said = fleet.says("viewer", &words)?;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains(
            "objects/deployments.json: you are not allowed to list deployments in namespace evenkeel"
        ),
        "{}",
        said.err
    );
    assert!(
        said.err.contains("ClusterRole evenkeel-node-logs"),
        "{}",
        said.err
    );
    let about: Value = unpack(&to)?
        .iter()
        .find(|(name, _)| name.ends_with("about.json"))
        .and_then(|(_, text)| serde_json::from_str(text).ok())
        .unwrap_or_default();
    assert!(
        about["missing"]
            .to_string()
            .contains("you are not allowed to list deployments"),
        "{about}"
    );
    Ok(())
}

/// How a data URL of the tests has `text`.
fn percent(text: &str) -> String {
    let url = file("/", text);
    let source = url["contents"]["source"].as_str().unwrap_or_default();
    source.trim_start_matches("data:,").to_owned()
}

/// The files of a bundle, unpacked by somebody else's program.
fn unpack(path: &str) -> Result<Vec<(String, String)>> {
    let run = |words: &[&str]| -> Result<String> {
        let said: Said = std::process::Command::new("tar")
            .args(words)
            .output()
            .doing(|| "no tar")?
            .into();
        assert_eq!(said.code, Some(0), "{said:?}");
        Ok(said.out)
    };
    let names = run(&["-tzf", path])?;
    names
        .lines()
        .map(|name| Ok((name.to_owned(), run(&["-xzOf", path, name])?)))
        .collect()
}

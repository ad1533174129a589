//! What a Windows node's agent promises, tried on a real control plane and an instance with a real
//! Service Control Manager, registry and trust store, with the privileges that we ship.

mod cleanup;
mod drift;
mod edits;
mod kills;
mod reports;
mod scene;
mod steps;
mod trouble;
mod trust;

use std::time::SystemTime;

use evenkeel_testbed::{Doing, Result};
use kube::api::DeleteParams;
use serde_json::json;

use super::outages::silence;

use self::scene::{AGENT, BOOT, ENVIRONMENT, RUNTIME_SERVES_AFTER, SOON, Scene, hash_of};

const VERSION: &str = "windowsmachineconfig.openshift.io/version";
const CURRENT: &str = "evenkeel.dev/current-services";
const ASKED: &str = "machineconfiguration.openshift.io/desiredDrain";
const ANSWERED: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
const SERVICES: &str = r"HKLM\SYSTEM\CurrentControlSet\Services";

/// Covers H21, H22, H26, H27, W10.
#[test]
fn a_machine_becomes_a_node_runs_what_it_was_told_and_keeps_it_running() -> Result<()> {
    let Some(scene) = Scene::start("win-life")? else {
        return Ok(());
    };
    let instance = &scene.instance;
    let hash = scene.publish(&scene.data("", &json!([]))?)?;

    let said = scene.bootstrap()?;
    assert!(
        said.contains(&format!(r#""node":"{}""#, scene.name)),
        "{said}"
    );
    for bootstrap in ["containerd", "kubelet"] {
        assert_eq!(scene.state(bootstrap), "Running", "{said}");
    }
    assert_ne!(scene.state("network"), "Running");
    let node = scene.node()?;
    assert_eq!(node["spec"]["unschedulable"], true);
    assert_eq!(
        node["metadata"]["annotations"]["evenkeel.dev/cordoned-by"],
        "agent"
    );

    instance.ask(&[AGENT, "service", "install"])?;
    scene.until_runs("evenkeel-agent", SOON)?;
    // Before a shutdown the system waits for it as long as its work may take.
    let key = format!(r"{SERVICES}\evenkeel-agent");
    let waits = instance.ask(&["reg.exe", "query", &key, "/v", "PreshutdownTimeout"])?;
    assert!(
        waits.contains("REG_DWORD") && waits.contains("0x7530"),
        "{waits}"
    );
    // It applies only what it was told, by name and by hash.
    scene.tell("0000")?;
    scene.until_told("ServicesUnexpected", "0000")?;
    assert_ne!(scene.state("network"), "Running");
    scene.tell(&hash)?;
    scene.until_annotation(CURRENT, &hash, SOON)?;
    assert_eq!(
        scene.annotation(VERSION)?.as_deref(),
        Some(scene.version.as_str())
    );
    let node = scene.node()?;
    assert_eq!(node["spec"]["unschedulable"], serde_json::Value::Null);
    assert_eq!(
        node["metadata"]["annotations"]["evenkeel.dev/cordoned-by"],
        serde_json::Value::Null
    );
    scene.until_runs("network", SOON)?;
    for (name, start, depends) in [
        ("kubelet", "0x2", "containerd"),
        ("network", "0x2", "kubelet"),
    ] {
        let key = format!(r"{SERVICES}\{name}");
        let all = instance.ask(&["reg.exe", "query", &key])?;
        let has = |value: &str, text: &str| {
            let line = all.lines().find(|line| line.trim().starts_with(value));
            line.is_some_and(|line| line.trim().ends_with(text))
        };
        assert!(
            has("Description", &format!("OpenShift managed {name}")),
            "{all}"
        );
        assert!(
            has("Start", start) && has("DependOnService", depends),
            "{all}"
        );
    }
    let command = scene.value(&format!(r"{SERVICES}\network"), "ImagePath")?;
    let filled = format!("--node {} --ip {}", scene.name, instance.address());
    assert!(command.is_some_and(|it| it.contains(&filled)));

    // Somebody stops a service: it runs again, and the Event says what differed.
    instance.ask(&["windows-probe", "service", "stop", "network"])?;
    scene.until_told("DriftHealed", "service network: is stopped")?;
    scene.until_runs("network", SOON)
}

/// Covers H20, H23, H31.
#[tokio::test]
async fn variables_wait_for_the_drain_and_are_there_after_the_boot_of_which_all_is_told()
-> Result<()> {
    let Some(mut scene) = Scene::start("win-proxy")? else {
        return Ok(());
    };
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let proxies = json!([
        variable("HTTP_PROXY", "http://one"),
        variable("NO_PROXY", "here")
    ]);
    let first = scene.publish(&scene.data("", &proxies)?)?;
    let boot = scene.instance.boot_id()?;
    let start = SystemTime::now();
    let said = scene.bootstrap()?;
    assert_eq!(
        scene.value(ENVIRONMENT, "HTTP_PROXY")?.as_deref(),
        Some("http://one")
    );
    assert_eq!(scene.instance.boot_id()?, boot);
    assert_eq!(
        ["containerd", "kubelet"].map(|name| scene.state(name)),
        ["Running"; 2],
        "{said}"
    );
    assert_ne!(scene.state("network"), "Running");
    // The kubelet writes down its arguments when it starts, the runtime serves only some time after.
    let started = scene.instance.path(r"C:\k\kubelet-double.json")?;
    let started = started.metadata().and_then(|it| it.modified());
    let waited = started
        .doing(|| "the kubelet has not run")?
        .duration_since(start);
    assert!(waited.is_ok_and(|it| it >= RUNTIME_SERVES_AFTER), "{said}");

    // Nobody was let on it yet, so the boot that the variables need takes no permit.
    scene.instance.ask(&[AGENT, "service", "install"])?;
    scene.instance.until_rebooted(&boot)?;
    assert_eq!(scene.node()?["spec"]["unschedulable"], true);
    scene.tell(&first)?;
    scene.until_annotation(CURRENT, &first, BOOT)?;
    assert_eq!(scene.annotation(ASKED)?, None);

    // One changes and one goes. The node is told before the ConfigMap is there.
    let data = scene.data("--second", &json!([variable("HTTP_PROXY", "http://two")]))?;
    let second = hash_of(&data)?;
    let boot = scene.instance.boot_id()?;
    scene.tell(&second)?;
    scene.until_told("ServicesUnexpected", &second)?;
    // From here on nobody can be told, until it has booted.
    let hooks = silence(&scene.name).await?;
    scene.publish(&data)?;
    scene.until_annotation(ASKED, &format!("drain-{second}"), SOON)?;
    assert_eq!(
        scene.value(ENVIRONMENT, "HTTP_PROXY")?.as_deref(),
        Some("http://one")
    );
    let answer = format!("{ANSWERED}=drain-{second}");
    scene.kubectl(&["annotate", "node", &scene.name, "--overwrite", &answer])?;
    scene.instance.until_rebooted(&boot)?;
    scene.until_annotation(CURRENT, &second, BOOT)?;
    assert_eq!(scene.annotation(ASKED)?, Some(format!("uncordon-{second}")));
    scene.until_runs("network", SOON)?;
    let path = scene.instance.path(r"C:\k\network.json")?;
    let recorded = std::fs::read_to_string(path).doing(|| "network has not run")?;
    let recorded: serde_json::Value = serde_json::from_str(&recorded).doing(|| "no JSON")?;
    assert_eq!(recorded["environment"]["HTTP_PROXY"], "http://two");
    assert_eq!(recorded["environment"]["NO_PROXY"], serde_json::Value::Null);
    let of_second = ["DrainRequested", "ServicesApplying", "ServicesDone"];
    let told = scene.told()?;
    let is_of_second =
        |it: &(String, String, u64)| of_second.contains(&it.0.as_str()) && it.1.contains(&second);
    assert!(!told.iter().any(is_of_second), "{told:#?}");
    let boots = |told: &[(String, String, u64)]| -> u64 {
        let boots = told.iter().filter(|(reason, ..)| reason == "Rebooting");
        boots.map(|(.., times)| times).sum()
    };
    assert_eq!(boots(&told), 1, "{told:#?}");
    let gone = hooks.delete(&scene.name, &DeleteParams::default()).await;
    gone.doing(|| "cannot delete the webhook")?;
    for reason in of_second {
        scene.until_told(reason, &second)?;
    }
    // What was kept first is told first.
    assert_eq!(boots(&scene.told()?), 2);
    Ok(())
}

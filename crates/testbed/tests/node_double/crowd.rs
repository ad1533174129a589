//! A thousand nodes from one small process.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::wait::{Look, until};
use evenkeel_testbed::{Doing, Error, Result, need};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};

use crate::{SOON, condition};

#[tokio::test]
async fn a_crowd_of_a_thousand_nodes_stays_ready_for_a_minute_in_one_small_process() -> Result<()> {
    const COUNT: usize = 1000;
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let scratch = Scratch::new("thousand")?;
    let (admin, bootstrap, log) = (
        scratch.path().join("admin"),
        scratch.path().join("bootstrap"),
        scratch.path().join("log"),
    );
    control_plane.admin_kubeconfig().write(&admin)?;
    control_plane.bootstrap_kubeconfig()?.write(&bootstrap)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_node-doubles"));
    command
        .arg(&admin)
        .args([&COUNT.to_string(), "thousand-", "20"])
        .arg(&bootstrap);
    let mut doubles = Running::start("node-doubles", &mut command, &log)?;
    until("a thousand nodes to register", 6 * SOON, || {
        doubles.still_runs()?;
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        Ok(if said.contains("ready") {
            Look::Found(())
        } else {
            Look::NotYet(said)
        })
    })?;
    // Seen from outside: whoever is not ready at the end of the list, or turns so within the minute.
    let nodes: Api<Node> = Api::all(control_plane.admin_kubeconfig().client().await?);
    let mut ready = BTreeSet::new();
    let mut events = std::pin::pin!(watcher(nodes, watcher::Config::default()));
    let minute = tokio::time::sleep(Duration::from_mins(1));
    let mut minute = std::pin::pin!(minute);
    loop {
        let event = tokio::select! {
            () = &mut minute => break,
            event = events.next() => event,
        };
        match event.ok_or_else(|| Error::failed("the watch ended"))? {
            Ok(Event::Apply(node) | Event::InitApply(node)) => {
                let name = node.name_any();
                if name.starts_with("thousand-") {
                    let is = condition(&node, "Ready");
                    assert_eq!(is, Some("True"), "{name}");
                    ready.insert(name);
                }
            }
            Ok(Event::Delete(node)) => assert!(!node.name_any().starts_with("thousand-")),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => return Err(Error::because("the watch failed", error)),
        }
    }
    assert_eq!(ready.len(), COUNT);
    doubles.still_runs()?;
    let peak = memory(&doubles, "VmHWM")?;
    assert!(peak < 150 << 10, "{peak} KiB");
    Ok(())
}

/// A line of the process's status, in KiB.
fn memory(process: &Running, line: &str) -> Result<u64> {
    let path = format!("/proc/{}/status", process.id());
    let status =
        std::fs::read_to_string(Path::new(&path)).doing(|| format!("cannot read {path}"))?;
    let value = status
        .lines()
        .find_map(|it| it.strip_prefix(line)?.strip_prefix(':'));
    let number = value.and_then(|it| it.trim().strip_suffix(" kB"));
    number
        .and_then(|it| it.parse().ok())
        .ok_or_else(|| Error::failed(format!("{path} has no {line}")))
}

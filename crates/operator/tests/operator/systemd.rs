//! The whole thing: three machines with systemd, the agent's own program on them as it is shipped, a pool,
//! and the operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::workspace;
use evenkeel_testbed::{Doing, Result, SystemdNode, need};
use serde_json::json;

use crate::pools::file;
use crate::rollout::LONG;
use crate::rollout_watcher::RolloutWatcher;
use crate::scene::{Scene, annotated, deployed, is_cordoned};

/// The agent, as optimised as the operator.
pub(crate) fn agent() -> Result<PathBuf> {
    workspace::program("agent", "evenkeel-agent")
}

/// A machine with the agent on it as it is shipped.
pub(crate) fn install(scene: &Scene, name: &str, agent: &Path) -> Result<SystemdNode> {
    let node = SystemdNode::boot(name)?;
    let login = scene.agent_login(name)?;
    let unit = std::fs::read(deployed("agent/evenkeel-agent.service"))
        .doing(|| "cannot read the unit that we ship")?;
    node.run(&["useradd", "--create-home", "core"])?;
    node.run(&["mkdir", "-p", "/etc/evenkeel"])?;
    node.write(
        "/etc/evenkeel/kubeconfig",
        login.at(&GATEWAY.to_string()).as_yaml()?,
    )?;
    node.write("/etc/evenkeel/agent.env", format!("NODE_NAME={name}\n"))?;
    node.write("/etc/systemd/system/evenkeel-agent.service", unit)?;
    node.install(agent, "/usr/local/bin/evenkeel-agent")?;
    node.run(&["systemctl", "daemon-reload"])?;
    node.run(&["systemctl", "enable", "--now", "evenkeel-agent.service"])?;
    Ok(node)
}

/// Covers M01, M03, M12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_machines_go_through_a_whole_rollout_with_reboots_one_at_a_time() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? || need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let agent = agent()?;
    let scene = Scene::new("real").await?;
    scene.let_agents_in()?;
    // Somebody must say that their kubelets are well.
    let kubelets = scene.fleet("web", 3, 1).await?;
    let mut machines = Vec::new();
    for kubelet in kubelets.iter() {
        machines.push(install(&scene, kubelet.name(), &agent)?);
    }
    let boots = machines
        .iter()
        .map(SystemdNode::boot_id)
        .collect::<Result<Vec<_>>>()?;
    scene
        .config("web", "00-base", file("/etc/managed", "one"))
        .await?;
    scene.pool("web", json!({})).await?;
    let rollout_watcher = RolloutWatcher::of(&scene);
    let _operator = scene.operator(&[])?;
    let first = scene.until_updated("web", "", LONG).await?;
    scene
        .config("web", "50-more", file("/etc/more", "two"))
        .await?;
    let second = scene.until_updated("web", &first, LONG).await?;
    rollout_watcher.check(1)?;
    for (machine, boot) in machines.iter().zip(boots) {
        assert_eq!(machine.read("/etc/managed")?, b"one");
        assert_eq!(machine.read("/etc/more")?, b"two");
        assert_ne!(machine.boot_id()?, boot, "{} never booted", machine.name());
        let seen = scene.node(machine.name()).await?;
        assert_eq!(
            annotated(&seen, annotation::CURRENT_CONFIG),
            Some(second.as_str())
        );
        assert!(!is_cordoned(&seen));
    }
    // Nothing else happens.
    let before = scene.node(machines[0].name()).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = scene.node(machines[0].name()).await?;
    assert_eq!(before.metadata.annotations, after.metadata.annotations);
    Ok(())
}

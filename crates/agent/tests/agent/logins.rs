//! Somebody who logs in over SSH is warned, and does not go unnoticed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use evenkeel_testbed::{Doing, Error, Result};

use super::scene::{SOON, Scene, deployed, says};

const SSH: &str = "machineconfiguration.openshift.io/ssh";

/// Covers M21.
#[tokio::test]
async fn a_login_over_ssh_is_warned_annotated_told_and_an_alert() -> Result<()> {
    let Some(scene) = Scene::start("login").await? else {
        return Ok(());
    };
    scene.until_agent_listens(Duration::from_secs(10)).await?;
    assert_eq!(scene.annotations().await?.get(SSH), None);
    assert!(!is_alerted(&scene)?, "an alert before anybody came");
    let mut login = scene
        .node
        .ssh()
        .args(["-tt", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .doing(|| "cannot run ssh")?;
    let terminal = login.stdout.take();
    let terminal = terminal.ok_or_else(|| Error::failed("no terminal"))?;
    scene
        .until("the login to be noticed", SOON, |seen| {
            says(seen, SSH, "accessed")
        })
        .await?;
    let told = scene
        .until_told("SshAccess", "root logged in", SOON)
        .await?;
    assert!(is_alerted(&scene)?, "{}", scene.metrics()?);
    let warned = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(terminal)
            .lines()
            .map_while(std::result::Result::ok);
        lines.any(|line| line.contains("Evenkeel"))
    });
    let warned = tokio::time::timeout(SOON, warned).await;
    drop(login.stdin.take());
    login.kill().doing(|| "cannot end ssh")?;
    login.wait().doing(|| "cannot wait for ssh")?;
    let warned = warned.doing(|| "nobody was warned")?;
    assert!(warned.doing(|| "the reader panicked")?, "{told}");
    Ok(())
}

/// Whether the alert that we ship would fire now, by the numbers of the agent.
fn is_alerted(scene: &Scene) -> Result<bool> {
    let rules = deployed("alerts/agent.yaml");
    let rules = std::fs::read_to_string(rules).doing(|| "cannot read the alerts that we ship")?;
    let metric = "evenkeel_node_ssh_login_timestamp_seconds";
    let limit = rules
        .split_once(&format!("expr: time() - {metric} < "))
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok())
        .ok_or_else(|| Error::failed("the alert has become another one"))?;
    let metrics = scene.metrics()?;
    let last = metrics
        .lines()
        .find_map(|line| line.strip_prefix(metric)?.trim().parse::<u64>().ok())
        .ok_or_else(|| Error::failed(format!("no {metric} in {metrics}")))?;
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .doing(|| "no clock")?;
    Ok(now.as_secs().saturating_sub(last) < limit)
}

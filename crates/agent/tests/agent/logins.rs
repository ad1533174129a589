//! Somebody who logs in over SSH is warned, and does not go unnoticed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use evenkeel_testbed::alerts::Alerts;
use evenkeel_testbed::{Doing, Error, Result, need};

use super::scene::{SOON, Scene, says};

const SSH: &str = "machineconfiguration.openshift.io/ssh";

/// Covers M21.
#[tokio::test]
async fn a_login_over_ssh_is_warned_annotated_told_and_an_alert() -> Result<()> {
    if need::skip(Alerts::NEEDS)? {
        return Ok(());
    }
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

/// Whether the alert that we ship would fire soon, by the numbers of the agent.
fn is_alerted(scene: &Scene) -> Result<bool> {
    let soon = Duration::from_secs(10);
    Alerts::read("agent.yaml")?.fires("EvenkeelSshAccess", &scene.metrics()?, soon)
}

//! Somebody who logs in over SSH is warned, and does not go unnoticed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use evenkeel_testbed::{Doing, Error, Result};

use super::scene::{SOON, Scene, says};

const SSH: &str = "machineconfiguration.openshift.io/ssh";

#[tokio::test]
async fn a_login_over_ssh_is_warned_annotated_and_told() -> Result<()> {
    let Some(scene) = Scene::start("login").await? else {
        return Ok(());
    };
    scene.until_agent_listens(Duration::from_secs(10)).await?;
    assert_eq!(scene.annotations().await?.get(SSH), None);
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

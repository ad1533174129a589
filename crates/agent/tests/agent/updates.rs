//! A node goes where its Node says, with no more disruption than that needs.

use std::time::Duration;

use evenkeel_testbed::Result;

use super::scene::{ASKED, DESIRED, SOON, STATE, Scene, says, spec};

const KEYS: &str = "/home/core/.ssh/authorized_keys";

/// Covers M01.
#[tokio::test]
async fn ssh_keys_are_in_place_within_two_seconds_without_a_drain_or_a_boot() -> Result<()> {
    let Some(scene) = Scene::start("keys").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[], &["ssh-ed25519 OLD"])).await?;
    let boot = scene.node.boot_id()?;
    let new = scene
        .config("new", spec(&[], &["ssh-ed25519 OLD", "ssh-ed25519 NEW"]))
        .await?;
    scene.annotate(DESIRED, &new).await?;
    let seen = scene.until_done(&new, Duration::from_secs(2)).await?;
    assert_eq!(seen.get(ASKED), None);
    assert_eq!(scene.node.boot_id()?, boot);
    assert_eq!(
        scene.node.read(KEYS)?,
        b"ssh-ed25519 OLD\nssh-ed25519 NEW\n"
    );
    assert!(says(&seen, STATE, "Done"));
    scene.until_told("ConfigApplying", &new, SOON).await?;
    scene.until_told("ConfigDone", &new, SOON).await?;
    Ok(())
}

//! A configuration that a node cannot go to changes nothing, is explained, and is forgotten as soon as
//! there is a better one.

use evenkeel_testbed::Result;
use serde_json::json;

use super::scene::{ASKED, CURRENT, SOON, Scene, says, spec};

const PULL_SECRET: &str = "/var/lib/kubelet/config.json";

#[tokio::test]
async fn a_section_that_cannot_change_is_named_and_nothing_is_written() -> Result<()> {
    let Some(scene) = Scene::start("refuses").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[(PULL_SECRET, "one\n")], &[])).await?;
    let mut disks = spec(&[(PULL_SECRET, "two\n")], &[]);
    disks["config"]["storage"]["disks"] = json!([{ "device": "/dev/sda", "wipeTable": true }]);
    disks["fips"] = json!(true);
    let disks = scene.config("disks", disks).await?;
    scene.desire(&disks).await?;
    let reason = scene.until_degraded("storage.disks /dev/sda", SOON).await?;
    assert!(reason.contains("spec.fips"), "{reason}");
    scene
        .until_told("ConfigRefused", "storage.disks /dev/sda", SOON)
        .await?;

    let image = json!({ "osImageURL": "quay.io/os@sha256:1", "config": { "ignition": { "version": "3.4.0" } } });
    let image = scene.config("image", image).await?;
    scene.desire(&image).await?;
    scene.until_degraded("os image", SOON).await?;

    let seen = scene.annotations().await?;
    assert!(says(&seen, CURRENT, &base), "{seen:#?}");
    assert_eq!(seen.get(ASKED), None, "a drain for nothing");
    assert_eq!(scene.node.read(PULL_SECRET)?, b"one\n");

    scene.desire(&base).await?;
    scene.until_done(&base, SOON).await?;
    Ok(())
}

#[tokio::test]
async fn a_configuration_that_is_missing_or_broken_is_taken_as_soon_as_it_is_right() -> Result<()> {
    let Some(scene) = Scene::start("misses").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[(PULL_SECRET, "one\n")], &[])).await?;
    let later = scene.called("later");
    scene.desire(&later).await?;
    let reason = scene.until_degraded("does not exist", SOON).await?;
    assert!(reason.contains(&later), "{reason}");

    let broken = json!({ "config": { "ignition": { "version": "9.9.9" } } });
    scene.config("later", broken).await?;
    let reason = scene.until_degraded("9.9.9", SOON).await?;
    assert!(reason.contains("3.0.0 to 3.5.0 are supported"), "{reason}");
    assert!(says(&scene.annotations().await?, CURRENT, &base));

    scene
        .replace_config("later", spec(&[(PULL_SECRET, "two\n")], &[]))
        .await?;
    scene.until_done(&later, SOON).await?;
    assert_eq!(scene.node.read(PULL_SECRET)?, b"two\n");

    scene.desire("../nodes/x?y").await?;
    scene
        .until_degraded("is not a valid object name", SOON)
        .await?;
    scene.desire(&later).await?;
    scene.until_done(&later, SOON).await?;
    Ok(())
}

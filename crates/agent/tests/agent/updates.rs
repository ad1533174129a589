//! A node goes where its Node says, with no more disruption than that needs.

use std::time::{Duration, Instant};

use evenkeel_testbed::Result;
use evenkeel_testbed::promise::kept_async;

use super::scene::{ANSWERED, ASKED, BOOT, CURRENT, SOON, STATE, Scene, says, spec};

const KEYS: &str = "/home/core/.ssh/authorized_keys";

/// Covers M01.
#[tokio::test]
async fn ssh_keys_are_in_place_within_two_seconds_without_a_drain_or_a_boot() -> Result<()> {
    let Some(scene) = Scene::start("keys").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[], &["ssh-ed25519 OLD"])).await?;
    let boot = scene.node.boot_id()?;
    let mut times = 0;
    let promise = "keys are in place within two seconds";
    let is_soon = |took: &Duration| *took < Duration::from_secs(2);
    kept_async(promise, is_soon, async || {
        times += 1;
        let key = format!("ssh-ed25519 NEW{times}");
        let new = spec(&[], &["ssh-ed25519 OLD", &key]);
        let new = scene.config(&format!("new{times}"), new).await?;
        let before = scene.requests()?.len();
        let start = Instant::now();
        scene.desire(&new).await?;
        let seen = scene.until_done(&new, SOON).await?;
        let took = start.elapsed();
        assert_eq!(seen.get(ASKED), None);
        assert_eq!(scene.node.boot_id()?, boot);
        let keys = format!("ssh-ed25519 OLD\n{key}\n");
        assert_eq!(scene.node.read(KEYS)?, keys.as_bytes());
        assert!(says(&seen, STATE, "Done"));
        scene.until_told("ConfigApplying", &new, SOON).await?;
        scene.until_told("ConfigDone", &new, SOON).await?;
        let requests = &scene.requests()?[before..];
        assert!(!requests.is_empty(), "nothing was counted");
        assert!(requests.len() <= 12, "{requests:#?}");
        Ok(took)
    })
    .await?;
    Ok(())
}

/// Covers M17.
#[tokio::test]
async fn a_file_is_written_after_the_drain_and_counts_after_the_boot() -> Result<()> {
    let Some(mut scene) = Scene::start("reboots").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let boot = scene.node.boot_id()?;
    let new = scene
        .config(
            "new",
            spec(&[("/etc/managed", "new\n")], &["ssh-ed25519 A"]),
        )
        .await?;
    scene.desire(&new).await?;
    let request = format!("drain-{new}");
    let (seen, _) = scene
        .until("a drain to be asked for", SOON, |seen| {
            says(seen, ASKED, &request)
        })
        .await?;
    assert!(says(&seen, STATE, "Working"), "{seen:#?}");
    assert!(says(&seen, CURRENT, &base), "{seen:#?}");
    assert!(
        scene.node.read("/etc/managed").is_err(),
        "written before the drain"
    );

    scene.annotate(ANSWERED, &request).await?;
    scene.node.wait_for_reboot(&boot)?;
    let seen = scene.until_done(&new, BOOT).await?;
    assert!(says(&seen, ASKED, &format!("uncordon-{new}")), "{seen:#?}");
    assert_eq!(scene.node.read("/etc/managed")?, b"new\n");
    assert_ne!(scene.node.boot_id()?, boot);
    for (reason, words) in [
        ("DrainRequested", "create file /etc/managed"),
        ("DriftMonitorStopped", base.as_str()),
        ("Rebooting", new.as_str()),
        ("DriftMonitorStarted", new.as_str()),
        ("ConfigDone", new.as_str()),
    ] {
        scene.until_told(reason, words, SOON).await?;
    }
    // Counted over the boot, which ended the program that asked for it.
    let metrics = scene.metrics()?;
    for number in [
        "evenkeel_node_reboots_total 1",
        "evenkeel_node_drains_total 1",
    ] {
        assert!(metrics.contains(number), "{number} is not in {metrics}");
    }
    for phase in ["drain", "apply", "reboot"] {
        let name = format!("evenkeel_node_update_seconds{{phase=\"{phase}\"}} ");
        let took = metrics.lines().find_map(|line| line.strip_prefix(&name));
        let took = took.and_then(|text| text.parse::<f64>().ok());
        assert!(took.is_some_and(|it| it > 0.0), "{phase}: {took:?}");
    }
    let events = scene.events().await?;
    let failed = events.iter().find(|(of, _)| of.ends_with("Failed"));
    assert_eq!(failed, None, "{events:#?}");
    Ok(())
}

#[tokio::test]
async fn a_configuration_that_changes_while_pods_leave_ends_at_the_newest() -> Result<()> {
    let Some(scene) = Scene::start("newest").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let boot = scene.node.boot_id()?;
    let loud = scene
        .config(
            "loud",
            spec(&[("/etc/managed", "loud\n")], &["ssh-ed25519 A"]),
        )
        .await?;
    let quiet = scene.config("quiet", spec(&[], &["ssh-ed25519 B"])).await?;
    scene.desire(&loud).await?;
    let request = format!("drain-{loud}");
    scene
        .until("a drain to be asked for", SOON, |seen| {
            says(seen, ASKED, &request)
        })
        .await?;
    scene.desire(&quiet).await?;
    let seen = scene.until_done(&quiet, SOON).await?;
    // Whoever has begun to leave is let in again.
    assert!(
        says(&seen, ASKED, &format!("uncordon-{quiet}")),
        "{seen:#?}"
    );
    assert!(scene.node.read("/etc/managed").is_err());
    assert_eq!(scene.node.read(KEYS)?, b"ssh-ed25519 B\n");
    scene.desire(&base).await?;
    scene.until_done(&base, SOON).await?;
    assert_eq!(scene.node.boot_id()?, boot);
    Ok(())
}

/// Covers M15, M19.
#[tokio::test]
async fn the_force_file_writes_everything_again_with_a_drain_and_a_boot() -> Result<()> {
    let Some(mut scene) = Scene::start("forced").await? else {
        return Ok(());
    };
    let secret = "/var/lib/kubelet/config.json";
    let base = scene.at_rest(spec(&[(secret, "one\n")], &[])).await?;
    let boot = scene.node.boot_id()?;
    scene.node.write(secret, "drifted\n")?;
    scene.until_degraded(secret, SOON).await?;
    scene.node.write("/run/machine-config-daemon-force", "")?;
    let request = format!("drain-{base}");
    scene
        .until("a drain to be asked for", SOON, |seen| {
            says(seen, ASKED, &request)
        })
        .await?;
    assert_eq!(scene.node.read(secret)?, b"drifted\n");
    scene.annotate(ANSWERED, &request).await?;
    scene.node.wait_for_reboot(&boot)?;
    let seen = scene.until_done(&base, BOOT).await?;
    assert!(says(&seen, ASKED, &format!("uncordon-{base}")), "{seen:#?}");
    assert_eq!(scene.node.read(secret)?, b"one\n");
    assert!(scene.node.read("/run/machine-config-daemon-force").is_err());
    Ok(())
}

#[tokio::test]
async fn an_agent_in_a_container_with_the_root_mounted_keeps_and_boots_the_machine() -> Result<()> {
    let Some(mut scene) = Scene::start("mounted").await? else {
        return Ok(());
    };
    scene.mount_the_root()?;
    scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    assert_eq!(scene.node.read(KEYS)?, b"ssh-ed25519 A\n");
    let new = scene
        .config(
            "new",
            spec(&[("/etc/managed", "new\n")], &["ssh-ed25519 A"]),
        )
        .await?;
    scene.go_to(&new).await?;
    assert_eq!(scene.node.read("/etc/managed")?, b"new\n");
    Ok(())
}

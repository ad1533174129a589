//! What somebody changes behind the agent's back is told within a second, or put back.

use std::time::{Duration, Instant};

use evenkeel_testbed::alerts::Alerts;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::{Result, need};
use serde_json::json;

use super::scene::{ASKED, ON_DRIFT, SOON, STATE, Scene, says, spec};

/// Changes of it disrupt nothing here, where no runtime runs that reads it.
const POLICY: &str = "/etc/containers/policy.json";
const PULL_SECRET: &str = "/var/lib/kubelet/config.json";
const MINUTE: Duration = Duration::from_mins(1);

/// How soon drift is told.
pub(super) fn is_within_a_second(took: &Duration) -> bool {
    *took < Duration::from_secs(1)
}

/// Covers H37, M16, M19.
#[tokio::test]
async fn drift_is_told_within_a_second_once_and_putting_it_back_is_all_it_takes() -> Result<()> {
    if need::skip(Alerts::NEEDS)? {
        return Ok(());
    }
    let Some(scene) = Scene::start("drifts").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[(POLICY, "one\n")], &[])).await?;
    scene.until_told("DriftMonitorStarted", &base, SOON).await?;

    scene.node.run(&["touch", POLICY])?;
    let mut times = 0;
    let in_a_second = "drift is told within a second";
    kept_async(in_a_second, is_within_a_second, async || {
        if times > 0 {
            scene.node.write(POLICY, "one\n")?;
            scene.until_done(&base, SOON).await?;
        }
        times += 1;
        let write = Instant::now();
        let more = format!("echo {times} times two >> {POLICY}");
        scene.node.run(&["sh", "-c", &more])?;
        let reason = scene.until_degraded(POLICY, SOON).await?;
        let words = format!("\n+{times} times two");
        let told = scene.until_told("ConfigDrift", &words, SOON).await?;
        let took = write.elapsed();
        assert!(told.contains(POLICY), "{told}");
        assert!(reason.contains("contents differ"), "{reason}");
        assert!(reason.contains(&base), "{reason}");
        Ok(took)
    })
    .await?;
    let metrics = scene.metrics()?;
    for number in [
        "evenkeel_node_state{state=\"Degraded\"} 1",
        "evenkeel_node_state{state=\"Done\"} 0",
        "evenkeel_node_drifted_paths{class=\"file\"} 1",
        "evenkeel_node_drifted_paths{class=\"unit\"} 0",
        &format!("evenkeel_node_events_total{{reason=\"ConfigDrift\"}} {times}"),
    ] {
        assert!(metrics.contains(number), "{number} is not in {metrics}");
    }
    // If it stays like that, somebody is called.
    let alerts = Alerts::read("agent.yaml")?;
    let fires = |after| alerts.fires("EvenkeelDriftNotRepaired", &metrics, after);
    assert!(fires(MINUTE * 11)? && !fires(MINUTE * 9)?, "{metrics}");

    scene
        .node
        .run(&["sh", "-c", &format!("echo three >> {POLICY}")])?;
    scene.node.write(POLICY, "one\n")?;
    scene.until_done(&base, SOON).await?;
    kept_async(in_a_second, is_within_a_second, async || {
        times += 1;
        let write = Instant::now();
        // Each another one, as an Event that is told again is only counted.
        let mode = format!("6{times:02o}");
        scene.node.run(&["chmod", &mode, POLICY])?;
        let reason = scene.until_degraded("mode", SOON).await?;
        let took = write.elapsed();
        assert!(reason.contains(POLICY), "{reason}");
        scene.node.run(&["chmod", "644", POLICY])?;
        scene.until_done(&base, SOON).await?;
        Ok(took)
    })
    .await?;

    let drifts = scene.events().await?;
    let drifts: Vec<_> = drifts
        .iter()
        .filter(|(of, _)| of == "ConfigDrift")
        .collect();
    assert_eq!(drifts.len(), times, "{drifts:#?}");
    Ok(())
}

/// Covers M16.
#[tokio::test]
async fn a_unit_and_its_drop_in_are_watched_like_files() -> Result<()> {
    let Some(mut scene) = Scene::start("units").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[], &[])).await?;
    let service = "[Service]\nExecStart=/bin/true\n";
    let drop_in = "[Service]\nNice=5\n";
    let mut units = spec(&[], &[]);
    units["config"]["systemd"] = json!({ "units": [{
        "name": "ours.service",
        "contents": service,
        "dropins": [{ "name": "10-nice.conf", "contents": drop_in }],
    }]});
    let units = scene.config("units", units).await?;
    scene.go_to(&units).await?;
    let folder = "/etc/systemd/system/ours.service";
    for (path, right) in [
        (folder.to_owned(), service),
        (format!("{folder}.d/10-nice.conf"), drop_in),
    ] {
        let in_a_second = format!("drift of {path} is told within a second");
        kept_async(&in_a_second, is_within_a_second, async || {
            let write = Instant::now();
            scene
                .node
                .run(&["sh", "-c", &format!("echo '# mine' >> {path}")])?;
            scene.until_degraded("unit ours.service", SOON).await?;
            let took = write.elapsed();
            scene.until_told("ConfigDrift", "# mine", SOON).await?;
            scene.node.write(&path, right)?;
            scene.until_done(&units, SOON).await?;
            Ok(took)
        })
        .await?;
    }
    Ok(())
}

/// Covers M20.
#[tokio::test]
async fn drift_is_put_back_with_an_event_that_shows_it_where_that_is_wanted() -> Result<()> {
    let Some(scene) = Scene::start("heals").await? else {
        return Ok(());
    };
    scene.annotate(ON_DRIFT, "heal").await?;
    let base = scene.at_rest(spec(&[(POLICY, "one\n")], &[])).await?;
    scene
        .node
        .run(&["sh", "-c", &format!("echo two >> {POLICY}")])?;
    let told = scene.until_told("ConfigDriftHealed", POLICY, SOON).await?;
    assert!(told.contains("\n+two"), "{told}");
    assert_eq!(scene.node.read(POLICY)?, b"one\n");
    scene.until_done(&base, SOON).await?;
    Ok(())
}

/// Covers M18.
#[tokio::test]
async fn an_update_does_not_begin_on_a_machine_that_has_drifted() -> Result<()> {
    let Some(scene) = Scene::start("preflight").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[(PULL_SECRET, "one\n")], &[])).await?;
    scene.node.write(PULL_SECRET, "drifted\n")?;
    scene.until_degraded(PULL_SECRET, SOON).await?;
    let files = [
        (PULL_SECRET, "two\n"),
        ("/etc/kubernetes/kubelet-ca.crt", "ca\n"),
    ];
    let new = scene.config("new", spec(&files, &[])).await?;
    scene.desire(&new).await?;
    let told = scene.until_told("ConfigDrift", PULL_SECRET, SOON).await?;
    assert!(!told.contains("drifted"), "a secret was shown: {told}");
    // An update without disruption would be done within two seconds.
    scene
        .stays(Duration::from_secs(2), |seen| says(seen, STATE, "Degraded"))
        .await?;
    assert_eq!(scene.node.read(PULL_SECRET)?, b"drifted\n");
    assert!(scene.node.read("/etc/kubernetes/kubelet-ca.crt").is_err());

    scene.node.write(PULL_SECRET, "one\n")?;
    let seen = scene.until_done(&new, SOON).await?;
    assert_eq!(seen.get(ASKED), None);
    assert_eq!(scene.node.read(PULL_SECRET)?, b"two\n");
    Ok(())
}

#[tokio::test]
async fn a_start_verifies_everything_before_it_says_done() -> Result<()> {
    let Some(scene) = Scene::start("starts").await? else {
        return Ok(());
    };
    let files = [(POLICY, "one\n"), (PULL_SECRET, "one\n")];
    let base = scene.at_rest(spec(&files, &[])).await?;
    let agent = "evenkeel-agent.service";
    scene.node.run(&["systemctl", "stop", agent])?;
    scene.node.write(POLICY, "two\n")?;
    scene.node.run(&["rm", PULL_SECRET])?;
    scene.node.run(&["systemctl", "start", agent])?;
    let reason = scene.until_degraded(POLICY, SOON).await?;
    assert!(reason.contains(PULL_SECRET), "{reason}");
    scene.node.write(POLICY, "one\n")?;
    scene.node.write(PULL_SECRET, "one\n")?;
    scene.until_done(&base, SOON).await?;
    Ok(())
}

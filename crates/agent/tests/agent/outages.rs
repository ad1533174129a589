//! The API server may go away at any time: nothing is lost, nothing spins, and all of it is told when
//! it is back.

use std::time::{Duration, Instant};

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::{Error, Result, SystemdNode};

use super::scene::{
    ANSWERED, ASKED, BOOT, DESIRED, SOON, STATE, Scene, cluster, login, says, spec,
};

const POLICY: &str = "/etc/containers/policy.json";
const MANAGED: &str = "/etc/managed";

fn away() -> Duration {
    Duration::from_secs(if is_soak() { 120 } else { 20 })
}

/// A scene whose agent reaches the API server through a proxy.
async fn through_proxy(name: &str) -> Result<Option<(Scene, ApiProxy)>> {
    let Some(scene) = Scene::start(name).await? else {
        return Ok(None);
    };
    let proxy = ApiProxy::before(cluster()?)?;
    let through = format!("{GATEWAY}:{}", proxy.address().port());
    scene.log_in(&login(name)?.at(&through))?;
    Ok(Some((scene, proxy)))
}

/// The agent's process, and what it used of the processor so far, in seconds.
fn processor(node: &SystemdNode) -> Result<(String, f64)> {
    let property = ["systemctl", "show", "--value", "-p", "MainPID"];
    let process = node.run(&[&property[..], &["evenkeel-agent.service"]].concat())?;
    let stat = node.run(&["cat", &format!("/proc/{}/stat", process.trim())])?;
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // The state, a letter, is gone from the list: user and system time are the 11th and 12th.
    Ok((process, (fields[10] + fields[11]) / 100.0))
}

/// Lets the time of the outage pass, in which the Node must say the same all along and the agent must
/// not be busy.
async fn while_away(scene: &Scene, what: &str, state: &str) -> Result<()> {
    let (process, before) = processor(&scene.node)?;
    let start = Instant::now();
    scene.stays(away(), |seen| says(seen, STATE, state)).await?;
    let (same, after) = processor(&scene.node)?;
    let (used, passed) = (after - before, start.elapsed());
    assert_eq!(process, same, "the agent was started again");
    println!("proof: {what}: away {passed:.0?}, the agent used {used:.2} s of the processor");
    assert!(used < 0.01 * passed.as_secs_f64(), "{used} s of {passed:?}");
    Ok(())
}

#[tokio::test]
async fn drift_while_the_api_server_is_away_is_told_when_it_is_back() -> Result<()> {
    let Some((scene, proxy)) = through_proxy("away").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[(POLICY, "one\n")], &[])).await?;

    proxy.refuse();
    proxy.cut();
    scene.node.write(POLICY, "two\n")?;
    while_away(&scene, "drift, connections refused", "Done").await?;
    proxy.accept();
    scene.until_degraded(POLICY, BOOT).await?;
    scene.until_told("ConfigDrift", POLICY, SOON).await?;
    let metrics = scene.metrics()?;
    let counted = metrics.contains("evenkeel_api_errors_total{reason=\"connection\"} ");
    assert!(counted, "{metrics}");

    // Now it keeps the connections and answers nothing.
    proxy.stall();
    scene.node.write(POLICY, "one\n")?;
    while_away(&scene, "drift put back, no answers", "Degraded").await?;
    proxy.resume();
    scene.until_done(&base, BOOT).await?;
    Ok(())
}

#[tokio::test]
async fn an_update_goes_on_when_the_api_server_is_back_wherever_it_was() -> Result<()> {
    let Some((mut scene, proxy)) = through_proxy("gone").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    let boot = scene.node.boot_id()?;
    let wanted = spec(&[(MANAGED, "new\n")], &["ssh-ed25519 A"]);
    let new = scene.config("new", wanted).await?;
    scene.annotate(DESIRED, &new).await?;
    let request = format!("drain-{new}");
    scene
        .until("a drain to be asked for", SOON, |seen| {
            says(seen, ASKED, &request)
        })
        .await?;

    // While pods leave: the answer comes when nobody can hear it.
    proxy.refuse();
    proxy.cut();
    scene.annotate(ANSWERED, &request).await?;
    while_away(&scene, "update, while pods leave", "Working").await?;
    assert!(scene.node.read(MANAGED).is_err(), "written without leave");
    proxy.accept();

    // While the machine is written and boots.
    scene.until_written(MANAGED).await?;
    proxy.refuse();
    proxy.cut();
    let is_done = |seen: &_| says(seen, STATE, "Done");
    scene.stays(away(), |seen| !is_done(seen)).await?;
    proxy.accept();
    scene.node.wait_for_reboot(&boot)?;
    let seen = scene.until_done(&new, BOOT).await?;
    if !says(&seen, ASKED, &format!("uncordon-{new}")) {
        return Err(Error::failed(format!("not let in again: {seen:#?}")));
    }
    assert_eq!(scene.node.read(MANAGED)?, b"new\n");
    for reason in ["DrainRequested", "Rebooting", "ConfigDone"] {
        scene.until_told(reason, &new, SOON).await?;
    }
    Ok(())
}

//! Power and the API server may go away at any time; nothing is lost.

use std::time::Duration;

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::{Result, SystemdNode};

use super::scene::{
    ANSWERED, ASKED, BOOT, DESIRED, SOON, STATE, Scene, cluster, login, says, spec,
};

const POLICY: &str = "/etc/containers/policy.json";
const MANAGED: &str = "/etc/managed";

/// What the agent used of the processor so far, in seconds.
fn processor(node: &SystemdNode) -> Result<f64> {
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
    Ok((fields[10] + fields[11]) / 100.0)
}

#[tokio::test]
async fn drift_while_the_api_server_is_away_is_told_when_it_is_back() -> Result<()> {
    let Some(scene) = Scene::start("away").await? else {
        return Ok(());
    };
    let proxy = ApiProxy::before(cluster()?)?;
    let through = format!("{GATEWAY}:{}", proxy.address().port());
    scene.log_in(&login("away")?.at(&through))?;
    let base = scene.at_rest(spec(&[(POLICY, "one\n")], &[])).await?;

    proxy.refuse();
    proxy.cut();
    let before = processor(&scene.node)?;
    let away = Duration::from_secs(10);
    scene.node.write(POLICY, "two\n")?;
    scene.stays(away, |seen| says(seen, STATE, "Done")).await?;
    let used = processor(&scene.node)? - before;
    assert!(used < 0.02 * away.as_secs_f64(), "{used} s of {away:?}");

    proxy.accept();
    scene.until_degraded(POLICY, BOOT).await?;
    scene.until_told("ConfigDrift", POLICY, SOON).await?;
    proxy.refuse();
    proxy.cut();
    scene.node.write(POLICY, "one\n")?;
    scene
        .stays(Duration::from_secs(2), |seen| says(seen, STATE, "Degraded"))
        .await?;
    proxy.accept();
    scene.until_done(&base, BOOT).await?;
    Ok(())
}

#[tokio::test]
async fn a_node_whose_power_is_cut_anywhere_in_an_update_ends_at_the_new_configuration()
-> Result<()> {
    let Some(mut scene) = Scene::start("cuts").await? else {
        return Ok(());
    };
    scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    for (round, pause) in [0, 25, 60, 120, 300].into_iter().enumerate() {
        let text = format!("round {round}\n");
        let unit = format!("[Service]\nExecStart=/bin/true\n# {round}\n");
        let mut wanted = spec(
            &[(MANAGED, &text), ("/etc/also", &text)],
            &["ssh-ed25519 A"],
        );
        wanted["config"]["systemd"] =
            serde_json::json!({ "units": [{ "name": "ours.service", "contents": unit }] });
        let name = scene.config(&format!("round-{round}"), wanted).await?;
        scene.annotate(DESIRED, &name).await?;
        let request = format!("drain-{name}");
        scene
            .until("a drain to be asked for", SOON, |seen| {
                says(seen, ASKED, &request)
            })
            .await?;
        let boot = scene.node.boot_id()?;
        scene.annotate(ANSWERED, &request).await?;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        scene.node.cut()?;
        scene.node.boot_again()?;
        let seen = scene.until_done(&name, BOOT).await?;
        assert!(says(&seen, ASKED, &format!("uncordon-{name}")), "{seen:#?}");
        assert_ne!(scene.node.boot_id()?, boot);
        assert_eq!(scene.node.read(MANAGED)?, text.as_bytes());
        assert_eq!(scene.node.read("/etc/also")?, text.as_bytes());
        assert_eq!(
            scene.node.read("/etc/systemd/system/ours.service")?,
            unit.as_bytes()
        );
    }
    Ok(())
}

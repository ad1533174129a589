//! The API server may go away at any time: nothing is lost, nothing spins, and all of it is told when
//! it is back.

use std::time::{Duration, Instant};

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, SystemdNode};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::scene::{ANSWERED, ASKED, BOOT, SOON, STATE, Scene, cluster, login, says, spec};

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

/// What the agent may use of a processor while it can do nothing.
const IDLE: f64 = 0.01;
/// How often the agent may try to connect in a second, whatever it has to say or to hear.
const TRIES: f64 = 3.0;

/// Lets the time of the outage pass, in which the Node must say the same all along and the agent must
/// not be busy. A host that takes the machine's processors makes everything dearer than it is; how often the
/// agent tried does not depend on that.
async fn while_away(scene: &Scene, proxy: &ApiProxy, what: &str, state: &str) -> Result<()> {
    let tried = || proxy.accepted() + proxy.refused();
    let promise = format!("{what}: the agent uses a hundredth of a processor at most");
    let is_idle = |(used, passed): &(f64, Duration)| *used < IDLE * passed.as_secs_f64();
    kept_async(&promise, is_idle, async || {
        let (process, before) = processor(&scene.node)?;
        let (start, tries) = (Instant::now(), tried());
        scene.stays(away(), |seen| says(seen, STATE, state)).await?;
        let (same, after) = processor(&scene.node)?;
        let (used, passed) = (after - before, start.elapsed());
        let tries = u32::try_from(tried() - tries).unwrap_or(u32::MAX);
        assert_eq!(process, same, "the agent was started again");
        println!(
            "proof: {what}: away {passed:.0?}, the agent used {used:.2} s of the processor and tried {tries} times"
        );
        assert!(
            f64::from(tries) < TRIES * passed.as_secs_f64(),
            "{tries} times in {passed:?}"
        );
        Ok((used, passed))
    })
    .await
    .map(|_| ())
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
    while_away(&scene, &proxy, "drift, connections refused", "Done").await?;
    proxy.accept();
    scene.until_degraded(POLICY, BOOT).await?;
    scene.until_told("ConfigDrift", POLICY, SOON).await?;
    let metrics = scene.metrics()?;
    let counted = metrics.contains("evenkeel_api_errors_total{reason=\"connection\"} ");
    assert!(counted, "{metrics}");

    // Now it keeps the connections and answers nothing.
    proxy.stall();
    scene.node.write(POLICY, "one\n")?;
    while_away(&scene, &proxy, "drift put back, no answers", "Degraded").await?;
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
    scene.desire(&new).await?;
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
    while_away(&scene, &proxy, "update, while pods leave", "Working").await?;
    assert!(
        scene.node.read(MANAGED).is_err(),
        "written without a permit"
    );
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

/// Nobody can be told of anything about node `name` for as long as this is there.
pub(crate) async fn silence(name: &str) -> Result<Api<ValidatingWebhookConfiguration>> {
    let client = cluster()?.admin_kubeconfig().client().await?;
    let hooks = Api::all(client.clone());
    let hook = serde_json::from_value(json!({
        "metadata": { "name": name },
        "webhooks": [{
            "name": "silence.evenkeel.test",
            "clientConfig": { "url": "https://127.0.0.1:1/" },
            "rules": [{ "apiGroups": ["events.k8s.io"], "apiVersions": ["v1"], "resources": ["events"], "operations": ["*"] }],
            "matchConditions": [{ "name": "of-this-node", "expression": format!("object.regarding.name == {name:?}") }],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    }));
    let hook = hook.doing(|| "no such webhook")?;
    let made = hooks.create(&PostParams::default(), &hook).await;
    made.doing(|| "cannot make a webhook")?;
    let event: Event = serde_json::from_value(json!({
        "metadata": { "generateName": name },
        "regarding": { "kind": "Node", "name": name },
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reason": "Heard", "action": "Hear", "type": "Normal",
        "reportingController": "evenkeel.dev/test", "reportingInstance": "test",
    }))
    .doing(|| "no such Event")?;
    let events: Api<Event> = Api::namespaced(client, "default");
    let unkept = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until_async("nobody to be told any more", SOON, async || {
        Ok(match events.create(&unkept, &event).await {
            Err(kube::Error::Api(said)) if said.message.contains("silence.evenkeel.test") => {
                Look::Found(())
            }
            other => Look::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    Ok(hooks)
}

#[tokio::test]
async fn what_nobody_could_be_told_before_a_boot_is_told_after_it() -> Result<()> {
    let Some(mut scene) = Scene::start("unheard").await? else {
        return Ok(());
    };
    let base = scene.at_rest(spec(&[], &["ssh-ed25519 A"])).await?;
    scene.until_told("ConfigDone", &base, SOON).await?;
    let boot = scene.node.boot_id()?;
    let hooks = silence("unheard").await?;
    let wanted = spec(&[(MANAGED, "new\n")], &["ssh-ed25519 A"]);
    let new = scene.config("new", wanted).await?;
    scene.desire(&new).await?;
    let request = format!("drain-{new}");
    let is_asked = |seen: &_| says(seen, ASKED, &request);
    scene
        .until("a drain to be asked for", SOON, is_asked)
        .await?;
    scene.annotate(ANSWERED, &request).await?;
    scene.node.wait_for_reboot(&boot)?;
    scene.until_done(&new, BOOT).await?;
    let told = scene.events().await?;
    let is_of_new = |(_, note): &(String, String)| note.contains(&new);
    assert!(!told.iter().any(is_of_new), "somebody was told: {told:#?}");
    let gone = hooks.delete("unheard", &DeleteParams::default()).await;
    gone.doing(|| "cannot delete the webhook")?;
    for reason in [
        "DrainRequested",
        "ConfigApplying",
        "Rebooting",
        "ConfigDone",
    ] {
        scene.until_told(reason, &new, SOON).await?;
    }
    Ok(())
}

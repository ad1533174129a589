//! Leases that are not renewed any more, those that only seem so, and what follows from it.

use std::time::{Duration, Instant};

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use jiff::SignedDuration;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use super::bed::{Extension, TaintWatcher, is_tainted};
use crate::scene::{SOON, Scene, is_ready};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// How far a clock steps back.
const STEP: SignedDuration = SignedDuration::from_secs(30);
const OFTEN: Duration = Duration::from_secs(3);

fn lease() -> serde_json::Value {
    json!({ "extensions": [{ "name": "dp", "lease": { "expiry": "10s" } }], "evictAfter": "0s" })
}

/// Covers R04.
#[tokio::test]
async fn a_lease_that_expires_taints_within_a_second_of_it_with_two_writes_in_all() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("expiry").await?;
    scene.prepare_readiness()?;
    // One clock is an hour ahead, one an hour behind, and all step back every now and then.
    let mut nodes = Vec::new();
    for (suffix, clock) in [
        ("ahead", HOUR),
        ("behind", -HOUR),
        ("steady", SignedDuration::ZERO),
    ] {
        let node = scene.start(scene.describe(suffix)).await?;
        let extension = Extension::start(&scene, node.name(), "dp", OFTEN, clock);
        nodes.push((node, extension, clock));
    }
    scene.rule("lease", lease()).await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    scene
        .rule_status("lease", |it| it["nodes"]["ready"] == 3)
        .await?;
    let mut checks = Vec::new();
    for (node, extension, clock) in nodes {
        let scene = &scene;
        checks.push(async move {
            let name = node.name().to_owned();
            scene.settled(&name).await?;
            let mut taint_watcher = TaintWatcher::of(&scene.client, &name);
            taint_watcher.taint(false).await?;
            if clock.is_zero() {
                // This one goes on all the time.
                tokio::time::sleep(Duration::from_secs(14)).await;
                let after = scene.node(&name).await?;
                assert!(!is_tainted(&after));
                extension.stop().await?;
                return Ok(None);
            }
            extension.stop().await?;
            let promise = "tainted after ten seconds, less than eleven, and released within one";
            let is_kept = |(tainted, released): &(Duration, Duration)| {
                tainted.as_secs() == 10 && released.as_secs() == 0
            };
            let measured = kept_async(promise, is_kept, async || {
                // Measured again, it is tainted by now.
                scene.renew(&name, "dp", clock).await?;
                let free = scene.tainted(&name, false).await?;
                taint_watcher.catch_up(&free).await?;
                // The last renewal, by a clock that has just stepped back; from here on the API server
                // has it.
                let last = Instant::now();
                scene.renew(&name, "dp", clock - STEP).await?;
                let before = taint_watcher.writes;
                let tainted = taint_watcher.taint(true).await?.duration_since(last);
                assert!(tainted.as_secs() >= 10, "{tainted:?}");
                let begun = Instant::now();
                scene.renew(&name, "dp", clock).await?;
                let released = taint_watcher.taint(false).await?.duration_since(begun);
                // It renews no more, so this ends before the next.
                taint_watcher.look_on(Duration::from_secs(2)).await;
                let writes = taint_watcher.writes - before;
                assert_eq!(writes, 2, "one to taint and one to release");
                Ok((tainted, released))
            })
            .await?;
            Ok::<_, evenkeel_testbed::Error>(Some(measured))
        });
    }
    for outcome in futures::future::join_all(checks).await {
        let Some((tainted, released)) = outcome? else {
            continue;
        };
        println!(
            "proof: tainted {tainted:?} after the last renewal, released {released:?} after the next, with two writes"
        );
    }
    Ok(())
}

/// Covers R11.
#[tokio::test]
async fn whoever_hears_nothing_because_of_itself_taints_nobody() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("deaf").await?;
    scene.prepare_readiness()?;
    let mut nodes = Vec::new();
    for number in 0..4 {
        let node = scene.start(scene.describe(&format!("n{number}"))).await?;
        let extension = Extension::start(
            &scene,
            node.name(),
            "dp",
            Duration::from_secs(1),
            SignedDuration::ZERO,
        );
        nodes.push((node, extension));
    }
    let mut spec = lease();
    spec["extensions"][0]["lease"]["expiry"] = json!("3s");
    scene.rule("lease", spec).await?;
    let proxy = ApiProxy::before(scene.control_plane)?;
    let login = scene.login()?.through(&proxy);
    let options = ["--rule-selector", &format!("place={}", scene.name)];
    let operator = scene.operator_as(&login, &options)?;
    scene
        .rule_status("lease", |it| it["nodes"]["ready"] == 4)
        .await?;
    // Every connection that is open hangs; new ones work. Then nothing works for a while. Then the leader is
    // killed, and another one takes over.
    for connection in proxy.connections() {
        connection.stall();
    }
    let quiet = async |how: &str, lasts: Duration| -> Result<()> {
        let end = Instant::now() + lasts;
        while Instant::now() < end {
            for (node, _) in &nodes {
                let seen = scene.node(node.name()).await?;
                assert!(!is_tainted(&seen), "{how}: {}", scene.log());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    };
    quiet("watches hang", Duration::from_secs(8)).await?;
    proxy.cut();
    proxy.stall();
    quiet("the API server is away", Duration::from_secs(8)).await?;
    proxy.resume();
    quiet("it is back", Duration::from_secs(4)).await?;
    drop(operator);
    let _operator = scene.operator_as(&login, &options)?;
    quiet("another one leads", Duration::from_secs(6)).await?;
    // And normal work goes on.
    let (node, extension) = nodes.remove(0);
    extension.stop().await?;
    scene.tainted(node.name(), true).await?;
    Ok(())
}

/// Covers R10.
#[tokio::test]
async fn pods_go_within_their_budget_after_a_while_and_who_tolerates_the_taint_stays() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("evict").await?;
    scene.prepare_readiness()?;
    let nodes = [
        scene.start(scene.describe("bad")).await?,
        scene.start(scene.describe("spare")).await?,
        scene.start(scene.describe("other")).await?,
    ];
    let bad = nodes[0].name().to_owned();
    let mut extensions: Vec<_> = nodes
        .iter()
        .map(|node| {
            Extension::start(
                &scene,
                node.name(),
                "dp",
                Duration::from_secs(1),
                SignedDuration::ZERO,
            )
        })
        .collect();
    let on_it = format!("spec.nodeName={bad}");
    // All of the workload is on this node.
    for other in &nodes[1..] {
        scene
            .patch(other.name(), &json!({ "spec": { "unschedulable": true } }))
            .await?;
    }
    scene.deployment("web", 2, 1).await?;
    scene.daemon_set("everywhere").await?;
    scene.ready(&on_it, 3).await?;
    scene
        .pod(&bad, "tolerant", |it| {
            it["spec"]["tolerations"] =
                json!([{ "key": "kubernetes.io/MetaReadiness", "operator": "Exists" }]);
        })
        .await?;
    for other in &nodes[1..] {
        scene
            .patch(other.name(), &json!({ "spec": { "unschedulable": null } }))
            .await?;
    }
    scene.budget("web", json!({ "maxUnavailable": 1 })).await?;
    let mut spec = lease();
    spec["extensions"][0]["lease"]["expiry"] = json!("3s");
    spec["evictAfter"] = json!("4s");
    scene.rule("lease", spec).await?;
    let _operator = scene.operator(&["--rule-selector", &format!("place={}", scene.name)])?;
    scene
        .rule_status("lease", |it| it["nodes"]["ready"] == 3)
        .await?;

    // Recovered a moment before: nobody goes.
    let before = scene.names(&on_it, is_ready).await?;
    extensions.remove(0).stop().await?;
    scene.tainted(&bad, true).await?;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let extension = Extension::start(
        &scene,
        &bad,
        "dp",
        Duration::from_secs(1),
        SignedDuration::ZERO,
    );
    scene.tainted(&bad, false).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        scene.names(&on_it, is_ready).await?,
        before,
        "{}",
        scene.log()
    );

    extension.stop().await?;
    scene.tainted(&bad, true).await?;
    let tainted = Instant::now();
    let mut fewest = usize::MAX;
    until_async("the workload to be elsewhere", SOON, async || {
        let web = scene
            .names("", |pod| {
                is_ready(pod) && pod.name_any().starts_with("web-")
            })
            .await?;
        fewest = fewest.min(web.len());
        let left = scene.names(&on_it, is_ready).await?;
        Ok(
            if left.iter().any(|it| it.starts_with("web-")) || web.len() < 2 {
                Look::NotYet(format!("{left:?} {web:?}"))
            } else {
                Look::Found(())
            },
        )
    })
    .await?;
    assert!(
        tainted.elapsed() >= Duration::from_secs(3),
        "not before its time"
    );
    assert!(fewest >= 1, "within its budget");
    let left = scene.names(&on_it, is_ready).await?;
    assert!(
        left.contains("tolerant") && left.iter().any(|it| it.starts_with("everywhere-")),
        "{left:?}"
    );
    assert_eq!(left.len(), 2);
    scene.event(&bad, "EvictingPods").await?;
    let all = scene
        .pods()
        .list(&ListParams::default())
        .await
        .doing(|| "no pods")?;
    assert_eq!(
        all.items
            .iter()
            .filter(|it| it.name_any().starts_with("everywhere-"))
            .count(),
        3
    );
    Ok(())
}

//! Storms: what is silent because of us, of the API server or of the way to it taints nobody and evicts
//! nobody, and what is gone everywhere taints slowly. With a thousand nodes in a soak.

use std::time::{Duration, Instant};

use evenkeel_testbed::api_proxy::ApiProxy;
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use kube::api::ListParams;
use serde_json::json;

use super::bed::EXTENSIONS;
use super::fleet::{Crowd, Record};
use crate::scene::Scene;

/// Nodes with a pod that could be evicted.
const GUESTS: usize = 24;

/// How large, and how long.
struct Size {
    nodes: usize,
    expiry: Duration,
    /// How often kubelets renew their Leases.
    kubelets: Duration,
    /// How long the API server is frozen.
    frozen: Duration,
    /// How long watches hang.
    deaf: Duration,
    /// The time between two taints for silence.
    pause: Duration,
}

fn size() -> Size {
    let seconds = Duration::from_secs;
    if is_soak() {
        Size {
            nodes: 1_000,
            expiry: seconds(10),
            kubelets: seconds(10),
            frozen: seconds(120),
            deaf: seconds(60),
            pause: Duration::from_millis(50),
        }
    } else {
        Size {
            nodes: 40,
            expiry: seconds(6),
            kubelets: seconds(2),
            frozen: seconds(9),
            deaf: seconds(9),
            pause: Duration::from_millis(200),
        }
    }
}

/// Covers R11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storms_taint_nobody_and_what_is_gone_everywhere_taints_at_the_limited_rate() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let Size {
        nodes,
        expiry,
        kubelets,
        frozen,
        deaf,
        pause,
    } = size();
    // One of its own, to be frozen.
    let control_plane = ControlPlane::start_own()?;
    let scene = Scene::on(*control_plane, "storm").await?;
    control_plane.kubectl(&["create", "namespace", EXTENSIONS])?;
    let crowd = Crowd::gather(&scene, nodes, &["a", "b"], expiry / 3, kubelets).await?;
    // Somebody who could be evicted.
    for (number, name) in crowd.names.iter().enumerate().take(GUESTS) {
        scene.pod(name, &format!("guest-{number}"), |_| {}).await?;
    }
    let guests = async || -> Result<usize> {
        let pods = scene.pods().list(&ListParams::default()).await;
        let pods = pods.doing(|| "no pods")?.items;
        let stay = pods
            .iter()
            .filter(|it| it.metadata.deletion_timestamp.is_none());
        Ok(stay.count())
    };
    let lease = json!({ "expiry": format!("{}s", expiry.as_secs()) });
    let spec = json!({ "extensions": [{ "name": "dp", "lease": lease }], "evictAfter": "2s" });
    scene.rule("lease", spec).await?;
    let proxy = ApiProxy::before(&control_plane)?;
    let login = scene.login()?.through(&proxy);
    let pause_text = format!("{}ms", pause.as_millis());
    let options = ["--silence-pause", pause_text.as_str()];
    let mut operator = scene.operator_as(&login, &options)?;
    crowd.are_ready(&scene, "lease").await?;
    let record = Record::of(&scene);
    let start = Instant::now();
    let calm = async |what: &str| -> Result<()> {
        // Whatever was silent for so long is decided on by now.
        tokio::time::sleep(expiry + Duration::from_secs(1)).await;
        let tainted = record.tainted(start);
        assert!(tainted.is_empty(), "{what}: {tainted:?}: {}", scene.log());
        assert_eq!(guests().await?, GUESTS, "{what}");
        crowd.are_ready(&scene, "lease").await?;
        println!("proof: {nodes} nodes, {what}: nobody tainted, nobody evicted");
        Ok(())
    };

    control_plane.freeze_api_server()?;
    tokio::time::sleep(frozen).await;
    control_plane.thaw_api_server()?;
    calm(&format!("the API server frozen for {frozen:?}")).await?;

    // Renewals go on, and nothing is heard of them.
    for connection in proxy.connections() {
        connection.stall();
    }
    tokio::time::sleep(deaf).await;
    calm(&format!("watches that hang for {deaf:?}")).await?;

    crowd.cut_off();
    tokio::time::sleep(expiry * 5 / 2).await;
    crowd.connect().await?;
    calm("all of them cut off at once, and back").await?;

    // One really stops; the leader is killed in the middle of that, and the next one begins anew.
    let gone = &crowd.names[..1];
    crowd.silence(gone);
    let stopped = Instant::now();
    tokio::time::sleep(expiry / 2).await;
    operator.kill()?;
    scene.nobody_leads().await?;
    operator = scene.operator_as(&login, &options)?;
    let taken_over = Instant::now();
    let came = until_async(
        "the one to be tainted",
        Duration::from_mins(2),
        async || {
            let tainted = record.tainted(start);
            Ok(match tainted.first() {
                Some((at, _)) => Look::Found(*at),
                None => Look::NotYet(String::new()),
            })
        },
    )
    .await?;
    assert!(came.duration_since(taken_over) >= expiry, "as if just seen");
    let all = record.tainted(start);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].1, gone[0], "whoever is heard is left alone");
    println!(
        "proof: {nodes} nodes, the leader killed in the middle of an expiry: the one that stopped tainted {:?} after that, {:?} after another led, and no other",
        came.duration_since(stopped),
        came.duration_since(taken_over)
    );
    crowd.silence(&[]);
    scene.tainted(&gone[0], false).await?;
    drop(proxy);

    // The extension is gone everywhere, and the kubelets are heard.
    drop(operator);
    scene.nobody_leads().await?;
    let _operator = scene.operator(&options)?;
    crowd.are_ready(&scene, "lease").await?;
    let before = guests().await?;
    let begun = Instant::now();
    crowd.silence(&crowd.names);
    let limit = expiry * 4 + 2 * pause * u32::try_from(nodes).unwrap_or(u32::MAX);
    until_async(
        "all to be tainted",
        limit + Duration::from_mins(1),
        async || {
            let tainted = record.tainted(begun);
            let is_missing = |it: &&String| !tainted.iter().any(|(_, name)| name == *it);
            let missing: Vec<_> = crowd.names.iter().filter(is_missing).collect();
            Ok(if missing.is_empty() {
                Look::Found(())
            } else {
                let log = scene.log();
                let lines: Vec<_> = log.lines().rev().take(20).collect();
                Look::NotYet(format!("not {missing:?}: {lines:#?}"))
            })
        },
    )
    .await?;
    let times: Vec<_> = record.tainted(begun);
    let lasted = times[nodes - 1].0.duration_since(times[0].0);
    // Two zones, each with its limit; the first of each comes without a pause before it.
    let least = pause * u32::try_from(nodes / 2 - 1).unwrap_or(u32::MAX);
    println!(
        "proof: {nodes} nodes whose extension is gone: the first tainted {:?} after that, all of them within {lasted:?}; the limit of one every {pause:?} and zone allows no less than {least:?}",
        times[0].0.duration_since(begun)
    );
    assert!(lasted >= least * 9 / 10, "{lasted:?}");
    // One node every ten seconds and zone until most are not ready, and none from then on.
    let evicted = before - guests().await?;
    let limit = 2 * (1 + usize::try_from(lasted.as_secs() / 10).unwrap_or(usize::MAX));
    println!("proof: {evicted} evicted meanwhile, of {GUESTS}; the limit is {limit}");
    assert!(evicted <= limit && limit < GUESTS, "{evicted} {limit}");
    let held = guests().await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(guests().await?, held, "most of everything is not ready");
    Ok(())
}

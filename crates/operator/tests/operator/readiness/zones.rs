//! Evictions when much of a zone is not ready: slowly there, as ever elsewhere, and none when it is so
//! everywhere.

use std::time::{Duration, Instant};

use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use futures::StreamExt;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use super::fleet::Crowd;
use crate::scene::{SOON, Scene};

/// The time between two nodes whose pods are evicted, where all is well but for them and where it is not.
const PAUSE: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(8);

/// Says of these nodes that a device is broken.
async fn break_all(nodes: &[&NodeDouble]) -> Result<()> {
    let broken = futures::stream::iter(nodes).map(|node| node.lie("GpuReady", "False"));
    let broken: Vec<Result<()>> = broken.buffer_unordered(16).collect().await;
    broken.into_iter().collect()
}

/// Covers R10, R11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disturbed_zone_loses_its_pods_slowly_the_other_one_as_ever_and_none_if_both_are()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    // A zone of up to fifty nodes would lose none.
    let each = if is_soak() { 100 } else { 52 };
    let scene = Scene::new("zones").await?;
    scene.prepare_readiness()?;
    let heartbeat = Duration::from_secs(10);
    let crowd = Crowd::gather(&scene, 2 * each, &["a", "b"], heartbeat, heartbeat).await?;
    let all: Vec<&NodeDouble> = crowd.nodes.iter().collect();
    let well = futures::stream::iter(&all).map(|node| node.lie("GpuReady", "True"));
    let well: Vec<Result<()>> = well.buffer_unordered(16).collect().await;
    well.into_iter().collect::<Result<()>>()?;
    let in_zone = |zone: usize| all.iter().skip(zone).step_by(2).copied();
    // Sixty percent of one zone will break, and ten nodes of the other; each has a pod.
    let most = each * 6 / 10;
    let first: Vec<&NodeDouble> = in_zone(0).take(most).collect();
    let few: Vec<&NodeDouble> = in_zone(1).take(10).collect();
    let (on_first, on_few) = (&first[..8], &few[..]);
    for (zone, nodes) in [("a", on_first), ("b", on_few)] {
        let made = futures::stream::iter(nodes.iter().enumerate()).map(async |(number, node)| {
            let name = format!("{zone}-{number}");
            scene.pod(node.name(), &name, |_| {}).await.map(|_| ())
        });
        let made: Vec<Result<()>> = made.buffer_unordered(8).collect().await;
        made.into_iter().collect::<Result<()>>()?;
    }
    let left = async |zone: &str| -> Result<usize> {
        let pods = scene.pods().list(&ListParams::default()).await;
        let pods = pods.doing(|| "no pods")?.items;
        let stay = pods.iter().filter(|it| {
            it.metadata.deletion_timestamp.is_none() && it.name_any().starts_with(zone)
        });
        Ok(stay.count())
    };
    let condition = json!({ "type": "GpuReady" });
    let extensions = json!([{ "name": "gpu", "condition": condition }]);
    let rule = json!({ "extensions": extensions, "evictAfter": "1s", "dryRun": true });
    scene.rule("gpu", rule).await?;
    let place = format!("place={}", scene.name);
    let (pause, slow) = (format!("{PAUSE:?}"), format!("{SLOW:?}"));
    let limits = ["--eviction-pause", &pause, "--slow-eviction-pause", &slow];
    let options = [&["--rule-selector", place.as_str()][..], &limits].concat();
    let _operator = scene.operator(&options)?;
    crowd.are_ready(&scene, "gpu").await?;

    // All of them at one moment, however long it takes to break them.
    break_all(&[&first[..], &few].concat()).await?;
    let broken = most + few.len();
    scene
        .rule_status("gpu", |it| it["nodes"]["notReady"] == broken)
        .await?;
    assert_eq!((left("a-").await?, left("b-").await?), (8, 10));
    let begun = Instant::now();
    scene
        .edit_rule("gpu", json!({ "spec": { "dryRun": false } }))
        .await?;
    until_async("the other zone to lose its pods", SOON, async || {
        let pods = left("b-").await?;
        Ok(if pods == 0 {
            Look::Found(())
        } else {
            Look::NotYet(format!("{pods}"))
        })
    })
    .await?;
    let took = begun.elapsed();
    let slowly = on_first.len() - left("a-").await?;
    let allowed = 1 + usize::try_from(begun.elapsed().as_secs() / SLOW.as_secs()).unwrap_or(0);
    println!(
        "proof: two zones of {each}, {most} of one and 10 of the other not ready: {slowly} nodes of the one evicted within {took:?} (one every {SLOW:?} allowed), 10 of the other (one every {PAUSE:?})"
    );
    assert!(took >= PAUSE * 8, "not faster than its limit: {took:?}");
    assert!(took < PAUSE * 10 + SLOW * 2, "as ever: {took:?}");
    assert!((1..=allowed).contains(&slowly), "{slowly} of {allowed}");
    let status = scene
        .rule_status("gpu", |it| it.to_string().contains("evictions from"))
        .await?;
    let said = status["conditions"].to_string();
    assert!(
        said.contains(&format!("zone a: {most} of {each} nodes are not ready")),
        "{said}"
    );
    assert!(
        said.contains(&format!("evictions from one node every {SLOW:?}")),
        "{said}"
    );

    // The other zone, too: nobody goes any more.
    let rest: Vec<&NodeDouble> = in_zone(1).take(most).collect();
    break_all(&rest).await?;
    scene
        .rule_status("gpu", |it| {
            it.to_string().contains("no evictions while most")
        })
        .await?;
    let before = left("a-").await?;
    tokio::time::sleep(SLOW + Duration::from_secs(2)).await;
    assert_eq!(left("a-").await?, before, "most of everything is not ready");
    println!(
        "proof: most of both zones not ready: nobody evicted within {:?}",
        SLOW + Duration::from_secs(2)
    );
    Ok(())
}

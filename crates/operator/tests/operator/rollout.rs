//! What a rollout promises, on a real control plane: nodes are doubles, their agents the real engine on
//! simulated machines.

use std::time::{Duration, Instant};

use evenkeel_api::fleet::machine_config_pool::condition;
use evenkeel_api::names::annotation;
use evenkeel_testbed::chance::is_soak;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use crate::agents::Agents;
use crate::pools::{file, is, said};
use crate::rollout_watcher::{RolloutWatcher, StatusWatcher};
use crate::scene::{SOON, Scene, annotated, is_cordoned, is_ready};

/// How long a whole rollout may take on a busy machine.
pub(crate) const LONG: Duration = Duration::from_mins(8);
/// The same for hundreds of nodes.
const LONGER: Duration = Duration::from_mins(40);

/// Covers M02, M03, M06, X08.
#[tokio::test]
async fn a_whole_fleet_goes_to_a_new_configuration_and_a_tenth_of_it_is_down_at_most() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let count = if is_soak() { 500 } else { 40 };
    let scene = Scene::new("fleet").await?;
    let (nodes, agents) = scene
        .web(count, 3, json!({ "maxUnavailable": "10%" }))
        .await?;
    let operator = scene.operator(&[])?;
    let (rollout_watcher, status_watcher) = (RolloutWatcher::of(&scene), StatusWatcher::of(&scene));
    let start = Instant::now();
    let first = scene.until_updated("web", "", LONGER).await?;
    let took_first = start.elapsed();
    scene
        .config("web", "50-more", file("/etc/more", "2"))
        .await?;
    let start = Instant::now();
    let second = scene.until_updated("web", &first, LONGER).await?;
    let took = start.elapsed();
    rollout_watcher.check(count / 10)?;
    let written = status_watcher.check()?;
    agents.check_violations()?;
    for node in nodes.iter() {
        assert_eq!(agents.file(node.name(), "/etc/base").as_deref(), Some("1"));
        assert_eq!(agents.file(node.name(), "/etc/more").as_deref(), Some("2"));
        let seen = scene.node(node.name()).await?;
        assert_eq!(
            annotated(&seen, annotation::CURRENT_CONFIG),
            Some(second.as_str())
        );
        assert!(!is_cordoned(&seen), "{}", node.name());
    }
    let (down, told) = rollout_watcher.saw();
    assert!(agents.boots() >= count, "only {} boots", agents.boots());
    println!(
        "proof: {count} nodes, maxUnavailable 10%: first configuration in {took_first:?}, second in {took:?}, {} boots; \
         an outside watcher saw {} versions of Nodes, at most {down} down and {told} on their way at once; \
         the pool's status was written {written} times; operator {} KiB resident",
        agents.boots(),
        rollout_watcher.versions(),
        resident(operator.id()),
    );
    // The one before is nobody's any more.
    until_async("the old configuration to be collected", SOON, async || {
        let old = scene
            .configs()
            .get_opt(&first)
            .await
            .doing(|| "cannot look")?;
        Ok(match old {
            None => Look::Found(()),
            Some(_) => Look::NotYet(format!("{first} is still there")),
        })
    })
    .await
}

fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let number = line.and_then(|it| it.split_whitespace().next()?.parse().ok());
    number.unwrap_or_default()
}

/// Covers M03, X08.
#[tokio::test]
async fn killed_every_few_seconds_with_a_second_one_beside_it_the_result_is_the_same() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("killing").await?;
    let (count, limit) = if is_soak() { (500, 50) } else { (12, 2) };
    let (nodes, agents) = scene
        .web(count, 3, json!({ "maxUnavailable": limit }))
        .await?;
    let rollout_watcher = RolloutWatcher::of(&scene);
    let mut kills = 0;
    let rolling = async {
        let first = scene.until_updated("web", "", LONGER).await?;
        scene
            .config("web", "00-base", file("/etc/base", "2"))
            .await?;
        scene.until_updated("web", &first, LONGER).await
    };
    let killing = async {
        loop {
            // Two at once: one acts, and the other one waits for its Lease.
            let mut one = scene.operator(&[])?;
            let mut other = scene.operator(&[])?;
            tokio::time::sleep(Duration::from_millis(2500 + 400 * (kills % 5))).await;
            one.kill()?;
            other.kill()?;
            kills += 1;
            scene.nobody_leads().await?;
        }
    };
    let target = tokio::select! {
        ended = killing => return ended,
        target = rolling => target?,
    };
    rollout_watcher.check(limit)?;
    agents.check_violations()?;
    assert!(kills >= 2, "it was over after {kills} kills");
    for node in nodes.iter() {
        let seen = scene.node(node.name()).await?;
        assert_eq!(
            annotated(&seen, annotation::CURRENT_CONFIG),
            Some(target.as_str())
        );
        assert_eq!(agents.file(node.name(), "/etc/base").as_deref(), Some("2"));
    }
    println!(
        "proof: {count} nodes, {limit} at once, through two configurations while two operators were killed {kills} times"
    );
    Ok(())
}

#[tokio::test]
async fn of_two_operators_one_acts_and_the_other_one_takes_over() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("two").await?;
    let login = scene.login()?;
    let mut one = scene.operator_called("one", &login, &[])?;
    let mut other = scene.operator_called("other", &login, &[])?;
    let (nodes, agents) = scene.web(4, 1, json!({})).await?;
    let rollout_watcher = RolloutWatcher::of(&scene);
    let first = scene.until_updated("web", "", LONG).await?;
    let told = scene.log().matches("wrote on the node: ").count();
    assert_eq!(told, nodes.len(), "a node was told twice:\n{}", scene.log());
    // Whichever leads goes, and the other one goes on.
    let leader = scene.leader().await?;
    let (leads, follows) = match leader.split_once('_') {
        Some(("one", _)) => (&mut one, &mut other),
        Some(("other", _)) => (&mut other, &mut one),
        _ => panic!("{leader} leads"),
    };
    leads.still_runs()?;
    leads.kill()?;
    scene
        .config("web", "00-base", file("/etc/base", "2"))
        .await?;
    scene.until_updated("web", &first, LONG).await?;
    follows.still_runs()?;
    assert_ne!(scene.leader().await?, leader);
    rollout_watcher.check(1)?;
    agents.check_violations()
}

/// Covers M03, M06.
#[tokio::test]
async fn a_failing_node_stops_the_spread_and_a_paused_pool_moves_nothing() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("failing").await?;
    let (nodes, agents) = scene
        .web(5, 1, json!({ "maxUnavailable": 2, "paused": true }))
        .await?;
    let _operator = scene.operator(&[])?;
    let status = scene
        .until_pool("web", "to be paused", SOON, |it| {
            said(it, condition::UPDATING).0 == "Paused"
        })
        .await?;
    assert_eq!((status.machine_count, status.updated_machine_count), (5, 0));
    // A person's cordon stays, and the node goes with the others.
    let order = scene.by_age(&nodes).await?;
    let by_hand = &order[4];
    scene
        .patch(by_hand, &json!({ "spec": { "unschedulable": true } }))
        .await?;
    let broken = &order[1];
    agents.break_disk(broken, true);
    // Two begin, and the other one is still on its way when it fails.
    agents.hold_boots(true);
    scene
        .edit_pool("web", json!({ "spec": { "paused": false } }))
        .await?;
    scene
        .until_pool("web", "to stop with one on its way", LONG, |it| {
            let (reason, message) = said(it, condition::UPDATING);
            reason == "Stopped" && message.contains("; updating:")
        })
        .await?;
    agents.hold_boots(false);
    let stopped = scene
        .until_pool("web", "to stop", LONG, |it| {
            let (reason, message) = said(it, condition::UPDATING);
            // Whoever was on its way arrives, and nobody else begins.
            reason == "Stopped" && !message.contains("; updating:")
        })
        .await?;
    let (_, message) = said(&stopped, condition::UPDATING);
    assert!(
        message.contains(broken) && message.contains("the disk is full"),
        "{message}"
    );
    assert!(is(&stopped, condition::DEGRADED) && is(&stopped, condition::NODE_DEGRADED));
    assert_eq!(stopped.degraded_machine_count, 1);
    assert_eq!(stopped.updated_machine_count, 1, "{stopped:#?}");
    scene
        .told(&scene.own("web"), "RolloutStopped", broken)
        .await?;
    agents.break_disk(broken, false);
    // Its agent tries again when it is told anything; a person would wait for its own retry.
    scene
        .patch(
            broken,
            &json!({ "metadata": { "annotations": { "poke": "1" } } }),
        )
        .await?;
    scene.until_updated("web", "", LONG).await?;
    assert!(
        is_cordoned(&scene.node(by_hand).await?),
        "the person's cordon is gone"
    );
    for node in nodes.iter().filter(|it| it.name() != *by_hand) {
        assert!(!is_cordoned(&scene.node(node.name()).await?));
    }
    agents.check_violations()
}

/// Covers M03.
#[tokio::test]
async fn edits_in_the_middle_of_a_rollout_end_at_the_newest_within_the_limit() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("racing").await?;
    let nodes = scene.fleet("web", 8, 2).await?;
    let agents = Agents::start(&scene, &nodes).await?;
    scene
        .config("web", "00-base", file("/etc/base", "0"))
        .await?;
    scene
        .pool("web", json!({ "maxUnavailable": "25%" }))
        .await?;
    let _operator = scene.operator(&[])?;
    let rollout_watcher = RolloutWatcher::of(&scene);
    scene.until_updated("web", "", LONG).await?;
    for number in 1..=5 {
        scene
            .config("web", "00-base", file("/etc/base", &number.to_string()))
            .await?;
        // A person who writes wishes of their own is no help.
        let tampered =
            json!({ "metadata": { "annotations": { annotation::DESIRED_CONFIG: "mine" } } });
        scene.patch(nodes[number % 8].name(), &tampered).await?;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    until_async("all nodes to have the newest", LONG, async || {
        let at = |name: &str| agents.file(name, "/etc/base").unwrap_or_default();
        let all: Vec<_> = nodes.iter().map(|it| at(it.name())).collect();
        Ok(if all.iter().all(|it| it == "5") {
            Look::Found(())
        } else {
            Look::NotYet(format!("{all:?}"))
        })
    })
    .await?;
    scene
        .until_pool("web", "to be updated", LONG, |it| {
            is(it, condition::UPDATED) && !is(it, condition::UPDATING)
        })
        .await?;
    let (down, _) = rollout_watcher.saw();
    assert!((1..=2).contains(&down), "{down} were down at once");
    agents.check_violations()
}

/// Covers M03, M12.
#[tokio::test]
async fn a_workload_stays_within_its_budget_through_a_whole_rollout_with_reboots() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("budget").await?;
    let (_, agents) = scene.web(4, 1, json!({ "maxUnavailable": 2 })).await?;
    let _operator = scene.operator(&[])?;
    let first = scene.until_updated("web", "", LONG).await?;
    scene.deployment("shop", 3, 1).await?;
    scene.ready("spec.nodeName!=", 3).await?;
    scene.budget("shop", json!({ "maxUnavailable": 1 })).await?;
    let boots = agents.boots();
    scene
        .config("web", "00-base", file("/etc/base", "2"))
        .await?;
    let watching = async {
        let mut fewest = usize::MAX;
        loop {
            let pods = scene.pods().list(&ListParams::default()).await;
            let pods = pods.doing(|| "cannot list pods")?.items;
            // A pod that restarts with its machine would not be ready: there must be none on it by then.
            fewest = fewest.min(pods.iter().filter(|it| is_ready(it)).count());
            if fewest < 2 {
                let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
                return Err::<(), _>(Error::failed(format!("{fewest} of 3 are ready: {names:?}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        broken = watching => broken?,
        updated = scene.until_updated("web", &first, LONG) => drop(updated?),
    }
    assert!(agents.boots() >= boots + 4, "only {} boots", agents.boots());
    scene.ready("spec.nodeName!=", 3).await?;
    agents.check_violations()
}

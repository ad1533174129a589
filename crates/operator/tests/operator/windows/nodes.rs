//! What nodes are told: what they were granted, in their turn, and nobody else's nodes anything.

use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_api::windows::windows_pool::{UpdatePhase, condition};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Result, need};
use serde_json::{Value, json};

use super::bed::{Bed, OWN, worker_ignition};
use crate::scene::{SOON, annotated};

/// What a node is told to run.
async fn told(bed: &Bed, node: &NodeDouble) -> Result<(Option<String>, Option<String>)> {
    let seen = bed.scene.node(node.name()).await?;
    let said = |name| annotated(&seen, name).map(str::to_owned);
    Ok((
        said(annotation::WINDOWS_DESIRED_VERSION),
        said(annotation::DESIRED_SERVICES),
    ))
}

async fn until_told(bed: &Bed, node: &NodeDouble, version: &str, hash: &str) -> Result<()> {
    let wanted = (Some(version.to_owned()), Some(hash.to_owned()));
    until_async(
        &format!("{} to be told {wanted:?}", node.name()),
        SOON,
        async || {
            let now = told(bed, node).await?;
            Ok(if now == wanted {
                Look::Found(())
            } else {
                let log = bed.scene.log();
                let lines: Vec<_> = log.lines().rev().take(8).collect();
                Look::NotYet(format!("{now:?}\n{lines:#?}"))
            })
        },
    )
    .await
}

/// Covers H11, H38, X09.
#[tokio::test]
async fn a_tampered_desired_version_is_put_back_to_what_was_granted_and_a_foreign_node_is_never_touched()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("granted").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let foreign = bed.bare("foreign").await?;
    // Somebody cordoned it, and a readiness rule of somebody left its mark.
    let mark = json!({
        "metadata": { "annotations": { annotation::READINESS_OWNERS: "x" } },
        "spec": { "unschedulable": true },
    });
    bed.scene.patch(foreign.name(), &mark).await?;
    let _operator = bed.operator()?;
    let (_, services) = bed.own_map(SOON).await?;
    let own = services.hash();
    let old = bed.node("old", "1.0.0-0000001", "before").await?;
    let new = bed.node("new", OWN, &own).await?;
    bed.until_status("two nodes", |it| {
        it.nodes.total == 2 && it.nodes.updated == 1
    })
    .await?;
    let version = annotation::WINDOWS_DESIRED_VERSION;
    let hash = annotation::DESIRED_SERVICES;
    for tampered in [
        json!({ version: "9.9.9-fffffff" }),
        json!({ version: null }),
        json!({ hash: "rubbish" }),
        json!({ version: OWN, hash: own }),
        json!({ version: null, hash: null }),
    ] {
        for (node, back, services) in [(&old, "1.0.0-0000001", "before"), (&new, OWN, own.as_str())]
        {
            bed.annotate(node.name(), tampered.clone()).await?;
            until_told(&bed, node, back, services).await?;
        }
    }
    let note = bed.scene.event(old.name(), "DesiredVersionPutBack").await?;
    assert!(note.contains("1.0.0-0000001"), "{note}");
    let seen = bed.scene.node(foreign.name()).await?;
    let managers = seen.metadata.managed_fields.clone().unwrap_or_default();
    let ours = managers
        .iter()
        .filter(|it| it.manager.as_deref() == Some("evenkeel-operator"));
    assert_eq!(ours.count(), 0, "{managers:?}");
    assert_eq!(told(&bed, &foreign).await?, (None, None));
    assert_eq!(bed.status().await?.nodes.total, 2, "nor is it counted");
    Ok(())
}

/// An agent that does what it is told.
async fn obey(bed: &Bed, node: &NodeDouble) -> Result<bool> {
    let seen = bed.scene.node(node.name()).await?;
    let desired = annotated(&seen, annotation::DESIRED_SERVICES);
    let is_new = desired != annotated(&seen, annotation::CURRENT_SERVICES);
    if is_new {
        bed.annotate(
            node.name(),
            json!({ annotation::CURRENT_SERVICES: desired }),
        )
        .await?;
    }
    Ok(is_new)
}

/// Covers X08.
#[tokio::test]
async fn nodes_go_to_new_services_one_after_the_other_and_a_drain_shares_their_budget() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("moves").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let _operator = bed.operator()?;
    let (_, services) = bed.own_map(SOON).await?;
    let first = services.hash();
    let mut nodes = Vec::new();
    for suffix in ["a", "b", "c"] {
        nodes.push(bed.node(suffix, OWN, &first).await?);
    }
    bed.until_status("three nodes", |it| it.nodes.updated == 3)
        .await?;
    bed.edit_pool(json!({ "paused": true })).await?;
    bed.give_worker(&worker_ignition("second")).await?;
    let second = bed.hash_after(&first).await?;
    bed.until_condition(condition::UPDATING, false, "Paused")
        .await?;
    for node in &nodes {
        let wanted = (Some(OWN.to_owned()), Some(first.clone()));
        assert_eq!(told(&bed, node).await?, wanted, "nobody begins");
    }
    bed.edit_pool(json!({ "paused": false })).await?;
    let status = bed
        .until_status("one to be granted", |it| it.updating.len() == 1)
        .await?;
    assert_eq!(status.updating[0].to.to_string(), OWN);
    // Another one is drained meanwhile, for whatever reason: then the first has to wait with its own.
    let holder = status.updating[0].node.clone();
    let other = nodes.iter().find(|it| it.name() != holder);
    let other = other.map_or("", NodeDouble::name);
    bed.scene.ask(other, "drain-other").await?;
    bed.scene.answered(other, "drain-other").await?;
    bed.scene.ask(&holder, "drain-mine").await?;
    let note = bed.scene.event(&holder, "DrainWaits").await?;
    assert!(note.contains(other), "{note}");
    let seen = bed.scene.node(&holder).await?;
    assert_eq!(annotated(&seen, annotation::DRAIN_GRANTED), None);
    bed.scene.ask(other, "uncordon-other").await?;
    bed.scene.answered(&holder, "drain-mine").await?;
    bed.until_status("the phase", |it| {
        it.updating
            .iter()
            .all(|it| it.phase == UpdatePhase::Applying)
    })
    .await?;
    bed.scene.ask(&holder, "uncordon-mine").await?;
    bed.scene.answered(&holder, "uncordon-mine").await?;
    let mut moved = 0;
    let began = std::time::Instant::now();
    while moved < nodes.len() {
        assert!(began.elapsed() < SOON, "{:#?}", bed.status().await?);
        let status = bed.status().await?;
        assert!(status.updating.len() <= 1, "{:?}", status.updating);
        let mut on_their_way = 0;
        for node in &nodes {
            let (_, desired) = told(&bed, node).await?;
            let seen = bed.scene.node(node.name()).await?;
            let current = annotated(&seen, annotation::CURRENT_SERVICES);
            on_their_way += usize::from(desired.as_deref() != current);
        }
        assert!(on_their_way <= 1, "{on_their_way} at once");
        for node in &nodes {
            moved += usize::from(obey(&bed, node).await?);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = bed
        .until_status("all to be there", |it| {
            it.nodes.updated == 3 && it.updating.is_empty()
        })
        .await?;
    assert_eq!(status.nodes.updating, 0);
    bed.until_condition(condition::UPDATING, false, "Done")
        .await?;
    for node in &nodes {
        until_told(&bed, node, OWN, &second).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pool_that_makes_no_sense_is_refused_and_one_that_says_nothing_has_defaults() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("pool").await?;
    for (spec, words) in [
        (json!({ "maxUnavailable": 0 }), "a number of nodes from 1"),
        (json!({ "maxUnavailable": "lots" }), "a percentage"),
        (json!({ "strategy": "Never" }), "strategy"),
        (json!({ "parallelInstances": 0 }), "parallelInstances"),
    ] {
        let refused: Result<()> = bed.edit_pool(spec.clone()).await;
        let refused = refused.map_err(|it| it.to_string()).err();
        let refused = refused.unwrap_or_default();
        assert!(refused.contains(words), "{spec}: {refused}");
    }
    let pool = bed.pools().get(&bed.pool_name()).await;
    let pool = pool.map_or(Value::Null, |it| it.data);
    let defaults = json!({ "strategy": "InPlace", "maxUnavailable": 1, "paused": false, "parallelInstances": 20 });
    assert_eq!(pool["spec"], defaults);
    Ok(())
}

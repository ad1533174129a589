//! Rules of node-readiness-controller: their conditions count as they stand, and their status is the one that it writes, as far as
//! there is room.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::readiness::{NrcRule, NrcStatus, ReadinessRule};
use evenkeel_plan::readiness::{ConditionSnapshot, Limits, Moment, NodeSnapshot, Readiness};
use serde_json::{Value, json};

use crate::world::World;

fn theirs(change: impl Fn(&mut Value)) -> NrcRule {
    let mut spec = json!({
        "conditions": [{ "type": "NetReady", "requiredStatus": "True" }],
        "enforcementMode": "continuous",
        "taint": { "key": "readiness.k8s.io/net", "effect": "NoSchedule", "value": "pending" },
        "nodeSelector": { "matchLabels": { "pool": "gpu" } },
    });
    change(&mut spec);
    NrcRule::from_spec("net", &spec).unwrap()
}

fn rule(change: impl Fn(&mut Value)) -> ReadinessRule {
    theirs(change).to_rule("uid-1", false)
}

fn keys(world: &World, node: &str) -> Vec<String> {
    let taints = world.machines[node].snapshot.taints.iter();
    taints
        .map(|it| it["key"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Covers N07.
#[test]
fn conditions_count_as_they_stand_and_nothing_but_taint_and_mark_is_written() {
    let mut world = World::new(&[rule(|_| {})]);
    world.add("a", "z", &[]);
    world.write_condition("a", "NetReady", "True", "1");
    world.begin();
    assert!(keys(&world, "a").is_empty());
    world.reboot("a", "another");
    assert!(keys(&world, "a").is_empty(), "a reboot means nothing");
    world.machine("a").snapshot.has_permit = true;
    world.show("a");
    assert!(keys(&world, "a").is_empty(), "nor does a permit");
    world.machine("a").snapshot.has_permit = false;
    world.condition("a", "NetReady", "False", "2");
    assert_eq!(keys(&world, "a"), ["readiness.k8s.io/net"]);
    let node = &world.machines["a"].snapshot;
    assert_eq!(
        (&node.owners, &node.own_taints, &node.record),
        (&None, &None, &None)
    );
    world.pass(600_000);
    assert!(world.evicting.is_empty(), "it evicts nobody");
    // Whoever leads next decides by the condition alone.
    world.begin();
    assert_eq!(keys(&world, "a"), ["readiness.k8s.io/net"]);
    world.write_condition("a", "NetReady", "True", "3");
    world.begin();
    assert!(keys(&world, "a").is_empty());
}

/// Covers N07.
#[test]
fn while_it_leads_all_stays_as_it_is_and_a_deleted_rule_leaves_nothing() {
    let mut world = World::new(&[rule(|_| {})]);
    world.add("a", "z", &[]);
    world.add("b", "z", &[]);
    world.write_condition("b", "NetReady", "True", "1");
    world.begin();
    assert_eq!(keys(&world, "a"), ["readiness.k8s.io/net"]);
    let mut left = rule(|_| {});
    left.suspend = true;
    world.set_rule(left);
    world.condition("a", "NetReady", "True", "1");
    world.condition("b", "NetReady", "False", "1");
    assert_eq!(keys(&world, "a"), ["readiness.k8s.io/net"]);
    assert!(keys(&world, "b").is_empty());
    // Not even when the rule is about the node no more.
    world.machine("a").snapshot.labels = [("pool", "web")].into_iter().collect();
    world.show("a");
    assert_eq!(keys(&world, "a"), ["readiness.k8s.io/net"]);
    world.machine("a").snapshot.labels = [("pool", "gpu")].into_iter().collect();
    world.show("a");
    world.set_rule(rule(|_| {}));
    assert!(keys(&world, "a").is_empty());
    assert_eq!(keys(&world, "b"), ["readiness.k8s.io/net"]);
    assert!(!world.readiness.has_left("net"));
    world.set_rule(theirs(|_| {}).to_rule("uid-1", true));
    assert!(keys(&world, "b").is_empty());
    assert!(world.readiness.has_left("net"));
}

/// Covers N07.
#[test]
fn a_bootstrap_ends_with_its_annotation_and_one_of_several_conditions_is_enough() {
    let boot = rule(|it| it["enforcementMode"] = json!("bootstrap-only"));
    let mut world = World::new(&[boot]);
    world.begin();
    world.join("a", false);
    assert_eq!(keys(&world, "a"), ["readiness.k8s.io/net"]);
    world.condition("a", "NetReady", "True", "1");
    assert!(keys(&world, "a").is_empty());
    let marks: Vec<_> = world.machines["a"].snapshot.completed_nrc.clone();
    assert_eq!(marks, ["uid-1".into()]);
    world.condition("a", "NetReady", "False", "2");
    world.begin();
    assert!(keys(&world, "a").is_empty());

    let any = rule(|it| {
        it["conditionPolicy"] = json!("anyOf");
        it["conditions"] = json!([
            { "type": "A", "requiredStatus": "True" },
            { "type": "B", "requiredStatus": "False", "defaultStatus": "False" },
        ]);
    });
    let mut world = World::new(&[any]);
    world.add("a", "z", &[]);
    world.begin();
    assert!(keys(&world, "a").is_empty(), "B counts as False");
    world.condition("a", "B", "True", "1");
    assert_eq!(keys(&world, "a"), ["readiness.k8s.io/net"]);
    world.condition("a", "A", "True", "1");
    assert!(keys(&world, "a").is_empty());
}

fn crowd(rule: &NrcRule, bad: impl Fn(usize) -> bool) -> Readiness {
    let mut readiness = Readiness::new(Limits::default());
    let now = Moment(Duration::from_secs(1));
    for number in 0..5_000 {
        let is_bad = bad(number);
        readiness.see_node(
            NodeSnapshot {
                name: format!("ip-10-0-{number:05}.eu-central-1.compute.internal"),
                uid: format!("u{number}"),
                labels: [("pool", "gpu")].into_iter().collect(),
                taints: if is_bad {
                    vec![rule.taint.to_value()]
                } else {
                    Vec::new()
                },
                conditions: vec![ConditionSnapshot {
                    kind: "NetReady".into(),
                    status: if is_bad { "False" } else { "True" }.into(),
                    ..ConditionSnapshot::default()
                }],
                ..NodeSnapshot::default()
            },
            now,
        );
    }
    readiness.begin([rule.to_rule("uid-1", false)], now);
    readiness
}

fn status(readiness: &Readiness, rule: &NrcRule, before: &NrcStatus, now: &str) -> NrcStatus {
    let failed = BTreeMap::from([(
        "ip-10-0-00007.eu-central-1.compute.internal".to_owned(),
        "no answer".to_owned(),
    )]);
    readiness.nrc_status(rule, ("uid-1", 3), before, &failed, now)
}

/// Covers N07.
#[test]
fn of_five_thousand_nodes_the_status_names_those_with_the_taint_and_whom_it_has_room_for() {
    let rule = theirs(|_| {});
    let readiness = crowd(&rule, |it| it % 50 == 0);
    let first = status(
        &readiness,
        &rule,
        &NrcStatus::default(),
        "2026-01-01T00:00:00Z",
    );
    assert_eq!(first.observed_generation, 3);
    let held = |it: &NrcStatus| {
        let all = it.node_evaluations.iter();
        all.filter(|it| it.taint_status == "Present").count()
    };
    assert_eq!(held(&first), 100, "all that are held");
    assert!(
        first.node_evaluations.len() > 1_000,
        "{}",
        first.node_evaluations.len()
    );
    assert!(
        first.applied_nodes.len() > 2_000,
        "{}",
        first.applied_nodes.len()
    );
    assert_eq!(first.failed_nodes.len(), 1);
    let size = serde_json::to_string(&first).unwrap().len();
    assert!(size < 700 * 1024, "{size}");
    // What is as it was keeps its time, and so nothing is written.
    assert_eq!(
        status(&readiness, &rule, &first, "2026-01-01T00:01:00Z"),
        first
    );
    let readiness = crowd(&rule, |it| it % 50 == 0 || it == 1);
    let second = status(&readiness, &rule, &first, "2026-01-01T00:02:00Z");
    let times = |it: &NrcStatus, time: &str| {
        let all = it.node_evaluations.iter();
        all.filter(|it| it.last_evaluation_time == time).count()
    };
    assert_eq!(times(&second, "2026-01-01T00:02:00Z"), 1);
    assert_eq!(held(&second), 101);
    // All of them at once.
    let readiness = crowd(&rule, |_| true);
    let all = status(&readiness, &rule, &second, "2026-01-01T00:03:00Z");
    let size = serde_json::to_string(&all).unwrap().len();
    assert!(size < 700 * 1024 && held(&all) > 1_000, "{size}");
    // A dry rule says what it would do.
    let dry = theirs(|it| it["dryRun"] = json!(true));
    let readiness = crowd(&dry, |it| it < 10);
    let said = status(&readiness, &dry, &NrcStatus::default(), "now")
        .dry_run_results
        .unwrap();
    assert_eq!(
        (said.affected_nodes, said.summary.as_str()),
        (5_000, "No changes needed")
    );
}

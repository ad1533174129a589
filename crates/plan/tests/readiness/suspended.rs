//! A rule that is suspended leaves everything as it is, and begins anew when it is resumed.

use evenkeel_api::readiness::ReadinessRule;
use serde_json::json;

use crate::world::{World, rule};

fn gpu() -> ReadinessRule {
    rule(
        "gpu",
        &json!({
            "nodeSelector": { "matchLabels": { "pool": "gpu" } },
            "evictAfter": "1m",
            "extensions": [{ "name": "dp", "lease": {} }],
        }),
    )
}

fn suspended() -> ReadinessRule {
    let mut rule = gpu();
    rule.suspend = true;
    rule
}

fn set(world: &mut World, node: &str, is_alive: bool) {
    world
        .machine(node)
        .extensions
        .insert("dp".to_owned(), is_alive);
    world.renew(node, true);
    world.act();
}

/// Covers N05.
#[test]
fn a_suspended_rule_leaves_taints_and_pods_as_they_are_whatever_happens() {
    let mut world = World::new(&[gpu()]);
    for name in ["open", "closed", "dying"] {
        world.add(name, "a", &["dp"]);
    }
    world.begin();
    world.pass(20_000);
    set(&mut world, "closed", false);
    world.pass(30_000);
    assert!(world.is_tainted("closed"));
    world.set_rule(suspended());
    let before = world.writes.clone();
    // What was healthy falls silent, what was silent is healthy again, and somebody else leads.
    set(&mut world, "dying", false);
    set(&mut world, "closed", true);
    for _ in 0..3 {
        world.pass(300_000);
        assert!(!world.is_tainted("dying") && !world.is_tainted("open"));
        assert!(world.is_tainted("closed"));
        assert!(world.evicting.is_empty(), "{:?}", world.evicting);
        world.begin();
    }
    world.reboot("open", "another boot");
    world.pass(60_000);
    assert!(!world.is_tainted("open"), "a reboot is no exception");
    assert_eq!(
        world.machines["closed"].snapshot.owners.as_deref(),
        Some("gpu")
    );
    assert_eq!(world.writes, before, "nothing was written");
    let view = world.readiness.rule("gpu");
    assert!(
        view.suspended.contains("1 of its 3 nodes stay not ready"),
        "{}",
        view.suspended
    );
    let next = world.readiness.node("closed", world.moment()).unwrap().next;
    assert_eq!(
        next,
        "readiness rule gpu is suspended: the taint stays as it is until it is resumed"
    );
    // Deleted, it holds nothing any more.
    world.delete_rule("gpu");
    assert!(!world.is_tainted("closed"));
}

/// Covers N05.
#[test]
fn evictions_end_when_the_rule_is_suspended_and_its_time_begins_anew_when_it_is_resumed() {
    let mut world = World::new(&[gpu()]);
    for number in 0..100 {
        world.add(&format!("n{number:03}"), "a", &["dp"]);
    }
    world.begin();
    world.pass(20_000);
    for number in 0..20 {
        set(&mut world, &format!("n{number:03}"), false);
    }
    world.pass(90_000);
    assert!(!world.evicting.is_empty(), "evictions have begun");
    world.set_rule(suspended());
    assert!(world.evicting.is_empty(), "they ended at once");
    let tainted = world.tainted();
    assert_eq!(tainted, 20);
    world.pass(600_000);
    assert_eq!(world.tainted(), tainted);
    assert!(world.evicting.is_empty());
    world.set_rule(gpu());
    assert_eq!(world.tainted(), tainted, "who is silent stays tainted");
    for _ in 0..59 {
        world.pass(1_000);
        assert!(
            world.evicting.is_empty(),
            "the time of a suspension is no time of being not ready"
        );
    }
    world.pass(21_000);
    assert!(
        (1..=3).contains(&world.evicting.len()),
        "one every ten seconds in a zone, not all at once: {:?}",
        world.evicting
    );
    for number in 0..20 {
        set(&mut world, &format!("n{number:03}"), true);
    }
    world.pass(1_000);
    assert_eq!((world.tainted(), world.evicting.len()), (0, 0));
}

/// Covers N05.
#[test]
fn a_new_node_keeps_the_taint_it_came_with_and_other_rules_go_on() {
    let mut other = rule(
        "net",
        &json!({ "extensions": [{ "name": "net", "lease": {} }] }),
    );
    other.node_selector = gpu().node_selector;
    let mut world = World::new(&[suspended(), other]);
    world.begin();
    for (name, is_tainted) in [("with", true), ("without", false)] {
        world.join(name, is_tainted);
        assert!(world.is_tainted(name), "the other rule holds it");
        world.pass(1_000);
        let machine = world.machine(name);
        machine.extensions.insert("net".to_owned(), true);
        world.renew(name, true);
        world.act();
    }
    assert!(world.is_tainted("with"), "it came with the taint of gpu");
    assert_eq!(
        world.machines["with"].snapshot.owners.as_deref(),
        Some("gpu")
    );
    assert!(!world.is_tainted("without"));
    world.set_rule(gpu());
    set(&mut world, "with", true);
    world.pass(1_000);
    assert!(!world.is_tainted("with"));
}

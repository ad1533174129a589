//! Conditions that are written once: when they count on a new node, after restarts, and when another
//! operator takes over.

use evenkeel_api::readiness::ReadinessRule;
use serde_json::json;

use crate::world::{World, rule};

const MINUTE: u64 = 60_000;

fn once() -> ReadinessRule {
    rule(
        "net",
        &json!({
            "nodeSelector": { "matchLabels": { "pool": "gpu" } },
            "extensions": [{ "name": "net", "condition": { "type": "NetReady" } }],
        }),
    )
}

fn kubelet(start: &str) -> serde_json::Value {
    json!({ "bootId": "boot-n1", "kubeletStart": start })
}

/// Covers N01.
#[test]
fn on_a_new_node_a_condition_that_appears_once_is_healthy_at_once_and_stays_so() {
    for tainted_from_creation in [true, false] {
        let mut world = World::new(&[once()]);
        world.begin();
        world.join("n1", tainted_from_creation);
        world.pass(MINUTE);
        assert!(world.is_tainted("n1"));
        assert_eq!(world.says("n1"), "pending");
        world.condition("n1", "NetReady", "False", "12:00");
        assert!(
            world.is_tainted("n1"),
            "it is there, and not as it should be"
        );
        world.condition("n1", "NetReady", "True", "12:01");
        assert!(!world.is_tainted("n1"), "at once");
        world.pass(600 * MINUTE);
        assert!(!world.is_tainted("n1"), "without a heartbeat, for ever");
        // A node that comes with it, and one that is registered anew with it.
        world.machine("n1").snapshot.uid = "another".to_owned();
        world.show("n1");
        assert!(!world.is_tainted("n1"), "its appearance is news");
        // It goes away: that is not waiting.
        world.machine("n1").snapshot.conditions.clear();
        world.show("n1");
        assert_eq!(world.says("n1"), "unhealthy");
    }
}

/// Covers N01.
#[test]
fn a_restart_of_the_kubelet_alone_changes_nothing_about_a_condition_without_a_limit() {
    let mut world = World::new(&[once()]);
    world.add("n1", "a", &[]);
    world.condition("n1", "NetReady", "True", "12:00");
    world.begin();
    world.report("n1", &kubelet("k1"));
    world.pass(MINUTE);
    world.report("n1", &kubelet("k2"));
    world.pass(MINUTE);
    assert!(world.writes.is_empty());
    // With a limit it waits for its next heartbeat.
    let mut limited = once();
    if let evenkeel_api::readiness::Source::Condition { freshness, .. } =
        &mut limited.extensions[0].source
    {
        *freshness = std::time::Duration::from_mins(10);
    }
    world.set_rule(limited);
    world.report("n1", &kubelet("k3"));
    assert!(world.is_tainted("n1"));
    world.condition("n1", "NetReady", "True", "12:05");
    assert!(!world.is_tainted("n1"));
}

/// Covers N01.
#[test]
fn after_a_reboot_any_change_of_it_counts_and_an_old_one_does_not() {
    for what in ["heartbeat", "transition", "status", "presence", "kubelet"] {
        let mut world = World::new(&[once()]);
        world.add("n1", "a", &[]);
        world.write_condition("n1", "Ready", "True", "11:59");
        world.condition("n1", "NetReady", "True", "12:00");
        world.begin();
        world.pass(MINUTE);
        if what == "kubelet" {
            // The kubelet writes it, in the report that tells of the new boot.
            world.write_condition("n1", "Ready", "True", "12:09");
            world.write_condition("n1", "NetReady", "True", "12:09");
            world.reboot("n1", "boot-2");
            assert!(!world.is_tainted("n1"));
            continue;
        }
        // Somebody else may have written it before the reboot, though we hear of both at once.
        world.write_condition("n1", "Ready", "True", "12:09");
        world.write_condition("n1", "NetReady", "True", "12:08");
        world.reboot("n1", "boot-2");
        world.pass(MINUTE);
        assert!(world.is_tainted("n1"), "{what}");
        match what {
            "presence" => {
                let conditions = &mut world.machine("n1").snapshot.conditions;
                conditions.retain(|it| &*it.kind != "NetReady");
                world.show("n1");
                world.condition("n1", "NetReady", "True", "12:08");
            }
            "status" => {
                world.condition("n1", "NetReady", "False", "12:08");
                world.condition("n1", "NetReady", "True", "12:08");
            }
            _ => {
                let conditions = &mut world.machine("n1").snapshot.conditions;
                let found = conditions.iter_mut().find(|it| &*it.kind == "NetReady");
                let found = found.unwrap();
                if what == "heartbeat" {
                    found.heartbeat = "11:00".into();
                } else {
                    found.transition = "11:00".into();
                }
                world.show("n1");
            }
        }
        assert!(!world.is_tainted("n1"), "{what}");
        assert_eq!(world.readiness.rule("net").unclear, "");
    }
}

/// Covers N01.
#[test]
fn what_nobody_writes_after_a_reboot_counts_after_a_while_and_the_rule_says_so() {
    let mut world = World::new(&[once()]);
    world.add("n1", "a", &[]);
    world.condition("n1", "NetReady", "True", "12:00");
    world.begin();
    world.pass(MINUTE);
    world.machine("n1").kubelet = false;
    world.reboot("n1", "boot-2");
    world.pass(10 * MINUTE);
    assert!(world.is_tainted("n1"), "its kubelet is not back");
    world.machine("n1").kubelet = true;
    world.pass(4 * MINUTE);
    assert!(world.is_tainted("n1"));
    assert_eq!(world.readiness.rule("net").unclear, "");
    world.pass(2 * MINUTE);
    assert!(!world.is_tainted("n1"), "not for ever");
    let untold = world.readiness.rule("net").unclear;
    assert!(
        untold.contains("condition NetReady of node n1 was not written since the reboot"),
        "{untold}"
    );
    world.condition("n1", "NetReady", "True", "12:20");
    assert_eq!(world.readiness.rule("net").unclear, "");
    assert_eq!(world.writes["n1"], 2);
    assert!(world.evicting.is_empty());
}

/// Covers N01.
#[test]
fn another_operator_knows_which_condition_is_from_before_the_reboot() {
    // Nobody led when the node was born and its condition came, or only one who is gone.
    for led in [true, false] {
        let mut world = World::new(&[once()]);
        if led {
            world.begin();
        }
        world.join("n1", true);
        world.write_condition("n1", "NetReady", "True", "12:00");
        world.begin();
        assert!(!world.is_tainted("n1"), "led: {led}");
    }
    let mut world = World::new(&[once()]);
    world.add("n1", "a", &[]);
    world.condition("n1", "NetReady", "True", "12:00");
    world.begin();
    world.pass(MINUTE);
    world.reboot("n1", "boot-2");
    assert!(world.is_tainted("n1"));
    world.begin();
    world.pass(MINUTE);
    assert!(world.is_tainted("n1"), "it is from before");
    assert_eq!(world.says("n1"), "pending");
    // It is written while nobody leads.
    world.write_condition("n1", "NetReady", "True", "12:09");
    world.begin();
    assert!(!world.is_tainted("n1"));
    assert_eq!(world.machines["n1"].snapshot.record, None);
    // One of our own reboots, and another operator comes after it.
    world.machine("n1").snapshot.has_permit = true;
    world.show("n1");
    let boot = &mut world.machine("n1").snapshot.boot_id;
    "boot-3".clone_into(boot);
    world.machine("n1").snapshot.has_permit = false;
    world.begin();
    world.pass(MINUTE);
    assert!(world.is_tainted("n1"), "from before our own reboot");
    world.condition("n1", "NetReady", "True", "12:19");
    assert!(!world.is_tainted("n1"));
}

/// Covers N02.
#[test]
fn what_fell_silent_evicts_also_when_another_operator_takes_over() {
    let mut world = World::new(&[rule(
        "gpu",
        &json!({
            "nodeSelector": { "matchLabels": { "pool": "gpu" } }, "evictAfter": "1m",
            "extensions": [{ "name": "dp", "lease": {} }],
        }),
    )]);
    for node in ["n1", "n2", "n3", "n4"] {
        world.add(node, "a", &["dp"]);
    }
    world.begin();
    world.pass(MINUTE);
    world.machine("n1").extensions.clear();
    world.reboot("n2", "boot-2");
    world.machine("n2").extensions.clear();
    world.pass(20_000);
    assert!(world.is_tainted("n1") && world.is_tainted("n2"));
    world.begin();
    world.pass(5_000);
    assert!(
        world.is_tainted("n1"),
        "it stays as it was until it is heard"
    );
    world.pass(3 * MINUTE);
    assert!(world.evicting.contains("n1"), "it fell silent");
    assert!(!world.evicting.contains("n2"), "it only was not heard yet");
    // A restart of its kubelet alone does not make a silent one heard of.
    world.report("n1", &kubelet("k1"));
    world.pass(1_000);
    world.report("n1", &kubelet("k2"));
    world.pass(5_000);
    assert!(world.evicting.contains("n1"));
}

//! What a rule may say besides its extensions: a taint of its own, an end after bootstrap, conditions of which one is enough and
//! what one counts as that is absent. A taint that takes pods away comes after they were evicted, within all limits.

use std::collections::BTreeSet;

use evenkeel_api::readiness::{ReadinessRule, RuleTaint, TaintEffect};
use evenkeel_plan::readiness::{Limits, NodeSnapshot};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{World, rule};

const KEY: &str = "readiness.k8s.io/net";

fn net(mut spec: Value) -> ReadinessRule {
    spec["nodeSelector"] = json!({ "matchLabels": { "pool": "gpu" } });
    if spec["extensions"].is_null() {
        spec["extensions"] = json!([{ "name": "net", "condition": { "type": "NetReady" } }]);
    }
    let mut rule = rule("net", &spec);
    "uid-1".clone_into(&mut rule.uid);
    rule
}

fn own(effect: &str) -> ReadinessRule {
    let taint = json!({ "key": KEY, "value": "pending", "effect": effect });
    net(json!({ "taint": taint, "evictAfter": "10s" }))
}

fn taints(node: &NodeSnapshot) -> Vec<String> {
    let text = |it: &Value| {
        let text = |key: &str| it[key].as_str().unwrap_or_default().to_owned();
        format!("{}={}:{}", text("key"), text("value"), text("effect"))
    };
    node.taints.iter().map(text).collect()
}

/// The pods of a node that were to be evicted are gone.
fn evicted(world: &mut World, node: &str) {
    let taints = world.asked(node);
    world.readiness.evicted(node, &taints);
    world.act();
}

/// Covers N08.
#[test]
fn a_rule_has_its_own_taint_and_it_goes_with_the_rule_whoever_leads() {
    for effect in ["NoSchedule", "PreferNoSchedule"] {
        let mut world = World::new(&[own(effect)]);
        world.begin();
        world.add("a", "z", &[]);
        let theirs = json!({ "key": "theirs", "effect": "NoSchedule" });
        world.machine("a").snapshot.taints = vec![theirs];
        world.show("a");
        let held = [
            "theirs=:NoSchedule".to_owned(),
            format!("{KEY}=pending:{effect}"),
        ];
        assert_eq!(taints(&world.machines["a"].snapshot), held);
        let node = &world.machines["a"].snapshot;
        assert_eq!(node.owners.as_deref(), Some("net"));
        assert_eq!(node.own_taints, Some(format!("{KEY}:{effect}")));
        // Nobody leads while the rule goes.
        world.forget_rule("net");
        world.begin();
        let node = &world.machines["a"].snapshot;
        assert_eq!(taints(node), ["theirs=:NoSchedule"]);
        assert_eq!((&node.owners, &node.own_taints), (&None, &None));
        // What came with the node is the rule's to take off, too.
        world.set_rule(own(effect));
        world.join("b", false);
        let found = json!({ "key": KEY, "value": "other", "effect": effect });
        world.machine("b").snapshot.taints = vec![found];
        world.show("b");
        world.begin();
        assert_eq!(
            taints(&world.machines["b"].snapshot),
            [format!("{KEY}=other:{effect}")]
        );
        world.condition("b", "NetReady", "True", "1");
        assert!(world.machines["b"].snapshot.taints.is_empty());
        assert_eq!(world.machines["b"].snapshot.own_taints, None);
        // Another taint in the same rule takes the place of the one of before.
        let mut other = own(effect);
        other.taint.key = "evenkeel.dev/net".to_owned();
        world.set_rule(other);
        let held = [
            "theirs=:NoSchedule".to_owned(),
            format!("evenkeel.dev/net=pending:{effect}"),
        ];
        assert_eq!(taints(&world.machines["a"].snapshot), held);
    }
}

/// Covers N08.
#[test]
fn a_bootstrap_rule_never_taints_a_node_again_that_was_ready_once() {
    let rule = || net(json!({ "enforcement": "Bootstrap", "evictAfter": "5s" }));
    let mut world = World::new(&[rule()]);
    world.begin();
    world.join("a", true);
    world.pass(5_000);
    assert!(world.is_tainted("a"));
    assert_eq!(world.machines["a"].snapshot.completed, None);
    world.condition("a", "NetReady", "True", "1");
    assert!(!world.is_tainted("a"));
    assert_eq!(
        world.machines["a"].snapshot.completed.as_deref(),
        Some("net=uid-1")
    );
    assert_eq!(
        world.writes["a"], 2,
        "one write takes the taint and leaves the mark"
    );
    for change in ["bad", "reboot", "leader"] {
        match change {
            "bad" => world.condition("a", "NetReady", "False", "2"),
            "reboot" => world.reboot("a", "another"),
            _ => world.begin(),
        }
        world.pass(60_000);
        assert!(!world.is_tainted("a"), "{change}");
        assert!(world.evicting.is_empty(), "{change}");
    }
    let view = world.readiness.node("a", world.moment()).unwrap();
    let row = &view.extensions[0];
    assert!(row.completed && !row.blocks, "{row:?}");
    assert_eq!(world.readiness.rule("net").nodes.not_ready, 0);
    // Made anew it is another rule.
    let mut again = rule();
    again.uid = "uid-2".to_owned();
    world.set_rule(again);
    assert!(world.is_tainted("a"));
    world.condition("a", "NetReady", "True", "3");
    assert!(!world.is_tainted("a"));
    assert_eq!(
        world.machines["a"].snapshot.completed.as_deref(),
        Some("net=uid-2")
    );
}

/// Covers N08.
#[test]
fn of_several_conditions_one_is_enough_and_an_absent_one_counts_as_its_default() {
    let extensions = json!([
        { "name": "net", "anyOf": [{ "type": "Calico" }, { "type": "Cilium" }] },
        { "name": "kernel", "condition": { "type": "KernelDeadlock", "status": "False", "defaultStatus": "False" } },
    ]);
    let mut world = World::new(&[net(json!({ "extensions": extensions }))]);
    world.begin();
    world.join("a", true);
    let blocking = |world: &World| {
        let view = world.readiness.node("a", world.moment()).unwrap();
        let blocking = view.extensions.into_iter().filter(|it| it.blocks);
        blocking.map(|it| it.source).collect::<Vec<_>>()
    };
    assert_eq!(
        blocking(&world),
        ["condition Calico=True", "condition Cilium=True"]
    );
    world.condition("a", "Cilium", "True", "1");
    assert!(
        !world.is_tainted("a"),
        "one is enough, and no deadlock is none"
    );
    assert_eq!(blocking(&world), [""; 0]);
    world.condition("a", "Calico", "False", "2");
    assert!(!world.is_tainted("a"));
    world.condition("a", "Cilium", "False", "3");
    assert!(world.is_tainted("a"));
    world.condition("a", "Calico", "True", "4");
    assert!(!world.is_tainted("a"));
    world.condition("a", "KernelDeadlock", "True", "5");
    assert!(world.is_tainted("a"));
    assert_eq!(
        blocking(&world),
        ["condition KernelDeadlock=False, False if absent"]
    );
    world
        .machine("a")
        .snapshot
        .conditions
        .retain(|it| *it.kind != *"KernelDeadlock");
    world.show("a");
    assert!(!world.is_tainted("a"));
    // What evicts is that none is good, from when the last one went bad.
    world.condition("a", "Calico", "False", "6");
    world.pass(299_000);
    assert!(world.evicting.is_empty());
    world.pass(2_000);
    assert!(world.evicting.contains("a"));
}

/// Covers N08.
#[test]
fn no_execute_waits_for_the_evictions_and_their_limits() {
    let mut world = World::new(&[own("NoExecute")]);
    for number in 0..10 {
        world.add(&format!("n{number}"), "z", &[]);
        world.write_condition(&format!("n{number}"), "NetReady", "True", "1");
    }
    world.begin();
    world.pass(20_000);
    assert_eq!(world.writes.len(), 0);
    world.condition("n0", "NetReady", "False", "2");
    let soft = format!("{KEY}=pending:NoSchedule");
    let hard = format!("{KEY}=pending:NoExecute");
    let on = |world: &World, node: &str| taints(&world.machines[node].snapshot);
    assert_eq!(on(&world, "n0"), std::slice::from_ref(&soft));
    world.pass(9_000);
    assert!(world.evicting.is_empty());
    world.pass(3_000);
    assert!(world.evicting.contains("n0"));
    assert_eq!(
        on(&world, "n0"),
        std::slice::from_ref(&soft),
        "its pods have their budgets"
    );
    let asked = RuleTaint {
        key: KEY.to_owned(),
        effect: TaintEffect::NoExecute,
        value: "pending".to_owned(),
    };
    assert_eq!(world.asked("n0"), BTreeSet::from([asked]));
    evicted(&mut world, "n0");
    assert_eq!(on(&world, "n0"), std::slice::from_ref(&hard));
    // Whoever leads next leaves it so.
    world.begin();
    assert_eq!(on(&world, "n0"), std::slice::from_ref(&hard));
    world.condition("n0", "NetReady", "True", "3");
    assert!(on(&world, "n0").is_empty());
    assert_eq!(world.machines["n0"].snapshot.own_taints, None);
    // A storm evicts nobody, and so there is no NoExecute.
    for number in 0..9 {
        world.condition(&format!("n{number}"), "NetReady", "False", "4");
    }
    world.pass(600_000);
    assert!(world.evicting.is_empty());
    for number in 0..9 {
        assert_eq!(
            on(&world, &format!("n{number}")),
            std::slice::from_ref(&soft)
        );
    }
}

#[derive(Debug, Clone)]
enum Deed {
    Pass(u16),
    TakeOver,
    Reboot(u8),
    Say(u8, bool),
    /// The pods of a node that are evicted are gone.
    Evicted(u8),
    Freeze,
    Thaw,
}

fn any_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => (0..20_000_u16).prop_map(Deed::Pass),
        1 => Just(Deed::TakeOver),
        2 => any::<u8>().prop_map(Deed::Reboot),
        8 => (any::<u8>(), any::<bool>()).prop_map(|(node, is_good)| Deed::Say(node, is_good)),
        4 => any::<u8>().prop_map(Deed::Evicted),
        1 => Just(Deed::Freeze),
        2 => Just(Deed::Thaw),
    ]
}

proptest! {
    /// Covers N08.
    #[test]
    fn whatever_happens_no_execute_follows_an_eviction_and_a_mark_ends_a_bootstrap(
        deeds in proptest::collection::vec(any_deed(), 1..60),
    ) {
        let mut boot = net(json!({ "enforcement": "Bootstrap", "taint": { "key": "evenkeel.dev/boot" } }));
        boot.name = "boot".to_owned();
        let mut world = World::with(&[own("NoExecute"), boot], Limits { few: 6, ..Limits::default() });
        let nodes = 4_u8;
        for number in 0..nodes {
            world.add(&format!("n{number}"), "z", &[]);
            world.machine(&format!("n{number}")).snapshot.taints = vec![json!({ "key": "theirs", "effect": "NoExecute" })];
        }
        world.begin();
        let (mut gone, mut stamp) = (BTreeSet::new(), 0);
        for deed in deeds {
            let name = |it: u8| format!("n{}", it % nodes);
            stamp += 1;
            match deed {
                Deed::Pass(time) => world.pass(u64::from(time)),
                Deed::TakeOver => world.begin(),
                Deed::Reboot(it) => world.reboot(&name(it), &format!("boot-{stamp}")),
                Deed::Say(it, is_good) => {
                    let status = if is_good { "True" } else { "False" };
                    world.condition(&name(it), "NetReady", status, &stamp.to_string());
                }
                Deed::Evicted(it) => {
                    if world.evicting.contains(&name(it)) {
                        gone.insert(name(it));
                        evicted(&mut world, &name(it));
                    }
                }
                Deed::Freeze => world.freeze(),
                Deed::Thaw => world.thaw(),
            }
            for (name, machine) in &world.machines {
                let on = taints(&machine.snapshot);
                prop_assert!(on.contains(&"theirs=:NoExecute".to_owned()), "{name}: {on:?}");
                let count = on.iter().filter(|it| it.starts_with(KEY)).count();
                prop_assert!(count <= 1, "{name}: {on:?}");
                let is_hard = |it: &String| it.starts_with(KEY) && it.ends_with("NoExecute");
                if on.iter().any(is_hard) {
                    prop_assert!(gone.contains(name), "{name}: {on:?} before its pods were gone");
                } else if !world.evicting.contains(name) {
                    // The next one has to wait anew.
                    gone.remove(name);
                }
                if machine.snapshot.completed.is_some() {
                    prop_assert!(!on.iter().any(|it| it.starts_with("evenkeel.dev/boot")), "{name}: {on:?}");
                }
            }
        }
        // When all is well, nothing of ours is left but the marks.
        world.thaw();
        for number in 0..nodes {
            world.condition(&format!("n{number}"), "NetReady", "True", "end");
        }
        world.pass(1_000);
        for machine in world.machines.values() {
            let node = &machine.snapshot;
            prop_assert_eq!(taints(node), ["theirs=:NoExecute"]);
            prop_assert_eq!((&node.owners, &node.own_taints), (&None, &None));
            prop_assert_eq!(node.completed.as_deref(), Some("boot=uid-1"));
        }
    }
}

//! Much at once: outages, watches that hang, leaders that change, zones that fail. And what must hold
//! whatever happens.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::names::label;
use evenkeel_api::readiness::ReadinessRule;
use evenkeel_plan::readiness::{Limits, Moment, ReadinessAction, ZoneState};
use proptest::prelude::*;
use serde_json::{Value, json};

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

fn fleet(count: usize, zones: &[&str]) -> World {
    let mut world = World::new(&[gpu()]);
    for number in 0..count {
        world.add(
            &format!("n{number:04}"),
            zones[number % zones.len()],
            &["dp"],
        );
    }
    world.begin();
    world
}

fn names(world: &World, zone: &str) -> Vec<String> {
    let of_zone = |it: &&crate::world::Machine| it.snapshot.labels.get(label::ZONE) == Some(zone);
    let machines = world.machines.values().filter(of_zone);
    machines.map(|it| it.snapshot.name.clone()).collect()
}

/// Covers R11.
#[test]
fn an_api_server_that_freezes_taints_nobody_and_nobody_is_evicted() {
    for lasts in [3_000, 9_000, 12_000, 120_000] {
        let mut world = fleet(50, &["a", "b"]);
        world.pass(20_000);
        world.freeze();
        world.pass(lasts);
        world.thaw();
        world.pass(60_000);
        assert_eq!(
            (world.tainted(), world.writes.len()),
            (0, 0),
            "frozen for {lasts} ms"
        );
        // And normal work goes on.
        world
            .machine("n0000")
            .extensions
            .insert("dp".to_owned(), false);
        world.pass(15_000);
        assert_eq!(world.tainted(), 1);
    }
}

/// Covers R11.
#[test]
fn a_watch_that_hangs_while_renewals_go_on_taints_nobody() {
    let mut world = fleet(50, &["a"]);
    world.pass(20_000);
    world.deaf = true;
    world.pass(60_000);
    assert!(
        world
            .log
            .iter()
            .any(|(_, it)| matches!(it, ReadinessAction::Relist(_))),
        "it is listed again"
    );
    world.pass(30_000);
    assert_eq!((world.tainted(), world.writes.len()), (0, 0));
}

/// Covers R11.
#[test]
fn whoever_takes_over_counts_everything_as_just_seen() {
    let mut world = fleet(20, &["a"]);
    world.pass(20_000);
    for name in ["n0001", "n0002"] {
        world
            .machine(name)
            .extensions
            .insert("dp".to_owned(), false);
    }
    world.pass(15_000);
    assert_eq!(world.tainted(), 2);
    world
        .machine("n0003")
        .extensions
        .insert("dp".to_owned(), false);
    world.pass(8_000);
    world.begin();
    world.pass(5_000);
    assert_eq!(
        world.tainted(),
        2,
        "who was tainted stays so, and nobody else is yet"
    );
    world.pass(8_000);
    assert_eq!(world.tainted(), 3);
    world
        .machine("n0001")
        .extensions
        .insert("dp".to_owned(), true);
    world.pass(4_000);
    assert!(!world.is_tainted("n0001"));
}

/// Covers R11.
#[test]
fn all_nodes_cut_off_are_no_reason_but_all_extensions_gone_are_a_slow_one() {
    let mut world = fleet(60, &["a", "b"]);
    world.pass(20_000);
    for machine in world.machines.values_mut() {
        machine.connected = false;
    }
    world.pass(120_000);
    assert_eq!(
        world.writes.len(),
        0,
        "their kubelets are as silent as they are"
    );
    for machine in world.machines.values_mut() {
        machine.connected = true;
    }
    world.pass(30_000);
    assert_eq!(world.writes.len(), 0);
    for machine in world.machines.values_mut() {
        machine.extensions.insert("dp".to_owned(), false);
    }
    // From the first sign of its kubelet on, each has once more the time that it has.
    world.pass(26_000);
    let before = world.tainted();
    world.pass(10_000);
    let after = world.tainted();
    assert!(
        (18..=22).contains(&(after - before)),
        "one a second in each of two zones: {before} to {after}"
    );
    world.pass(60_000);
    assert_eq!(world.tainted(), 60);
    world.pass(300_000);
    assert!(world.evicting.is_empty(), "most of everything is not ready");
}

/// Covers R11.
#[test]
fn a_disturbed_zone_loses_its_pods_slowly_and_the_other_one_as_ever() {
    let mut world = fleet(200, &["a", "b"]);
    world.pass(20_000);
    let (mut bad, other) = (names(&world, "a"), names(&world, "b"));
    bad.truncate(60);
    for name in bad.iter().chain(&other[..5]) {
        world
            .machine(name)
            .extensions
            .insert("dp".to_owned(), false);
    }
    world.pass(200_000);
    assert_eq!(world.tainted(), 65);
    let begun = |world: &World, zone: &str| {
        let of_zone = names(world, zone);
        let log = world.log.iter();
        let log = log.filter(
            |(_, it)| matches!(it, ReadinessAction::Evict { node, .. } if of_zone.contains(node)),
        );
        log.map(|(at, _)| *at).collect::<Vec<_>>()
    };
    assert_eq!(begun(&world, "b").len(), 5, "one every ten seconds");
    assert!(
        (1..=2).contains(&begun(&world, "a").len()),
        "one every hundred: {:?}",
        begun(&world, "a")
    );
    let zones: BTreeMap<_, _> = world
        .readiness
        .zones()
        .into_iter()
        .map(|(name, _, state)| (name, state))
        .collect();
    assert_eq!(
        (zones["a"], zones["b"]),
        (ZoneState::Disturbed, ZoneState::Normal)
    );
    let view = world.readiness.rule("gpu");
    assert_eq!((view.nodes.total, view.nodes.not_ready), (200, 65));
    assert!(
        view.guarded
            .contains("zone a: 60 of 100 nodes are not ready"),
        "{}",
        view.guarded
    );
    assert_eq!(view.worst.len(), 5);
}

#[test]
fn bad_evidence_taints_at_once_however_many_it_hits() {
    let mut world = World::new(&[rule(
        "gpu",
        &json!({
            "nodeSelector": { "matchLabels": { "pool": "gpu" } },
            "extensions": [{ "name": "cni", "probe": { "tcpSocket": { "port": 1 } } }],
        }),
    )]);
    for number in 0..100 {
        world.add(&format!("n{number}"), "a", &[]);
    }
    world.begin();
    let report = |world: &World, name: &str, healthy: bool| {
        json!({
            "bootId": world.machines[name].snapshot.boot_id, "kubeletStart": "k",
            "probes": { "cni": { "healthy": healthy } },
        })
    };
    for healthy in [true, false] {
        for number in 0..100 {
            let name = format!("n{number}");
            let report = report(&world, &name, healthy);
            world.report(&name, &report);
        }
        assert_eq!(world.tainted(), if healthy { 0 } else { 100 });
    }
}

/// Something that happens.
#[derive(Debug, Clone)]
enum Deed {
    Pass(u16),
    Freeze,
    Thaw,
    Deafen,
    TakeOver,
    SetClock(u8, i32),
    Toggle(u8, u8),
    /// Only where extensions may fail.
    Fail(u8),
    Mend(u8),
    Boot(u8),
    Cut(u8),
    Rule(bool),
}

fn any_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => (0..20_000_u16).prop_map(Deed::Pass),
        1 => Just(Deed::Freeze),
        2 => Just(Deed::Thaw),
        1 => Just(Deed::Deafen),
        1 => Just(Deed::TakeOver),
        1 => (any::<u8>(), -4_000_000..4_000_000).prop_map(|(node, by)| Deed::SetClock(node, by)),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(node, which)| Deed::Toggle(node, which)),
        3 => any::<u8>().prop_map(Deed::Fail),
        2 => any::<u8>().prop_map(Deed::Mend),
        1 => any::<u8>().prop_map(Deed::Boot),
        1 => any::<u8>().prop_map(Deed::Cut),
        1 => any::<bool>().prop_map(Deed::Rule),
    ]
}

const NODES: u8 = 12;

fn start() -> World {
    let mut world = World::with(&[gpu()], Limits::default());
    for number in 0..NODES {
        world.add(
            &format!("n{number}"),
            ["a", "b"][usize::from(number % 2)],
            &["dp"],
        );
    }
    world.begin();
    world
}

/// Taints of others, by their own hand.
fn toggle(world: &mut World, node: &str, which: u8) {
    let theirs = json!({ "key": format!("theirs-{}", which % 3), "effect": "NoSchedule", "timeAdded": which.to_string() });
    let taints = &mut world.machine(node).snapshot.taints;
    match taints.iter().position(|it| it["key"] == theirs["key"]) {
        Some(at) => drop(taints.remove(at)),
        None => taints.insert(0, theirs),
    }
    // The watch shows it later, if at all before we write.
    if which.is_multiple_of(2) {
        world.show(node);
    }
}

fn theirs(world: &World, node: &str) -> Vec<Value> {
    let taints = &world.machines[node].snapshot.taints;
    let is_theirs = |it: &&Value| {
        it["key"]
            .as_str()
            .is_some_and(|key| key.starts_with("theirs"))
    };
    taints.iter().filter(is_theirs).cloned().collect()
}

/// Does it, and says what others have on the nodes by their own doing.
fn happen(world: &mut World, deed: &Deed, may_fail: bool) {
    let name = |node: u8| format!("n{}", node % NODES);
    match deed {
        Deed::Pass(milliseconds) => world.pass(u64::from(*milliseconds)),
        Deed::Freeze => world.freeze(),
        Deed::Thaw => world.thaw(),
        Deed::Deafen => world.deaf = true,
        Deed::TakeOver if world.frozen.is_none() => {
            world.deaf = false;
            world.begin();
        }
        Deed::SetClock(node, by) => world.machine(&name(*node)).clock = i64::from(*by),
        Deed::Toggle(node, which) => toggle(world, &name(*node), *which),
        Deed::Fail(node) if may_fail => drop(
            world
                .machine(&name(*node))
                .extensions
                .insert("dp".to_owned(), false),
        ),
        Deed::Mend(node) => {
            world.machine(&name(*node)).connected = true;
            world
                .machine(&name(*node))
                .extensions
                .insert("dp".to_owned(), true);
        }
        Deed::Boot(node) if may_fail => {
            let boot = format!("boot-{}", world.now);
            world.machine(&name(*node)).snapshot.boot_id = boot;
            world.show(&name(*node));
        }
        Deed::Cut(node) if may_fail => world.machine(&name(*node)).connected = false,
        Deed::Rule(there) if may_fail && world.frozen.is_none() => {
            if *there {
                world.set_rule(gpu());
            } else {
                world.delete_rule("gpu");
            }
        }
        Deed::TakeOver | Deed::Fail(_) | Deed::Boot(_) | Deed::Cut(_) | Deed::Rule(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(32) })]

    #[test]
    fn nobody_is_tainted_whose_extensions_never_fail(deeds in proptest::collection::vec(any_deed(), 1..40)) {
        let mut world = start();
        for deed in &deeds {
            happen(&mut world, deed, false);
            prop_assert_eq!(world.tainted(), 0, "after {:?}", deed);
        }
        world.thaw();
        world.pass(60_000);
        prop_assert_eq!(world.tainted(), 0);
        prop_assert!(world.writes.is_empty() && world.evicting.is_empty());
    }

    #[test]
    fn others_keep_their_taints_limits_hold_and_all_comes_right_in_the_end(
        deeds in proptest::collection::vec(any_deed(), 1..60)
    ) {
        let mut world = start();
        for deed in &deeds {
            let before: Vec<_> = (0..NODES).map(|it| theirs(&world, &format!("n{it}"))).collect();
            happen(&mut world, deed, true);
            if !matches!(deed, Deed::Toggle(..)) {
                let after: Vec<_> = (0..NODES).map(|it| theirs(&world, &format!("n{it}"))).collect();
                prop_assert_eq!(&before, &after, "after {:?}", deed);
            }
        }
        // Nobody is evicted sooner than the limits allow.
        let limits = Limits::default();
        let pause = u64::try_from(limits.eviction_pause.as_millis()).unwrap_or(u64::MAX);
        let mut last: BTreeMap<u8, u64> = BTreeMap::new();
        for (at, action) in &world.log {
            if let ReadinessAction::Evict { node, .. } = action {
                let zone = node[1..].parse::<u8>().unwrap_or_default() % 2;
                let before = last.insert(zone, *at);
                let restarted = deeds.iter().any(|it| matches!(it, Deed::TakeOver));
                prop_assert!(restarted || before.is_none_or(|before| at - before >= pause), "{:?}", world.log);
            }
        }
        // Whatever was, in the end only what is broken is tainted, and held by the rule.
        world.thaw();
        world.deaf = false;
        for number in 0..NODES {
            happen(&mut world, &Deed::Mend(number), true);
        }
        world.set_rule(gpu());
        world.machine("n0").extensions.insert("dp".to_owned(), false);
        for number in 0..NODES {
            world.show(&format!("n{number}"));
        }
        world.pass(60_000);
        prop_assert!(world.is_tainted("n0"));
        prop_assert_eq!(world.tainted(), 1);
        prop_assert_eq!(world.machines["n0"].snapshot.owners.as_deref(), Some("gpu"));
        world.delete_rule("gpu");
        for number in 0..NODES {
            let node = format!("n{number}");
            prop_assert_eq!(&world.machines[&node].snapshot.taints, &theirs(&world, &node));
        }
    }

    #[test]
    fn the_clocks_of_nodes_decide_nothing(
        deeds in proptest::collection::vec(any_deed(), 1..40),
        clocks in proptest::collection::vec(-4_000_000..4_000_000_i64, usize::from(NODES)),
    ) {
        let logs = [false, true].map(|wrong| {
            let mut world = start();
            if wrong {
                for (number, clock) in clocks.iter().enumerate() {
                    world.machine(&format!("n{number}")).clock = *clock;
                }
            }
            for deed in deeds.iter().filter(|it| !matches!(it, Deed::SetClock(..))) {
                happen(&mut world, deed, true);
            }
            world.log
        });
        prop_assert_eq!(&logs[0], &logs[1]);
    }
}

#[test]
fn it_says_when_it_wants_to_be_asked_again() {
    let mut world = fleet(3, &["a"]);
    let next = world.readiness.next();
    let soon = Moment(Duration::from_millis(world.now) + Duration::from_secs(10));
    assert!(next.is_some_and(|at| at <= soon), "{next:?}");
    world.delete_rule("gpu");
    assert_eq!(
        world.readiness.next(),
        None,
        "without a rule nothing is ever to be done"
    );
}

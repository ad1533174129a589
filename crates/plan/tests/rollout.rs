//! Roll-outs of whole pools, with everything around them that can go wrong: the real decisions of
//! `plan::fleet::{rollout, budget, drain}`, on nodes whose agents, people and power
//! cords do what they like.

mod fleet;
mod maintenance;
mod scenarios;
mod script;

use std::collections::BTreeMap;

use evenkeel_api::field::Field;
use evenkeel_api::fleet::machine_config_pool::condition;
use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::{annotation, label};
use evenkeel_plan::fleet::budget::{MaxUnavailable, holds_permit};
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::pool::Pool;
use evenkeel_plan::fleet::rollout::{self, RolloutState};
use evenkeel_plan::machine::phase::OnDrift;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fleet::calendar::any_calendar;
use crate::fleet::{Deed, Fleet, any_deed};

fn pool(limit: &Value) -> Pool {
    let spec = json!({
        "nodeSelector": {}, "maxUnavailable": limit, "configuration": { "name": "new" },
    });
    let pool = Pool::read(
        "worker",
        &BTreeMap::new(),
        &serde_json::from_value(spec).unwrap_or_default(),
    );
    pool.with_configs([("old", true), ("new", true)].into_iter())
}

/// A node that runs `old`, in a zone, made so many seconds ago.
fn node(name: &str, zone: &str, age: i64) -> Node {
    Node {
        name: name.to_owned(),
        created: Timestamp::from_second(1_000_000 - age).unwrap_or_default(),
        labels: [(label::ZONE, zone)].into_iter().collect(),
        ready: true,
        current_config: Some("old".to_owned()),
        desired_config: Some("old".to_owned()),
        voucher: Some("old".to_owned()),
        state: Some(NodeState::Done),
        ..Node::default()
    }
}

fn told(name: &str, zone: &str, age: i64) -> Node {
    Node {
        desired_config: Some("new".to_owned()),
        voucher: Some("new".to_owned()),
        ..node(name, zone, age)
    }
}

fn next(pool: &Pool, nodes: &[Node]) -> Vec<String> {
    let nodes: Vec<_> = nodes.iter().collect();
    let rollout = rollout::plan(pool, &nodes);
    let next = rollout
        .rollouts
        .iter()
        .filter(|it| it.state == RolloutState::Next);
    next.map(|rollout| rollout.node.name.clone()).collect()
}

/// Covers M03.
#[test]
fn nodes_go_zone_by_zone_and_the_oldest_first() {
    let mut nodes = vec![
        node("a1", "a", 1),
        node("a9", "a", 9),
        node("b5", "b", 5),
        node("b99", "b", 99),
        node("a5", "a", 5),
    ];
    assert_eq!(next(&pool(&json!(2)), &nodes), ["a9", "a5"]);
    assert_eq!(next(&pool(&json!(99)), &nodes), ["a9", "a5", "a1"]);
    // While one of the first zone is on its way, nobody of the second begins.
    for node in nodes.iter_mut().filter(|it| it.zone() == "a") {
        *node = Node {
            current_config: Some("new".to_owned()),
            ..told(&node.name, "a", 1)
        };
    }
    nodes[0].current_config = Some("old".to_owned());
    assert_eq!(next(&pool(&json!(2)), &nodes), [""; 0]);
    let all: Vec<_> = nodes.iter().collect();
    let rollout = rollout::plan(&pool(&json!(2)), &all);
    let waits = rollout.rollouts.iter().find(|it| it.node.name == "b99");
    assert_eq!(waits.unwrap().state.to_string(), "waiting for zone a");
    // One that has lost its power on the way does not keep the other zones waiting, only its place.
    nodes[0].ready = false;
    assert_eq!(next(&pool(&json!(2)), &nodes), ["b99"]);
    nodes[0].current_config = Some("new".to_owned());
    nodes[0].ready = true;
    assert_eq!(next(&pool(&json!(2)), &nodes), ["b99", "b5"]);
}

#[test]
fn a_node_that_is_down_gets_its_next_configuration_first_whatever_its_zone() {
    for zone in ["a", "b", "c"] {
        let down = Node {
            ready: false,
            ..node("down", zone, 1)
        };
        let nodes = [node("a", "a", 9), node("b", "b", 9), down.clone()];
        // The others wait until it is back, and it does not wait for them.
        assert_eq!(next(&pool(&json!(1)), &nodes), ["down"], "zone {zone}");
        let all: Vec<_> = nodes.iter().collect();
        let rollout = rollout::plan(&pool(&json!(1)), &all);
        let mut others = rollout.rollouts.iter().filter(|it| it.node.name == "a");
        assert_eq!(
            others.next().unwrap().state.to_string(),
            "waiting: node down is unavailable and maxUnavailable is 1"
        );
        // Whoever is told and still down leaves the rest of the budget to the others.
        let nodes = [
            node("a", "a", 9),
            Node {
                ready: false,
                ..told("down", zone, 1)
            },
        ];
        assert_eq!(next(&pool(&json!(2)), &nodes), ["a"], "zone {zone}");
        let mut paused = pool(&json!(1));
        paused.budget.paused = true;
        assert_eq!(next(&paused, &[down]), [""; 0]);
    }
}

#[test]
fn a_node_that_is_down_does_not_wait_for_one_that_was_told_and_waits_for_it() {
    let down = |name: &str| Node {
        ready: false,
        ..node(name, "a", 1)
    };
    let nodes = [told("ready", "a", 9), down("b"), down("c")];
    assert_eq!(next(&pool(&json!(1)), &nodes), ["b"]);
    // Not all of them at once, and nobody while the limit has a permit.
    let nodes = [
        told("ready", "a", 9),
        Node {
            ready: false,
            ..told("b", "a", 1)
        },
        down("c"),
    ];
    assert_eq!(next(&pool(&json!(1)), &nodes), [""; 0]);
    let permitted = Node {
        has_permit: true,
        ..told("ready", "a", 9)
    };
    assert_eq!(next(&pool(&json!(1)), &[permitted, down("b")]), [""; 0]);
}

/// Covers M03.
#[test]
fn a_failing_node_stops_the_spread_and_the_pool_says_why() {
    let failing = Node {
        state: Some(NodeState::Degraded),
        reason: Some("disk full".to_owned()),
        ..told("a", "", 9)
    };
    let nodes = [failing.clone(), node("b", "", 5), node("c", "", 3)];
    let pool = pool(&json!("100%"));
    assert_eq!(next(&pool, &nodes), [""; 0]);
    let all: Vec<_> = nodes.iter().collect();
    let rollout = rollout::plan(&pool, &all);
    let status = rollout::status(&pool, &rollout, &[], None);
    let said = |kind: &str| {
        let it = status.condition(kind).unwrap();
        (it.status.as_str(), it.reason.as_str(), it.message.as_str())
    };
    let (updating, reason, message) = said(condition::UPDATING);
    assert_eq!((updating, reason), ("False", "Stopped"));
    assert!(
        message.contains("rollout stopped: nodes fail with new")
            && message.contains("a (disk full)"),
        "{message}"
    );
    let (degraded, _, message) = said(condition::NODE_DEGRADED);
    assert_eq!(
        (degraded, message),
        ("True", "1 of 3 nodes are degraded: a (disk full)")
    );
    assert_eq!(said(condition::DEGRADED).0, "True");
    // It goes on when the node is well, and with another configuration, which that node gets first.
    let well = Node {
        reason: Some(String::new()),
        ..failing.clone()
    };
    assert_eq!(next(&pool, &[well, node("b", "", 5)]), ["b"]);
    let newer = Pool {
        target: Some("newer".to_owned()),
        ..pool.clone()
    };
    assert_eq!(next(&newer, &nodes[..1]), ["a"]);
    let all: Vec<_> = nodes.iter().collect();
    let (first, change) = &rollout::plan(&newer, &all).writes[0];
    assert_eq!(first.name, "a");
    assert_eq!(change.annotations[annotation::REASON], Some(String::new()));
    // What is degraded on its own configuration would refuse another, and makes nobody wait.
    let drifted = Node {
        desired_config: Some("old".to_owned()),
        voucher: Some("old".to_owned()),
        ..failing
    };
    assert_eq!(next(&pool, &[drifted, node("b", "", 5)]), ["b"]);
}

/// Covers M03.
#[test]
fn a_paused_pool_and_one_whose_limit_nobody_understands_move_nothing() {
    let nodes = [
        node("a", "", 9),
        Node {
            desired_config: Some("other".to_owned()),
            ..node("b", "", 5)
        },
    ];
    let mut paused = pool(&json!(2));
    paused.budget.paused = true;
    let unclear = pool(&json!("50 percent"));
    for (pool, why) in [(paused, "Paused"), (unclear, "InvalidPool")] {
        let all: Vec<_> = nodes.iter().collect();
        let rollout = rollout::plan(&pool, &all);
        assert_eq!(rollout.writes, []);
        let status = rollout::status(&pool, &rollout, &[], None);
        assert_eq!(status.condition(condition::UPDATING).unwrap().reason, why);
    }
}

#[test]
fn what_a_person_wrote_is_put_back_and_jumps_no_queue() {
    let tampered = Node {
        desired_config: Some("mine".to_owned()),
        ..node("z", "", 1)
    };
    let nodes = [told("a", "", 9), tampered, node("c", "", 5)];
    let all: Vec<_> = nodes.iter().collect();
    let rollout = rollout::plan(&pool(&json!(1)), &all);
    let [(node, change)] = rollout.writes.as_slice() else {
        panic!("{:?}", rollout.writes);
    };
    assert_eq!(node.name, "z");
    for name in [annotation::DESIRED_CONFIG, annotation::VOUCHER] {
        assert_eq!(change.annotations[name].as_deref(), Some("old"));
    }
}

/// What is written on each node, in the order of nodes: `name=value` in one line.
fn written(pool: &Pool, nodes: &[Node]) -> Vec<String> {
    let all: Vec<_> = nodes.iter().collect();
    let rollout = rollout::plan(pool, &all);
    let writes = rollout.writes.iter().map(|(node, change)| {
        let changes = change.annotations.iter();
        let changes = changes.map(|(name, value)| {
            let short = name.rsplit('/').next().unwrap_or_default();
            format!("{short}={}", value.as_deref().unwrap_or("(none)"))
        });
        format!("{}: {}", node.name, changes.collect::<Vec<_>>().join(" "))
    });
    writes.collect()
}

/// Covers O01.
#[test]
fn whoever_is_told_gets_the_voucher_in_the_same_write() {
    assert_eq!(
        written(&pool(&json!(1)), &[node("a", "", 9), node("b", "", 5)]),
        ["a: desired-config=new desiredConfig=new"]
    );
}

/// Covers O01.
#[test]
fn nodes_of_an_earlier_version_get_their_voucher_at_once_and_nothing_else() {
    let without = |node: Node| Node {
        voucher: None,
        ..node
    };
    let nodes = [
        without(Node {
            current_config: Some("new".to_owned()),
            ..told("a-updated", "", 9)
        }),
        without(told("b-moving", "", 8)),
        without(node("c-waiting", "", 7)),
        without(Node {
            state: Some(NodeState::Degraded),
            reason: Some("a file differs".to_owned()),
            ..node("d-held", "", 6)
        }),
    ];
    let all = [
        "a-updated: desired-config=new",
        "b-moving: desired-config=new",
        "c-waiting: desired-config=old",
        "d-held: desired-config=old",
    ];
    // One is on its way already, as the earlier version decided it, and nobody else begins.
    assert_eq!(written(&pool(&json!(1)), &nodes), all);
    let mut paused = pool(&json!(4));
    paused.budget.paused = true;
    assert_eq!(written(&paused, &nodes), all);
    // In the middle of a drain it goes on, also where the pool has another target by now.
    let drained = without(Node {
        desired_config: Some("old".to_owned()),
        current_config: Some("older".to_owned()),
        drain_granted: Some("2026-01-01T00:00:00Z".to_owned()),
        ..node("e", "", 5)
    });
    assert_eq!(written(&paused, &[drained]), ["e: desired-config=old"]);
}

/// Covers O01, O03.
#[test]
fn what_somebody_else_rendered_is_neither_adopted_nor_rolled_out() {
    let foreign = |name: &str, age: i64, current: &str| Node {
        desired_config: Some("theirs".to_owned()),
        current_config: Some(current.to_owned()),
        voucher: None,
        ..node(name, "", age)
    };
    // One is at rest with theirs, the other in the middle of a rollout of theirs.
    let nodes = [foreign("a", 9, "theirs"), foreign("b", 5, "before")];
    let theirs = Pool {
        target: Some("theirs".to_owned()),
        ..pool(&json!(2))
    };
    let theirs = theirs.with_configs([("theirs", false)].into_iter());
    assert_eq!(theirs.target, None);
    assert_eq!(written(&theirs, &nodes), [""; 0]);
    // With a configuration of ours they go one by one, as everybody else.
    assert_eq!(
        written(&pool(&json!(1)), &nodes),
        ["a: desired-config=new desiredConfig=new"]
    );
}

#[test]
fn the_pools_setting_about_drift_is_carried_by_its_nodes() {
    let healing = Pool {
        drift: Some(OnDrift::Heal),
        target: None,
        ..pool(&json!(1))
    };
    let nodes = [
        node("a", "", 1),
        Node {
            drift: Field::Valid(OnDrift::Heal),
            ..node("b", "", 1)
        },
    ];
    let all: Vec<_> = nodes.iter().collect();
    let writes = rollout::plan(&healing, &all).writes;
    assert_eq!(writes.len(), 1);
    assert_eq!(
        writes[0].1.annotations[annotation::DRIFT].as_deref(),
        Some("heal")
    );
    let silent = Pool {
        drift: None,
        ..healing
    };
    let writes = rollout::plan(&silent, &all).writes;
    assert_eq!((writes.len(), writes[0].0.name.as_str()), (1, "b"));
    assert_eq!(writes[0].1.annotations[annotation::DRIFT], None);
}

#[test]
fn a_status_says_how_many_nodes_are_how_and_what_is_wrong_with_the_pool() {
    let empty = pool(&json!(1));
    let status = |pool: &Pool, nodes: &[Node], torn: &[(&str, Vec<&str>)]| {
        let all: Vec<_> = nodes.iter().collect();
        rollout::status(pool, &rollout::plan(pool, &all), torn, None)
    };
    let none = status(&empty, &[], &[]);
    let updated = none.condition(condition::UPDATED).unwrap();
    assert_eq!(
        (updated.status.as_str(), updated.reason.as_str()),
        ("True", "NoNodes")
    );
    assert_eq!(
        updated.message,
        "pool worker: spec.nodeSelector selects no node"
    );
    let torn = status(&empty, &[], &[("n1", vec!["infra"])]);
    let degraded = torn.condition(condition::DEGRADED).unwrap();
    assert_eq!(degraded.reason, "OverlappingPools");
    assert!(
        degraded.message.contains("n1 (also in infra)"),
        "{}",
        degraded.message
    );
    let wrong = status(&pool(&json!(0)), &[], &[]);
    let degraded = wrong.condition(condition::DEGRADED).unwrap();
    assert!(
        degraded
            .message
            .starts_with("pool worker: spec.maxUnavailable: 0 is not a valid number")
    );
    let done = Node {
        current_config: Some("new".to_owned()),
        ..told("a", "", 1)
    };
    let cordoned = Node {
        name: "b".to_owned(),
        unschedulable: true,
        ..done.clone()
    };
    let gone = Node {
        ready: false,
        ..node("c", "", 1)
    };
    let counts = status(&empty, &[done, cordoned, gone], &[]);
    assert_eq!(
        [
            counts.machine_count,
            counts.updated_machine_count,
            counts.ready_machine_count,
            counts.unavailable_machine_count,
            counts.degraded_machine_count
        ],
        [3, 2, 1, 1, 0]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Covers M03, X08.
    #[test]
    fn whatever_happens_the_limit_holds_and_when_it_is_over_every_node_arrives(
        nodes in 1..14usize,
        zones in 1..4usize,
        limit in prop_oneof![(1..5u32).prop_map(MaxUnavailable::Count), (1..=100u32).prop_map(MaxUnavailable::Percent)],
        deeds in prop::collection::vec(any_deed(), 0..120),
    ) {
        let mut fleet = Fleet::new(nodes, zones, limit);
        for deed in deeds {
            fleet.happens(&deed);
            // Checked in there: nothing that is decided breaks the limit.
        }
        // From here on everybody behaves.
        fleet.calms_down();
        fleet.goes_on();
        prop_assert!(fleet.is_done(), "never ends: {:#?}", fleet.nodes);
        for node in &fleet.nodes {
            prop_assert_eq!(node.current_config.as_deref(), Some(fleet.target()));
            prop_assert!(!holds_permit(node));
            prop_assert_eq!(node.unschedulable, fleet.cordoned.contains(&node.name), "{:?}", node);
        }
    }

    #[test]
    fn nodes_whose_kubelet_is_dead_are_repaired_by_their_next_configuration(
        nodes in 1..14usize,
        zones in 1..4usize,
        limit in prop_oneof![(1..5u32).prop_map(MaxUnavailable::Count), (1..=100u32).prop_map(MaxUnavailable::Percent)],
        deeds in prop::collection::vec(any_deed(), 0..120),
    ) {
        let mut fleet = Fleet::new(nodes, zones, limit);
        for deed in deeds {
            fleet.happens(&deed);
        }
        fleet.gets_a_cure();
        fleet.goes_on();
        prop_assert!(fleet.is_done(), "never ends: {:#?}", fleet.nodes);
        prop_assert!(fleet.nodes.iter().all(|it| it.ready), "{:#?}", fleet.nodes);
    }

    /// Covers T01.
    #[test]
    fn nobody_begins_outside_a_window_and_the_rollout_goes_on_when_the_next_one_opens(
        nodes in 1..10usize,
        zones in 1..4usize,
        limit in prop_oneof![(1..5u32).prop_map(MaxUnavailable::Count), (1..=100u32).prop_map(MaxUnavailable::Percent)],
        calendar in any_calendar(),
        minutes in 0..700 * 24 * 60i64,
        deeds in prop::collection::vec(any_deed(), 0..120),
    ) {
        let now = "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes);
        let mut fleet = Fleet::new(nodes, zones, limit).with_calendar(calendar, now);
        for deed in deeds {
            fleet.happens(&deed);
            // Checked in there: nothing that is decided begins outside a window.
        }
        fleet.calms_down();
        // Nobody wakes the operator but the opening of a window, and each window ends in the middle of something.
        for deed in 0..60 * (nodes + 20) {
            if fleet.is_done() {
                break;
            }
            fleet.sleeps_until_open();
            let written = if deed % 3 == 0 { 1 } else { usize::MAX };
            fleet.happens(&Deed::RollOut { written });
            fleet.happens(&Deed::Drain { written: usize::MAX });
            for at in 0..fleet.nodes.len() {
                fleet.happens(&Deed::Agent { at, fails: false });
                fleet.happens(&Deed::Passes { minutes: 13 });
            }
        }
        prop_assert!(fleet.is_done(), "never ends: {:#?}", fleet.nodes);
    }
}

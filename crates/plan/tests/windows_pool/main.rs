//! Windows nodes: whose they are, what they are to run, and who goes next.

mod fleets;
mod removals;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::field::Field;
use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::{annotation, cordon};
use evenkeel_api::windows::version::StatedVersion;
use evenkeel_api::windows::windows_pool::{UpdatePhase, UpdatingNode, condition};
use evenkeel_plan::fleet::budget::{DisruptionBudget, MaxUnavailable};
use evenkeel_plan::fleet::maintenance::Closed;
use evenkeel_plan::fleet::node::{Node, WindowsFacts};
use evenkeel_plan::windows::upgrade::UpgradeContext;
use evenkeel_plan::windows::windows_pool::{
    Grant, OwnedNodes, PoolFailure, WindowsNodeState, WindowsPool, as_written, counts,
    is_managed_node, plan, put_back, status,
};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

const V1: &str = "1.0.0-aaaaaaa";
const V2: &str = "2.0.0-bbbbbbb";

/// A pool with that spec.
fn pool_of(spec: Value) -> WindowsPool {
    WindowsPool::read(&Field::from(spec).valid().unwrap_or_default())
}

#[expect(clippy::unwrap_used, reason = "it is a version")]
fn grant(version: &str, hash: &str) -> Grant {
    Grant {
        version: version.parse().unwrap(),
        hash: hash.to_owned(),
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "annotations are there or not, and here they are"
)]
fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn stated(version: &str) -> Option<StatedVersion> {
    text(version).map(StatedVersion::from)
}

/// A node that runs `hash` of `version`, as it was told.
fn node(name: &str, version: &str, hash: &str) -> Node {
    Node {
        name: name.to_owned(),
        os: text("windows"),
        ready: true,
        windows: Some(Box::new(WindowsFacts {
            version: stated(version),
            current_services: text(hash),
            desired_version: stated(version),
            desired_services: text(hash),
            ..WindowsFacts::default()
        })),
        ..Node::default()
    }
}

fn facts(node: &mut Node) -> &mut WindowsFacts {
    node.windows.get_or_insert_default()
}

fn entry(node: &str, to: &str, phase: UpdatePhase) -> UpdatingNode {
    UpdatingNode {
        node: node.to_owned(),
        to: to.to_owned().into(),
        phase,
        ..UpdatingNode::default()
    }
}

/// What the plan writes on nodes: their names with desired version and hash.
fn writes(
    target: Option<&Grant>,
    granted: &[UpdatingNode],
    nodes: &[Node],
) -> BTreeMap<String, (Option<StatedVersion>, Option<String>)> {
    let nodes: Vec<_> = nodes.iter().collect();
    let round = plan(
        &WindowsPool::default(),
        target,
        granted,
        &nodes,
        &UpgradeContext::default(),
    );
    let told = round.writes.iter().map(|(node, change)| {
        let after = change.made_to(node).windows.unwrap_or_default();
        let told = (after.desired_version, after.desired_services);
        (node.name.clone(), told)
    });
    told.collect()
}

/// Covers X08.
#[test]
fn a_node_that_is_drained_for_another_reason_is_not_granted_beside_one_that_moves() {
    let new = grant(V1, "new");
    let mut moving = node("a", V1, "old");
    facts(&mut moving).desired_services = text("new");
    let mut drained = node("b", V1, "old");
    drained.drain_granted = text("1970-01-01T00:00:00Z");
    let granted = [entry("a", V1, UpdatePhase::Applying)];
    let updating = |nodes: &[&Node], granted: &[UpdatingNode]| {
        let round = plan(
            &WindowsPool::default(),
            Some(&new),
            granted,
            nodes,
            &UpgradeContext::default(),
        );
        let names = round.updating.iter().map(|it| it.node.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(updating(&[&moving, &drained], &granted), ["a"]);
    // One whose pods left for an upgrade comes back only by going on, and the other may wait for just that.
    let mut upgraded = drained.clone();
    upgraded.desired_drain = text("drain-upgrade-1.1.0-abc1234");
    assert_eq!(updating(&[&moving, &upgraded], &granted), ["a", "b"]);
    // Alone it goes, because it is down already.
    let still = node("a", V1, "old");
    assert_eq!(updating(&[&still, &drained], &[]), ["b"]);
}

/// Covers H38, X09.
#[test]
fn a_windows_node_is_ours_by_an_entry_a_machine_or_an_annotation_and_not_otherwise() {
    let bare = Node {
        name: "w".to_owned(),
        os: text("windows"),
        windows: Some(Box::new(WindowsFacts {
            addresses: vec!["10.0.0.7".to_owned(), "win-7.example.com".to_owned()],
            ..WindowsFacts::default()
        })),
        ..Node::default()
    };
    let nobody = OwnedNodes::default();
    assert!(!is_managed_node(&bare, &nobody));
    for cordoned in ["drain", "somebody"] {
        let cordoned = Node {
            cordoned_by: text(cordoned),
            ..bare.clone()
        };
        assert!(!is_managed_node(&cordoned, &nobody));
    }
    let addressed = OwnedNodes {
        addresses: BTreeSet::from(["10.0.0.7".to_owned()]),
        ..OwnedNodes::default()
    };
    let named = OwnedNodes {
        addresses: BTreeSet::from(["win-7.example.com".to_owned()]),
        ..OwnedNodes::default()
    };
    let machine = OwnedNodes {
        nodes: BTreeSet::from(["w".to_owned()]),
        ..OwnedNodes::default()
    };
    for claims in [addressed, named, machine] {
        assert!(is_managed_node(&bare, &claims), "{claims:?}");
        assert!(!counts(&bare, &claims), "it never served");
        let linux = Node {
            windows: None,
            os: text("linux"),
            ..bare.clone()
        };
        assert!(!is_managed_node(&linux, &claims), "never a Linux node");
    }
    let marks: [fn(&mut Node); 6] = [
        |it| facts(it).version = stated(V1),
        |it| facts(it).desired_version = stated(V1),
        |it| facts(it).desired_services = text("h"),
        |it| facts(it).missing_files = text("[]"),
        |it| it.desired_drain = text("drain-x"),
        |it| it.cordoned_by = text(cordon::AGENT),
    ];
    for mark in marks {
        let mut marked = bare.clone();
        mark(&mut marked);
        assert!(is_managed_node(&marked, &nobody), "{marked:?}");
    }
}

/// Covers H11.
#[test]
fn what_is_written_on_a_node_is_put_back_to_what_it_was_granted() {
    let target = grant(V2, "new");
    let told = |version: &str, hash: &str| (stated(version), text(hash));
    let tampered = |mut node: Node, version: Option<&str>, hash: Option<&str>| {
        facts(&mut node).desired_version = version.and_then(stated);
        facts(&mut node).desired_services = hash.map(str::to_owned);
        node
    };
    for (version, hash) in [
        (Some("9.9.9-ccccccc"), Some("h1")),
        (None, Some("h1")),
        (Some(V1), None),
        (Some(V2), Some("new")),
        (None, None),
    ] {
        // An old node that nobody granted anything goes back to its own version, not to the operator's.
        let old = tampered(node("w", V1, "h1"), version, hash);
        let back = writes(Some(&target), &[], &[old]);
        assert_eq!(back["w"], told(V1, "h1"), "{version:?} {hash:?}");
    }
    let wild = |node: Node| tampered(node, Some("rubbish"), Some("rubbish"));
    let updated = wild(node("w", V2, "new"));
    assert_eq!(writes(Some(&target), &[], &[updated])["w"], told(V2, "new"));
    // Under its version it was granted the new hash.
    let moving = wild(node("w", V2, "old"));
    let granted = [entry("w", V2, UpdatePhase::Applying)];
    assert_eq!(
        writes(Some(&target), &granted, &[moving])["w"],
        told(V2, "new")
    );
    // An upgrade that has told it goes on, one that has not does not begin for that.
    for (phase, back) in [
        (UpdatePhase::Applying, told(V2, "new")),
        (UpdatePhase::Draining, told(V1, "h1")),
        (UpdatePhase::Granted, told(V1, "h1")),
    ] {
        let upgraded = wild(node("w", V1, "h1"));
        let granted = [entry("w", V2, phase)];
        assert_eq!(
            writes(Some(&target), &granted, &[upgraded])["w"],
            back,
            "{phase:?}"
        );
    }
    // Nobody knows what it is to run: it keeps what it has.
    let lost = wild(node("w", V1, "h1"));
    assert_eq!(writes(None, &[], &[lost])["w"], told(V1, "h1"));
    // A node as it should be is left alone, and so is one that nobody has told anything yet.
    let bare = Node {
        name: "bare".to_owned(),
        windows: Some(Box::default()),
        ..Node::default()
    };
    assert!(writes(Some(&target), &[], &[node("w", V1, "h1"), bare.clone()]).is_empty());
    let told_wrong = tampered(bare, Some("rubbish"), None);
    assert_eq!(
        writes(Some(&target), &[], &[told_wrong])["bare"],
        told(V2, "new")
    );
}

#[test]
fn what_is_put_back_has_an_event_and_a_move_has_none() {
    let note = |node: &Node, grant: &Grant| put_back(node, &grant.told(node)).map(|it| it.message);
    let target = grant(V2, "new");
    let waiting = node("w", V2, "old");
    assert_eq!(note(&waiting, &target), None, "it is next");
    let mut moving = waiting.clone();
    facts(&mut moving).desired_services = text("earlier");
    assert_eq!(note(&moving, &target), None, "another hash while it moves");
    let back = note(&moving, &grant(V2, "old")).unwrap();
    assert!(back.contains("earlier") && back.contains("old"), "{back}");
    facts(&mut moving).desired_version = None;
    let back = note(&moving, &target).unwrap();
    assert!(back.contains("no version"), "{back}");
}

#[test]
fn where_no_pool_says_so_who_is_told_the_target_counts_as_granted() {
    let target = grant(V2, "new");
    let mut moving = node("a", V2, "old");
    facts(&mut moving).desired_services = text("new");
    let nodes = [moving, node("b", V2, "old"), node("c", V2, "new")];
    let nodes: Vec<_> = nodes.iter().collect();
    let granted = as_written(Some(&target), &nodes);
    assert_eq!(granted, [entry("a", V2, UpdatePhase::Applying)]);
    assert_eq!(as_written(None, &nodes), []);
    let round = plan(
        &WindowsPool::default(),
        Some(&target),
        &granted,
        &nodes,
        &UpgradeContext::default(),
    );
    assert_eq!(round.writes, [], "it goes on, and nobody else begins");
    assert_eq!(round.updating, granted);
}

#[test]
fn a_node_is_told_only_what_the_status_says_already() {
    let target = grant(V2, "new");
    let nodes = [node("a", V2, "old"), node("b", V2, "old")];
    let nodes: Vec<_> = nodes.iter().collect();
    let pool = WindowsPool::default();
    let first = plan(
        &pool,
        Some(&target),
        &[],
        &nodes,
        &UpgradeContext::default(),
    );
    assert_eq!(first.writes, []);
    assert_eq!(first.updating, [entry("a", V2, UpdatePhase::Granted)]);
    let second = plan(
        &pool,
        Some(&target),
        &first.updating,
        &nodes,
        &UpgradeContext::default(),
    );
    let told: Vec<_> = second.writes.iter().map(|(node, _)| &node.name).collect();
    assert_eq!(told, ["a"]);
    assert_eq!(second.updating, first.updating, "nobody else begins");
}

/// Covers X08, H11.
#[test]
fn a_node_that_never_served_counts_against_the_budget_once_it_has_or_asks_for_a_permit() {
    let target = grant(V2, "new");
    let waiting = node("b", V2, "old");
    let bare = |leave: Option<String>, cordoned_by: Option<&str>| Node {
        name: "a".to_owned(),
        os: text("windows"),
        drain_granted: leave,
        cordoned_by: cordoned_by.map(str::to_owned),
        windows: Some(Box::default()),
        ..Node::default()
    };
    let asks = Node {
        desired_drain: text("drain-boot"),
        ..bare(None, None)
    };
    for (new, takes_a_place) in [
        (asks, true),
        (bare(None, None), false),
        (bare(None, Some("someone")), false),
        (bare(text("2026-01-01T00:00:00Z"), None), true),
        // Whose cordon it is, its agent could write.
        (bare(None, Some(cordon::DRAIN)), false),
    ] {
        let claims = OwnedNodes {
            nodes: BTreeSet::from(["a".to_owned()]),
            ..OwnedNodes::default()
        };
        assert_eq!(counts(&new, &claims), takes_a_place, "{new:?}");
        let pool = WindowsPool::default();
        let nodes = [&new, &waiting];
        let round = plan(
            &pool,
            Some(&target),
            &[],
            &nodes,
            &UpgradeContext::default(),
        );
        let begins = round.updating.iter().any(|it| it.node == "b");
        assert_eq!(begins, !takes_a_place, "{:?}", round.rollouts);
    }
}

#[test]
fn a_node_that_fails_stops_the_others_and_the_status_names_it() {
    let target = grant(V2, "new");
    let mut broken = node("a", V2, "new");
    broken.ready = false;
    let waiting = node("b", V2, "old");
    let pool = WindowsPool {
        budget: DisruptionBudget {
            max_unavailable: MaxUnavailable::Count(5),
            ..DisruptionBudget::default()
        },
        ..WindowsPool::default()
    };
    let nodes = [&broken, &waiting];
    let round = plan(
        &pool,
        Some(&target),
        &[],
        &nodes,
        &UpgradeContext::default(),
    );
    assert!(
        round
            .rollouts
            .iter()
            .any(|it| it.state == WindowsNodeState::Stopped)
    );
    let said = status(&pool, Some(&target), &round, None);
    let degraded = said.condition(condition::DEGRADED).unwrap();
    assert_eq!(
        (degraded.status.as_str(), degraded.reason.as_str()),
        ("True", "NodesFailing")
    );
    assert!(degraded.message.contains("a (the node is not ready)"));
    assert_eq!((said.nodes.total, said.nodes.failing), (2, 1));
    // While it has a permit, it does not fail.
    broken.drain_granted = text("2026-01-01T00:00:00Z");
    let nodes = [&broken, &waiting];
    let round = plan(
        &pool,
        Some(&target),
        &[],
        &nodes,
        &UpgradeContext::default(),
    );
    assert_eq!(round.stopped, None);
}

#[test]
fn what_stands_in_the_way_of_all_is_said() {
    let trouble = PoolFailure {
        category: "NoWorkerIgnition",
        note: "there is none".to_owned(),
    };
    let one = node("a", V1, "h");
    let pool = WindowsPool::default();
    let round = plan(&pool, None, &[], &[&one], &UpgradeContext::default());
    let said = status(&pool, None, &round, Some(&trouble));
    for (kind, wanted) in [
        (condition::UPGRADEABLE, "False"),
        (condition::DEGRADED, "True"),
    ] {
        let found = said.condition(kind).unwrap();
        assert_eq!(found.status, wanted, "{kind}");
        assert_eq!(found.reason, "NoWorkerIgnition");
        assert_eq!(found.message, "there is none");
    }
}

#[test]
fn a_spec_that_makes_no_sense_is_told_by_field_and_lets_nobody_begin() {
    let pool =
        pool_of(json!({ "strategy": "Never", "maxUnavailable": "lots", "parallelInstances": 0 }));
    let fields: Vec<_> = pool.problems.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.strategy",
            "spec.maxUnavailable",
            "spec.parallelInstances"
        ]
    );
    let target = grant(V2, "new");
    let one = node("a", V2, "old");
    let round = plan(
        &pool,
        Some(&target),
        &[],
        &[&one],
        &UpgradeContext::default(),
    );
    assert_eq!(round.updating, []);
    let read = pool_of(
        json!({ "strategy": "Recreate", "maxUnavailable": "25%", "paused": true, "parallelInstances": 3 }),
    );
    assert_eq!(read.problems, []);
    assert!(read.budget.paused);
    assert_eq!(read.parallel_instances, 3);
    assert_eq!(pool_of(json!(null)), WindowsPool::default());
}

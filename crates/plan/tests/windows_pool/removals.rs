//! Nodes whose instances are listed no more: who may be removed now, and what the others wait for.

use evenkeel_plan::machine::phase::Drain;
use evenkeel_plan::windows::windows_pool::removal::{Removal, RemovalStep, is_cleared, notice};

use super::*;

fn context(removed: &[&str]) -> UpgradeContext {
    UpgradeContext {
        removals: Some(removed.iter().map(|it| (*it).to_owned()).collect()),
        ..UpgradeContext::default()
    }
}

fn removal(node: &str, phase: UpdatePhase) -> UpdatingNode {
    UpdatingNode {
        removal: true,
        ..entry(node, "", phase)
    }
}

/// Its pods have left for its removal.
fn drained(mut node: Node) -> Node {
    node.desired_drain = text(Drain::FOR_REMOVAL);
    node.last_applied_drain = text(Drain::FOR_REMOVAL);
    node.drain_granted = text("2026-01-01T00:00:00Z");
    node.unschedulable = true;
    node.cordoned_by = text(cordon::DRAIN);
    node
}

fn paused() -> WindowsPool {
    pool_of(json!({ "paused": true }))
}

/// What is to stand in the status, and what is asked of whom, after a look.
fn look(
    pool: &WindowsPool,
    granted: &[UpdatingNode],
    nodes: &[&Node],
    context: &UpgradeContext,
) -> (Vec<UpdatingNode>, BTreeMap<String, Option<String>>) {
    let target = grant(V1, "h");
    let round = plan(pool, Some(&target), granted, nodes, context);
    let asked = round.writes.iter().map(|(node, change)| {
        let drain = change.annotations.get(annotation::DESIRED_DRAIN).cloned();
        (node.name.clone(), drain.flatten())
    });
    let asked = asked.collect();
    (round.updating, asked)
}

/// What the removal of a node waits for.
fn waits_for(
    pool: &WindowsPool,
    nodes: &[&Node],
    context: &UpgradeContext,
    name: &str,
) -> Option<String> {
    let round = plan(pool, Some(&grant(V1, "h")), &[], nodes, context);
    let rollout = round.rollouts.iter().find(|it| it.node.name == name)?;
    match &rollout.state {
        WindowsNodeState::Removal(removal) => removal.waits_for(rollout.node),
        _ => None,
    }
}

/// Covers S14.
#[test]
fn of_nodes_that_are_removed_no_more_have_a_permit_than_the_budget_has_and_it_is_written_first() {
    let [a, b, c] = ["a", "b", "c"].map(|name| node(name, V1, "h"));
    let all = context(&["a", "b", "c"]);
    let pool = WindowsPool::default();
    let (first, asked) = look(&pool, &[], &[&a, &b, &c], &all);
    assert_eq!(first, [removal("a", UpdatePhase::Granted)]);
    assert!(asked.is_empty(), "nobody is asked before it is written");
    let (second, asked) = look(&pool, &first, &[&a, &b, &c], &all);
    assert_eq!(second, first);
    assert_eq!(asked, [("a".to_owned(), text("drain-removal"))].into());
    assert_eq!(
        waits_for(&pool, &[&drained(a.clone()), &b, &c], &all, "b").as_deref(),
        Some("waiting: node a is unavailable and maxUnavailable is 1")
    );

    // Its pods have left: hands are laid on its machine only then, and only with a permit.
    let mut asked = a.clone();
    asked.desired_drain = text(Drain::FOR_REMOVAL);
    let gone = drained(a.clone());
    let permit = removal("a", UpdatePhase::Removing);
    for (entry, node, may) in [
        (Some(&permit), &a, false),
        (Some(&permit), &asked, false),
        (Some(&permit), &gone, true),
        (None, &gone, false),
        (Some(&entry("a", V1, UpdatePhase::Applying)), &gone, false),
    ] {
        assert_eq!(is_cleared(entry, node), may, "{entry:?} {node:?}");
    }
    // Somebody lets pods in again before it is stopped: they are asked to leave again.
    let open = Node {
        unschedulable: false,
        ..gone.clone()
    };
    assert!(!is_cleared(Some(&permit), &open));
    let granted = [permit];
    let (_, asked) = look(&pool, &granted, &[&open, &b, &c], &all);
    assert_eq!(asked, [("a".to_owned(), text("drain-removal"))].into());

    // While its Node is there nobody else goes; the permit is returned when it is gone.
    let (status, asked) = look(&pool, &granted, &[&gone, &b, &c], &all);
    assert_eq!((status.as_slice(), asked.len()), (&granted[..], 0));
    let (status, _) = look(&pool, &granted, &[&b, &c], &all);
    assert_eq!(status, [removal("b", UpdatePhase::Granted)]);
}

/// Covers S14.
#[test]
fn removals_upgrades_and_reboots_share_one_budget() {
    let pool = WindowsPool::default();
    let (a, b) = (node("a", V1, "h"), node("b", V1, "h"));
    // One is drained for a boot.
    let boots = Node {
        desired_drain: text("drain-boot"),
        drain_granted: text("2026-01-01T00:00:00Z"),
        ..b.clone()
    };
    let (status, _) = look(&pool, &[], &[&a, &boots], &context(&["a"]));
    assert_eq!(status, []);
    // One is upgraded.
    let moves = node("b", "0.9.0-aaaaaaa", "h");
    let upgrade = entry("b", V1, UpdatePhase::Granted);
    let (status, _) = look(
        &pool,
        std::slice::from_ref(&upgrade),
        &[&a, &moves],
        &context(&["a"]),
    );
    assert_eq!(status, std::slice::from_ref(&upgrade));
    // That one is removed itself, and uses the permit that it has, also in a paused pool.
    let (status, _) = look(&paused(), &[upgrade], &[&a, &moves], &context(&["b"]));
    assert_eq!(status, [removal("b", UpdatePhase::Granted)]);
    // One that is removed keeps an upgrade waiting.
    let behind = node("b", V1, "old");
    let (status, _) = look(
        &pool,
        &[removal("a", UpdatePhase::Granted)],
        &[&a, &behind],
        &context(&["a"]),
    );
    assert_eq!(status, [removal("a", UpdatePhase::Granted)]);
    // A node that fails stops upgrades, and no removal: least of all its own.
    let broken = Node { ready: false, ..b };
    let wide = pool_of(json!({ "maxUnavailable": 2 }));
    let (status, _) = look(&wide, &[], &[&a, &broken], &context(&["a"]));
    assert_eq!(status, [removal("a", UpdatePhase::Granted)]);
    let (status, _) = look(&pool, &[], &[&a, &broken], &context(&["b"]));
    assert_eq!(status, [removal("b", UpdatePhase::Granted)]);
}

/// Covers S14.
#[test]
fn an_instance_that_is_listed_again_is_not_removed_and_its_pods_come_back() {
    let pool = WindowsPool::default();
    let a = drained(node("a", V1, "h"));
    let granted = [removal("a", UpdatePhase::Removing)];
    let (status, asked) = look(&pool, &granted, &[&a], &context(&[]));
    assert_eq!(status, []);
    assert_eq!(asked, [("a".to_owned(), text("uncordon-removal"))].into());
    // Its place it holds until they may.
    let b = node("b", V1, "old");
    let (status, _) = look(&pool, &[], &[&a, &b], &context(&[]));
    assert_eq!(status, []);
    // Whoever has not read the list does neither.
    let unknown = UpgradeContext::default();
    let (status, asked) = look(&pool, &granted, &[&a], &unknown);
    assert_eq!((status.as_slice(), asked.len()), (&granted[..], 0));
    let (status, asked) = look(
        &pool,
        &[removal("b", UpdatePhase::Granted)],
        &[&b],
        &unknown,
    );
    assert_eq!(status, [removal("b", UpdatePhase::Granted)]);
    assert!(asked.is_empty());
}

/// Covers S14.
#[test]
fn a_paused_pool_removes_nobody_who_serves_and_each_says_what_it_waits_for() {
    let a = node("a", V1, "h");
    let (status, _) = look(&paused(), &[], &[&a], &context(&["a"]));
    assert_eq!(status, []);
    let said = waits_for(&paused(), &[&a], &context(&["a"]), "a").unwrap();
    assert!(
        said.starts_with("waiting: the WindowsPool is paused"),
        "{said}"
    );
    let mut closed = pool_of(json!({ "rolloutPolicy": "nights" }));
    closed.budget.closed = Some(Closed::Window { opens: None });
    let (status, _) = look(&closed, &[], &[&a], &context(&["a"]));
    assert_eq!(status, []);
    let said = waits_for(&closed, &[&a], &context(&["a"]), "a").unwrap();
    assert!(
        said.starts_with("waiting: no maintenance window is open"),
        "{said}"
    );
    let unclear = pool_of(json!({ "maxUnavailable": "lots" }));
    let said = waits_for(&unclear, &[&a], &context(&["a"]), "a").unwrap();
    assert!(said.contains("maxUnavailable"), "{said}");

    // What its drain waits for is named as the drain does.
    let mut late = drained(a);
    late.last_applied_drain = None;
    let draining = Removal::Granted(RemovalStep::of(&late));
    assert_eq!(
        draining.waits_for(&late).as_deref(),
        Some("waiting: its pods must leave first")
    );
    late.reason =
        text("the drain takes longer than 1h: eviction of pod shop/web-1 is blocked: budget web");
    late.drain_overdue.clone_from(&late.reason);
    let said = draining.waits_for(&late).unwrap();
    assert!(
        said.contains("shop/web-1") && said.contains("budget web"),
        "{said}"
    );
}

#[test]
fn a_node_that_never_served_needs_no_permit_and_gets_none() {
    let bare = Node {
        name: "a".to_owned(),
        os: text("windows"),
        windows: Some(Box::default()),
        ..Node::default()
    };
    let (status, asked) = look(&WindowsPool::default(), &[], &[&bare], &context(&["a"]));
    assert!(status.is_empty() && asked.is_empty());
}

#[test]
fn where_no_pool_says_so_whose_pods_were_asked_to_leave_is_removed() {
    let a = drained(node("a", V1, "h"));
    let written = as_written(None, &[&a]);
    assert_eq!(written, [removal("a", UpdatePhase::Removing)]);
    assert!(is_cleared(written.first(), &a));
}

#[test]
fn the_status_says_who_is_removed_and_people_hear_that_it_begins_and_that_it_does_not() {
    let pool = WindowsPool::default();
    let (a, b) = (node("a", V1, "h"), node("b", V1, "h"));
    let target = grant(V1, "h");
    let granted = [removal("a", UpdatePhase::Granted)];
    let all = context(&["a", "b"]);
    let round = plan(&pool, Some(&target), &granted, &[&a, &b], &all);
    let said = status(&pool, Some(&target), &round, None);
    let updating = said.condition(condition::UPDATING).unwrap();
    assert_eq!(updating.reason, "RollingOut");
    let (_, change) = round.writes.first().unwrap();
    assert_eq!(notice(change).unwrap().category, "RemovalBegins");
    let held = drained(a);
    let round = plan(&pool, Some(&target), &granted, &[&held, &b], &context(&[]));
    let (_, change) = round.writes.first().unwrap();
    assert_eq!(notice(change).unwrap().category, "RemovalCancelled");
    // One that waits is named with what it waits for.
    let down = Node {
        ready: false,
        ..held
    };
    let round = plan(&pool, Some(&target), &[], &[&down, &b], &context(&["b"]));
    let said = status(&pool, Some(&target), &round, None);
    let updating = said.condition(condition::UPDATING).unwrap();
    assert_eq!(
        (updating.reason.as_str(), updating.message.as_str()),
        (
            "Waiting",
            "node b: waiting to be removed: node a is unavailable and maxUnavailable is 1"
        )
    );
}

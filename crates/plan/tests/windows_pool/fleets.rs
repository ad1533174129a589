//! Whatever a fleet of Windows nodes is like, and whoever writes on it.

use super::*;

prop_compose! {
    fn any_node()(
        version in prop::option::weighted(0.9, prop::sample::select(vec![V1, V2])),
        current in prop::option::weighted(0.9, prop::sample::select(vec!["old", "new"])),
        desired_version in prop::option::of(prop::sample::select(vec![V1, V2, "rubbish"])),
        desired in prop::option::of(prop::sample::select(vec!["old", "new", "rubbish"])),
        age in 0..4i64,
        ready in prop::bool::weighted(0.8),
        degraded in prop::bool::weighted(0.1),
        leave in prop::option::weighted(0.2, Just("1970-01-01T00:00:00Z")),
        drain in prop::option::weighted(0.3, prop::sample::select(vec!["drain-new", "uncordon-new", "drain-removal"])),
    ) -> Node {
        Node {
            os: text("windows"),
            created: Timestamp::from_second(1_000_000 - age).unwrap_or_default(),
            ready,
            state: degraded.then_some(NodeState::Degraded),
            reason: degraded.then(|| "broken".to_owned()),
            drain_granted: leave.map(str::to_owned),
            desired_drain: drain.map(str::to_owned),
            windows: Some(Box::new(WindowsFacts {
                version: version.and_then(stated),
                current_services: current.map(str::to_owned),
                desired_version: desired_version.and_then(stated),
                desired_services: desired.map(str::to_owned),
                ..WindowsFacts::default()
            })),
            ..Node::default()
        }
    }
}

proptest! {
    /// Covers X08, H11, S14.
    #[test]
    fn never_more_are_granted_than_the_limit_and_nobody_is_told_what_was_not_granted(
        nodes in prop::collection::vec(any_node(), 0..9),
        listed in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        max in 1..4u32,
        paused in any::<bool>(),
        closed in any::<bool>(),
        delisted in prop::option::weighted(0.8, prop::collection::vec(any::<prop::sample::Index>(), 0..5)),
        removed in any::<bool>(),
    ) {
        let nodes: Vec<_> = nodes.into_iter().enumerate()
            .map(|(number, node)| Node { name: format!("n{number}"), ..node })
            .collect();
        let all: Vec<_> = nodes.iter().collect();
        let target = grant(V2, "new");
        let names: BTreeSet<_> = listed.iter().filter(|_| !nodes.is_empty()).map(|it| it.get(&nodes).name.clone()).collect();
        let entry = |name: &String| if removed {
            UpdatingNode { removal: true, ..entry(name, "", UpdatePhase::Draining) }
        } else {
            entry(name, V2, UpdatePhase::Applying)
        };
        let granted: Vec<_> = names.iter().map(entry).collect();
        let name = |it: &prop::sample::Index| it.get(&nodes).name.clone();
        let context = UpgradeContext {
            removals: delisted.map(|it| it.iter().filter(|_| !nodes.is_empty()).map(name).collect()),
            ..UpgradeContext::default()
        };
        let pool = WindowsPool {
            budget: DisruptionBudget { max_unavailable: MaxUnavailable::Count(max), paused, closed: closed.then_some(Closed::Window { opens: None }), ..DisruptionBudget::default() },
            ..WindowsPool::default()
        };
        let round = plan(&pool, Some(&target), &granted, &all, &context);
        let is_listed = |name: &str, list: &[UpdatingNode]| list.iter().any(|it| it.node == name);
        let down = |node: &&Node, list: &[UpdatingNode]| {
            let is_asked = node.desired_drain.as_deref() == Some("drain-removal");
            node.drain_granted.is_some() || is_asked || is_listed(&node.name, list)
        };
        let before = all.iter().filter(|it| down(it, &granted)).count();
        let after = all.iter().filter(|it| down(it, &round.updating)).count();
        prop_assert!(after <= before.max(usize::try_from(max).unwrap()));
        let is_new = |name: &UpdatingNode| !is_listed(&name.node, &granted);
        if paused {
            prop_assert!(!round.updating.iter().any(is_new));
        }
        // Outside a window only who is down already goes on.
        let is_going = |name: &UpdatingNode| all.iter().any(|it| it.name == name.node && it.drain_granted.is_some());
        if closed {
            prop_assert!(!round.updating.iter().any(|it| is_new(it) && !is_going(it)));
        }
        // A node that fails stops updates, and no removal: that may be its own.
        if round.stopped.is_some() {
            prop_assert!(!round.updating.iter().any(|it| is_new(it) && !it.removal));
        }
        for (node, change) in &round.writes {
            let asks = change.annotations.get(annotation::DESIRED_DRAIN).cloned().flatten();
            if asks.as_deref() == Some("drain-removal") {
                // Only who has a permit for that, and is listed no more.
                let entry = granted.iter().find(|it| it.node == node.name);
                prop_assert!(entry.is_some_and(|it| it.removal));
                prop_assert!(context.removals.as_ref().is_some_and(|it| it.contains(&node.name)));
            }
            let after = change.made_to(node).windows.unwrap();
            let facts = node.windows.as_deref().unwrap();
            let told = (after.desired_version, after.desired_services);
            if told == (facts.desired_version.clone(), facts.desired_services.clone()) {
                continue;
            }
            let own = (facts.version.clone(), facts.current_services.clone());
            let is_our_target = told == (stated(V2), text("new"));
            let never_served = own == (None, None);
            prop_assert!(told == own || (is_our_target && (is_listed(&node.name, &granted) || never_served)), "{told:?} on {node:?}");
        }
        // What it writes is what it wants: a second look writes nothing.
        let written: BTreeMap<_, _> = round.writes.iter().map(|(node, change)| (node.name.clone(), change.made_to(node))).collect();
        let after: Vec<_> = all.iter().map(|it| written.get(&it.name).unwrap_or(it)).collect();
        let again = plan(&pool, Some(&target), &granted, &after, &context);
        prop_assert!(again.writes.is_empty(), "{:?}", again.writes);
    }

    /// Covers X08.
    #[test]
    fn a_fleet_gets_to_the_new_hash_whatever_is_written_on_it_meanwhile(
        size in 1..8usize,
        max in 1..4u32,
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0..6u8), 60..120),
    ) {
        let mut nodes: Vec<_> = (0..size).map(|it| node(&format!("n{it}"), V2, "old")).collect();
        let target = grant(V2, "new");
        let limit = usize::try_from(max).unwrap();
        let pool = WindowsPool {
            budget: DisruptionBudget { max_unavailable: MaxUnavailable::Count(max), ..DisruptionBudget::default() },
            ..WindowsPool::default()
        };
        let mut granted: Vec<UpdatingNode> = Vec::new();
        // After the random part, everybody does what they should until all is well.
        let rest = (0..size * 8).map(|number| (None, Some(number % size)));
        let steps = steps.iter().map(|(at, what)| (Some((at.index(size), *what)), None)).chain(rest);
        for (random, calm) in steps {
            let snapshot: Vec<Node> = nodes.clone();
            let all: Vec<_> = snapshot.iter().collect();
            let round = plan(&pool, Some(&target), &granted, &all, &UpgradeContext::default());
            for (told, change) in &round.writes {
                let at = nodes.iter().position(|it| it.name == told.name).unwrap();
                nodes[at] = change.made_to(told);
            }
            granted = round.updating;
            prop_assert!(granted.len() <= limit);
            let (at, what) = random.or(calm.map(|it| (it, 0))).unwrap();
            let facts = facts(&mut nodes[at]);
            match what {
                // Its agent brings it to what it is told, if there is such a thing.
                0..=2 => if facts.desired_version == stated(V2)
                    && facts.desired_services.as_deref().is_some_and(|it| ["old", "new"].contains(&it)) {
                    facts.current_services.clone_from(&facts.desired_services);
                },
                3 => facts.desired_services = text("new"),
                4 => facts.desired_version = stated("rubbish"),
                _ => facts.desired_services = None,
            }
        }
        for node in &mut nodes {
            prop_assert_eq!(facts(node).current_services.as_deref(), Some("new"));
            prop_assert_eq!(facts(node).desired_services.as_deref(), Some("new"));
        }
        prop_assert_eq!(granted, Vec::new());
    }
}

#[test]
fn annotations_are_where_the_contract_says() {
    let mut bare = node("a", V1, "h");
    facts(&mut bare).desired_version = None;
    facts(&mut bare).desired_services = None;
    let change = grant(V2, "new").told(&bare);
    assert_eq!(
        change.annotations.into_iter().collect::<Vec<_>>(),
        [
            (annotation::DESIRED_SERVICES, text("new")),
            (annotation::WINDOWS_DESIRED_VERSION, text(V2)),
        ]
    );
}

use std::cell::Cell;

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::*;
use evenkeel_api::windows::version::StatedVersion;

use crate::fleet::budget::DisruptionBudget;
use crate::fleet::node::WindowsFacts;

const OLD: &str = "1.0.0-aaaaaaa";
const NEW: &str = "2.0.0-bbbbbbb";

fn stated(version: &str) -> StatedVersion {
    version.to_owned().into()
}

fn target() -> Option<Version> {
    NEW.parse().ok()
}
const SET: &str = "machines/a";

fn node(name: &str, version: Option<&str>) -> Node {
    let text = |it: &str| it.to_owned();
    Node {
        name: name.to_owned(),
        os: Some("windows".to_owned()),
        created: Timestamp::from_second(0).unwrap(),
        ready: true,
        windows: Some(Box::new(WindowsFacts {
            version: version.map(stated),
            desired_version: version.map(stated),
            current_services: version.map(text),
            ..WindowsFacts::default()
        })),
        ..Node::default()
    }
}

fn machine(node: &str, set: Option<&str>) -> Machine {
    Machine {
        name: format!("machines/{node}"),
        set: set.map(str::to_owned),
        node: Some(node.to_owned()),
        is_going: false,
    }
}

fn set(replicas: usize, max_unhealthy: Option<&str>) -> MachineSet {
    MachineSet {
        replicas,
        max_unhealthy: max_unhealthy.map(str::to_owned),
    }
}

/// One set of nodes with these versions.
fn one_set(nodes: &[Node], set: MachineSet) -> Machines {
    Machines {
        machines: nodes
            .iter()
            .map(|it| machine(&it.name, Some(SET)))
            .collect(),
        sets: BTreeMap::from([(SET.to_owned(), set)]),
    }
}

fn by_name(nodes: &[Node]) -> BTreeMap<&str, &Node> {
    nodes.iter().map(|it| (it.name.as_str(), it)).collect()
}

/// Who is replaced now of a pool in which any number may be down.
fn chosen(nodes: &[Node], seen: &Machines, leaving: &[&str]) -> Vec<(String, DisruptionPermit)> {
    let all = by_name(nodes);
    let leaving = leaving.iter().copied().collect();
    let mut ledger = MachineLedger::of(seen, &all, &leaving, target().as_ref());
    let members: Vec<&Node> = nodes.iter().collect();
    let budget = DisruptionBudget {
        max_unavailable: MaxUnavailable::Count(100),
        ..DisruptionBudget::default()
    };
    let mut usage = BudgetUsage::of(budget, &members, |node| {
        leaving.contains(node.name.as_str())
    });
    let asks = |node: &&Node| !leaving.contains(node.name.as_str());
    let asking = nodes.iter().filter(asks);
    asking
        .map(|node| (node.name.clone(), ledger.ask(SET, node, &mut usage)))
        .collect()
}

fn granted(answers: &[(String, DisruptionPermit)]) -> Vec<&str> {
    let granted = answers
        .iter()
        .filter(|(_, it)| *it == DisruptionPermit::Granted);
    granted.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn the_limit_of_a_set_is_a_number_or_a_share_and_rubbish_stops_it_by_name() {
    for (text, replicas, limit) in [
        (None, 5, Some(1)),
        (Some("1"), 5, Some(1)),
        (Some("3"), 5, Some(3)),
        (Some(" 2 "), 5, Some(2)),
        (Some("40%"), 5, Some(2)),
        (Some("10%"), 5, Some(1)),
        (Some("100%"), 5, Some(5)),
        (Some("0"), 5, None),
        (Some("abc"), 5, None),
        (Some("200%"), 5, None),
        (Some("0%"), 5, None),
        (Some("-1"), 5, None),
        (Some(""), 5, None),
    ] {
        let set = set(replicas, text);
        let read = set.limit().map(|it| it.of(replicas));
        assert_eq!(read.as_ref().ok().copied(), limit, "{text:?}");
        let nodes = [node("a", Some(OLD)), node("b", Some(OLD))];
        let seen = one_set(&nodes, MachineSet { replicas: 2, ..set });
        let answers = chosen(&nodes, &seen, &[]);
        if limit.is_some() {
            assert!(!granted(&answers).is_empty(), "{text:?}");
            assert_eq!(seen.problems(), BTreeMap::new());
            continue;
        }
        // It names the annotation and the cure, and nobody of the set goes.
        let DisruptionPermit::Waits(why) = &answers[0].1 else {
            panic!("{text:?}: {answers:?}");
        };
        let said = why.to_string();
        for word in [
            SET,
            "evenkeel.dev/max-unhealthy",
            "write a number of at least 1",
        ] {
            assert!(said.contains(word), "{text:?}: {said}");
        }
        assert!(seen.problems()[SET].contains("evenkeel.dev/max-unhealthy"));
    }
}

/// Covers U05.
#[test]
fn a_node_without_a_version_counts_as_unavailable_and_may_itself_be_replaced() {
    let mut nodes = [node("a", Some(OLD)), node("b", None), node("c", Some(OLD))];
    let seen = one_set(&nodes, set(3, None));
    // It was told nothing, or the new version: it is on its way, and the others wait for it.
    let answers = chosen(&nodes, &seen, &[]);
    assert_eq!(granted(&answers), [""; 0], "{answers:?}");
    let DisruptionPermit::Waits(why) = &answers[0].1 else {
        panic!("{answers:?}");
    };
    assert_eq!(
        why.to_string(),
        "MachineSet machines/a has reached its limit of 1 unavailable Machines: b"
    );
    // It was told an older one, to which nobody brings it any more: it goes, and only it.
    if let Some(windows) = &mut nodes[1].windows {
        windows.desired_version = Some(stated(OLD));
    }
    assert_eq!(granted(&chosen(&nodes, &seen, &[])), ["b"]);
}

#[test]
fn one_that_goes_and_is_not_made_anew_yet_keeps_the_others_waiting() {
    let nodes = [
        node("a", Some(OLD)),
        node("b", Some(OLD)),
        node("c", Some(OLD)),
    ];
    let mut seen = one_set(&nodes, set(3, None));
    assert_eq!(granted(&chosen(&nodes, &seen, &[])), ["a"]);
    // It was granted; its Machine is there still.
    assert_eq!(granted(&chosen(&nodes, &seen, &["a"])), [""; 0]);
    // Its Machine goes, its Node serves until its pods have left.
    seen.machines[0].is_going = true;
    assert_eq!(granted(&chosen(&nodes[1..], &seen, &[])), [""; 0]);
    // It is gone, and a new Machine has no node, then one that does not serve.
    seen.machines[0] = Machine {
        node: None,
        ..machine("d", Some(SET))
    };
    assert_eq!(granted(&chosen(&nodes[1..], &seen, &[])), [""; 0]);
    let unready = Node {
        ready: false,
        ..node("d", Some(NEW))
    };
    seen.machines[0].node = Some("d".to_owned());
    let now = [nodes[1].clone(), nodes[2].clone(), unready];
    assert_eq!(granted(&chosen(&now[..2], &seen, &[])), [""; 0]);
    let now = [nodes[1].clone(), nodes[2].clone(), node("d", Some(NEW))];
    let answers = chosen(&now, &seen, &[]);
    assert_eq!(granted(&answers)[0], "b");
}

#[test]
fn a_set_that_shrinks_or_is_gone_replaces_nobody() {
    let nodes = [node("a", Some(OLD)), node("b", Some(OLD))];
    for replicas in [0, 1] {
        let seen = one_set(&nodes, set(replicas, Some("100%")));
        let answers = chosen(&nodes, &seen, &[]);
        assert_eq!(granted(&answers), [""; 0]);
        let DisruptionPermit::Waits(why) = &answers[0].1 else {
            panic!("{answers:?}");
        };
        assert!(why.to_string().contains("fewer Machines"), "{why}");
    }
    let seen = Machines {
        sets: BTreeMap::new(),
        ..one_set(&nodes, set(2, None))
    };
    assert_eq!(granted(&chosen(&nodes, &seen, &[])), [""; 0]);
    assert_eq!(seen.set_of(&seen.machines[0]), None);
}

#[test]
fn a_node_that_was_replaced_holds_its_permit_until_its_set_has_another_that_serves() {
    let entry = |node: &str| UpdatingNode {
        node: node.to_owned(),
        to: NEW.to_owned().into(),
        machine_set: Some(SET.to_owned()),
        removal: false,
        ..UpdatingNode::default()
    };
    let granted = [entry("a"), entry("b")];
    let nodes = [node("c", Some(OLD))];
    let away = |replicas: usize, new: &[Node]| {
        let all: Vec<Node> = nodes.iter().chain(new).cloned().collect();
        let seen = one_set(&all, set(replicas, Some("100%")));
        let all = by_name(&all);
        let ledger = MachineLedger::of(&seen, &all, &BTreeSet::new(), target().as_ref());
        still_away(&granted, &all, &ledger).len()
    };
    assert_eq!(away(3, &[]), 2);
    assert_eq!(away(3, &[node("d", None)]), 2);
    assert_eq!(away(3, &[node("d", Some(NEW))]), 1);
    assert_eq!(away(3, &[node("d", Some(NEW)), node("e", Some(NEW))]), 0);
    // Scaled down in the middle: nobody comes, and nobody is waited for.
    assert_eq!(away(1, &[]), 0);
    assert_eq!(away(0, &[]), 0);
}

/// A cluster whose machine controller does its work in random order.
struct World {
    seen: Machines,
    nodes: BTreeMap<String, Node>,
    granted: Vec<UpdatingNode>,
    made: Cell<usize>,
}

impl World {
    fn is_over(&self) -> bool {
        let is_old = |it: &String| it.starts_with("old-");
        !self.nodes.keys().any(is_old) && self.granted.is_empty()
    }

    fn unavailable(&self, name: &str) -> usize {
        let set = &self.seen.sets[name];
        let own = self.seen.machines.iter();
        let own = own.filter(|it| it.set.as_deref() == Some(name) && !it.is_going);
        let serving = own.filter(|it| {
            let node = it.node.as_ref().and_then(|it| self.nodes.get(it));
            node.is_some_and(serves)
        });
        set.replicas.saturating_sub(serving.count())
    }

    /// How many nodes there are, with those that are gone and hold their permit.
    fn size(&self) -> usize {
        let is_gone = |it: &&UpdatingNode| !self.nodes.contains_key(&it.node);
        self.nodes.len() + self.granted.iter().filter(is_gone).count()
    }

    /// What the operator does, once.
    fn operate(&mut self, budget: DisruptionBudget) {
        let all: BTreeMap<&str, &Node> = self.nodes.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let named = |entries: &[UpdatingNode]| -> Vec<String> {
            entries.iter().map(|it| it.node.clone()).collect()
        };
        let names = named(&self.granted);
        let leaving: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let mut ledger = MachineLedger::of(&self.seen, &all, &leaving, target().as_ref());
        let away = still_away(&self.granted, &all, &ledger);
        let is_counted = |node: &&Node| {
            let has_version = node
                .windows
                .as_deref()
                .is_some_and(|it| it.version.is_some());
            has_version || is_stranded(node, target().as_ref())
        };
        let members: Vec<&Node> = self.nodes.values().filter(is_counted).collect();
        let gone: Vec<&str> = away.iter().map(|it| it.node.as_str()).collect();
        let holds =
            |node: &Node| budget::holds_permit(node) || leaving.contains(node.name.as_str());
        let mut usage = BudgetUsage::of(budget, &members, holds).counting(&gone);
        let mut next = Vec::new();
        for node in self.nodes.values() {
            let runs = node.windows.as_deref().and_then(|it| it.version.as_ref());
            let is_old = runs == Some(&stated(OLD)) || is_stranded(node, target().as_ref());
            let Some(machine) = self.seen.of_node(&node.name) else {
                continue;
            };
            let Some((set, _)) = self.seen.set_of(machine).filter(|_| is_old) else {
                continue;
            };
            if machine.is_going || leaving.contains(node.name.as_str()) {
                continue;
            }
            if ledger.ask(set, node, &mut usage) == DisruptionPermit::Granted {
                next.push(UpdatingNode {
                    node: node.name.clone(),
                    to: NEW.to_owned().into(),
                    machine_set: Some(set.to_owned()),
                    removal: false,
                    ..UpdatingNode::default()
                });
            }
        }
        let there = self
            .granted
            .iter()
            .filter(|it| all.contains_key(it.node.as_str()));
        let mut granted: Vec<_> = there.cloned().collect();
        granted.extend(away);
        granted.extend(next);
        self.granted = granted;
        for machine in &mut self.seen.machines {
            let node = machine.node.as_deref().unwrap_or_default();
            if self.granted.iter().any(|it| it.node == node) {
                machine.is_going = true;
            }
        }
    }

    /// One thing that the machine controller or a new machine does, if it can.
    fn happen(&mut self, what: usize, who: usize) {
        let count = self.seen.machines.len().max(1);
        match what {
            // A Machine on its way out is gone.
            0 => {
                let going = self.seen.machines.iter().position(|it| it.is_going);
                if let Some(place) = going {
                    let machine = self.seen.machines.remove(place);
                    self.nodes.remove(&machine.node.unwrap_or_default());
                }
            }
            // A set makes what it lacks.
            1 => {
                for (name, set) in &self.seen.sets {
                    let own = |it: &&Machine| it.set.as_ref() == Some(name) && !it.is_going;
                    let live = self.seen.machines.iter().filter(own).count();
                    if live < set.replicas {
                        self.made.set(self.made.get() + 1);
                        let new = format!("new-{}", self.made.get());
                        self.seen.machines.push(Machine {
                            node: None,
                            ..machine(&new, Some(name))
                        });
                        return;
                    }
                }
            }
            // A new machine has its node, then its version.
            _ => {
                let Some(machine) = self.seen.machines.get_mut(who % count) else {
                    return;
                };
                match machine.node.clone() {
                    None => {
                        let name = machine
                            .name
                            .rsplit('/')
                            .next()
                            .unwrap_or_default()
                            .to_owned();
                        machine.node = Some(name.clone());
                        let mut new = node(&name, None);
                        if let Some(windows) = &mut new.windows {
                            windows.desired_version = Some(stated(NEW));
                        }
                        self.nodes.insert(name, new);
                    }
                    Some(name) => {
                        if let Some(seen) = self.nodes.get_mut(&name)
                            && seen.windows.as_ref().is_some_and(|it| it.version.is_none())
                            && !is_stranded(seen, target().as_ref())
                        {
                            *seen = node(&name, Some(NEW));
                        }
                    }
                }
            }
        }
    }
}

prop_compose! {
    fn any_set()(
        replicas in 1..6usize,
        limit in prop::sample::select(vec![None, Some("1"), Some("2"), Some("40%"), Some("100%")]),
        stranded in 0..2usize,
    ) -> (usize, Option<&'static str>, usize) {
        (replicas, limit, stranded)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Covers U05, U06.
    #[test]
    fn no_set_and_no_pool_loses_more_than_it_may_and_all_are_made_anew_in_the_end(
        sets in prop::collection::vec(any_set(), 1..4),
        pool in prop_oneof![(1..4u32).prop_map(MaxUnavailable::Count), (20..=100u32).prop_map(MaxUnavailable::Percent)],
        events in prop::collection::vec((0..4usize, 0..16usize), 0..120),
    ) {
        let mut world = World {
            seen: Machines::default(),
            nodes: BTreeMap::new(),
            granted: Vec::new(),
            made: Cell::new(0),
        };
        for (number, (replicas, limit, stranded)) in sets.iter().enumerate() {
            let name = format!("machines/set-{number}");
            world.seen.sets.insert(name.clone(), set(*replicas, *limit));
            for member in 0..*replicas {
                let called = format!("old-{number}-{member}");
                let mut it = node(&called, Some(OLD));
                if member < *stranded
                    && let Some(windows) = &mut it.windows
                {
                    windows.version = None;
                    windows.current_services = None;
                }
                world.nodes.insert(called.clone(), it);
                world.seen.machines.push(machine(&called, Some(&name)));
            }
        }
        // One that no set backs is never deleted.
        world.nodes.insert("alone".to_owned(), node("alone", Some(OLD)));
        world.seen.machines.push(machine("alone", None));
        let budget = DisruptionBudget { max_unavailable: pool, ..DisruptionBudget::default() };
        let settle = [1, 0, 2, 3].into_iter().cycle().take(4000).enumerate();
        let settle = settle.map(|(step, what)| (what, step / 4));
        for (what, who) in events.into_iter().chain(settle) {
            let before: BTreeMap<String, usize> = world.seen.sets.keys()
                .map(|it| (it.clone(), world.unavailable(it))).collect();
            let (held, size) = (world.granted.len(), world.size());
            world.operate(budget);
            for (name, set) in &world.seen.sets {
                let limit = set.limit().unwrap().of(set.replicas);
                let now = world.unavailable(name);
                prop_assert!(now <= limit.max(before[name]), "{name}: {now} of {limit}");
            }
            // A set may make a new one before the old one is gone: a share is one of all that are there.
            prop_assert!(world.granted.len() <= held.max(pool.of(size)), "{:?}", world.granted);
            prop_assert!(world.nodes.contains_key("alone"));
            world.happen(what, who);
            if world.is_over() {
                break;
            }
        }
        world.operate(budget);
        let old: Vec<_> = world.nodes.values().filter(|it| it.name.starts_with("old-")).collect();
        prop_assert!(old.is_empty(), "{old:?} {:?}", world.granted);
        prop_assert!(world.granted.is_empty(), "{:?}", world.granted);
    }
}

//! Who of all nodes asks for something, who of them may go down, and who is left alone: decided over one snapshot of the
//! fleet, so that each budget is counted once, with everybody who uses it.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::notice::Notice;
use evenkeel_api::windows::windows_pool::UpdatingNode;

use crate::fleet::budget::{self, DisruptionBudget, DisruptionPermit};
use crate::fleet::drain::{self, Next};
use crate::fleet::node::Node;
use crate::fleet::permit;
use crate::fleet::pool::{Assignment, Pool};
use crate::windows::windows_pool::{self, OwnedNodes};

/// Nodes that share a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing<'p> {
    /// Those of this pool.
    Pool(&'p str),
    /// Windows nodes of ours.
    Windows,
    /// All others.
    Others,
}

/// All that is seen when it is decided who goes on.
#[derive(Debug)]
pub struct FleetSnapshot<'a> {
    /// All nodes, each with whether a permit is recorded for it.
    pub nodes: Vec<&'a Node>,
    /// All pools.
    pub pools: &'a [Pool],
    /// Whether Linux nodes are ours to care for: beside another operator that drains them they are its own.
    pub cares_for_linux: bool,
    /// Whether Windows nodes are.
    pub cares_for_windows: bool,
    /// Who is named as a Windows node of ours.
    pub claims: &'a OwnedNodes,
    /// How many Windows nodes may be down.
    pub windows_budget: DisruptionBudget,
    /// Windows nodes on their way to another version.
    pub updating: &'a [UpdatingNode],
}

/// Who asks for something, and who is done with what it asked for.
#[derive(Debug, Default)]
pub struct Requests<'a> {
    /// Those who ask.
    pub asking: Vec<&'a Node>,
    /// Who of them gets a permit, and from which budget.
    pub answers: BTreeMap<String, (Sharing<'a>, DisruptionPermit)>,
    /// Those who have a permit and use it no more.
    pub idle: Vec<&'a Node>,
}

impl<'a> FleetSnapshot<'a> {
    /// Answers everybody. `gone` are nodes with a permit that are not there any more: they count for their budget.
    pub fn requests(&self, gone: impl Fn(Sharing<'_>) -> Vec<&'a str>) -> Requests<'a> {
        let is_left_alone = |node: &Node| {
            if node.is_windows() {
                !self.cares_for_windows || !windows_pool::is_managed_node(node, self.claims)
            } else {
                !self.cares_for_linux
            }
        };
        let mut requests = Requests::default();
        for node in self.nodes.iter().filter(|node| !is_left_alone(node)) {
            if drain::next(node) != Next::Nothing {
                requests.asking.push(node);
            } else if node.has_permit && permit::is_over(Some(node)) {
                requests.idle.push(node);
            }
        }
        if requests.asking.is_empty() {
            return requests;
        }
        let mut answer = |sharing: Sharing<'a>, budget, members: &[&Node], away: &[&str]| {
            let answers = budget::answer_counting(budget, members, away).into_iter();
            let answers = answers.map(|(name, permit)| (name, (sharing, permit)));
            requests.answers.extend(answers);
        };
        let assignment = Assignment::of(self.pools, self.nodes.iter().copied());
        for (pool, members) in self.pools.iter().zip(&assignment.members) {
            let sharing = Sharing::Pool(&pool.name);
            answer(sharing, pool.budget, members, &gone(sharing));
        }
        let others = DisruptionBudget::default();
        answer(
            Sharing::Others,
            others,
            &assignment.others,
            &gone(Sharing::Others),
        );
        let mut serving = assignment.windows;
        serving.retain(|node| windows_pool::counts(node, self.claims));
        // One whose Machine is made anew is as far away as can be, and holds its permit.
        let there: BTreeSet<&str> = self.nodes.iter().map(|it| it.name.as_str()).collect();
        let updating = self.updating.iter().filter(|it| it.machine_set.is_some());
        let replaced = updating.map(|it| it.node.as_str());
        let mut away: BTreeSet<&str> = replaced.filter(|it| !there.contains(it)).collect();
        away.extend(gone(Sharing::Windows));
        let away: Vec<&str> = away.into_iter().collect();
        answer(Sharing::Windows, self.windows_budget, &serving, &away);
        requests
    }
}

/// What happens with a node that asks for something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestState {
    /// Nothing now: it asks for nothing, or its permit is recorded first.
    NotYet,
    /// It waits, which people should hear once for each request.
    Waits(Notice),
    /// It asks for something unknown, which people should hear once.
    Unknown(Notice),
    /// Work on it begins, or goes on.
    Begins,
}

/// What happens with `node`, whose request was answered so, if it was.
pub fn state_of(node: &Node, answer: Option<&DisruptionPermit>) -> RequestState {
    match (drain::next(node), answer) {
        (Next::Nothing, _) => RequestState::NotYet,
        (Next::Unknown(notice), _) => RequestState::Unknown(notice),
        (Next::AskForPermit, Some(DisruptionPermit::Waits(why))) => {
            RequestState::Waits(drain::waits(node, why))
        }
        (Next::AskForPermit, _) if !node.has_permit => RequestState::NotYet,
        (Next::AskForPermit | Next::Write(..) | Next::Mark(_) | Next::Evict, _) => {
            RequestState::Begins
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_api::names::label;
    use jiff::Timestamp;

    use super::*;
    use crate::fleet::budget::WaitReason;

    fn node(name: &str, os: &str, asks: &str) -> Node {
        let labels = BTreeMap::from([(label::OS.to_owned(), os.to_owned())]);
        let node = Node::of(
            name.to_owned(),
            Timestamp::UNIX_EPOCH,
            &labels,
            BTreeMap::new(),
        );
        Node {
            ready: true,
            desired_drain: (!asks.is_empty()).then(|| asks.to_owned()),
            ..node
        }
    }

    /// Who asks, who is idle, and who gets a permit.
    fn decided(
        nodes: &[Node],
        (linux, windows): (bool, bool),
        gone: &[(Sharing<'_>, &str)],
        updating: &[UpdatingNode],
    ) -> [Vec<String>; 3] {
        let snapshot = FleetSnapshot {
            nodes: nodes.iter().collect(),
            pools: &[],
            cares_for_linux: linux,
            cares_for_windows: windows,
            claims: &OwnedNodes::default(),
            windows_budget: DisruptionBudget::default(),
            updating,
        };
        let names = |nodes: &[&Node]| nodes.iter().map(|it| it.name.clone()).collect();
        let requests = snapshot.requests(|sharing| {
            let gone = gone.iter().filter(|(of, _)| *of == sharing);
            gone.map(|(_, name)| *name).collect()
        });
        let granted = requests.answers.iter();
        let granted = granted.filter(|(_, (_, permit))| *permit == DisruptionPermit::Granted);
        [
            names(&requests.asking),
            names(&requests.idle),
            granted.map(|(name, _)| name.clone()).collect(),
        ]
    }

    #[test]
    fn who_belongs_to_another_operator_is_left_alone() {
        let nodes = [
            node("linux", "linux", "drain-a"),
            node("windows", "windows", "drain-a"),
        ];
        let asking = |cares| decided(&nodes, cares, &[], &[])[0].clone();
        assert_eq!(asking((true, true)), ["linux", "windows"]);
        assert_eq!(asking((true, false)), ["linux"]);
        assert_eq!(asking((false, true)), ["windows"]);
        assert_eq!(asking((false, false)), [""; 0]);
    }

    #[test]
    fn who_has_a_permit_and_asks_for_nothing_is_done_with_it() {
        let mut nodes = [node("done", "linux", ""), node("other", "linux", "")];
        nodes[0].has_permit = true;
        let [asking, idle, _] = decided(&nodes, (true, true), &[], &[]);
        assert_eq!((asking, idle), (vec![], vec!["done".to_owned()]));
    }

    /// Each budget is one here.
    #[test]
    fn a_node_that_is_gone_with_its_permit_counts_for_its_own_budget_and_no_other() {
        let nodes = [
            node("linux", "linux", "drain-a"),
            node("windows", "windows", "drain-a"),
        ];
        let granted =
            |gone: &[_], updating: &[_]| decided(&nodes, (true, true), gone, updating)[2].clone();
        assert_eq!(granted(&[], &[]), ["linux", "windows"]);
        assert_eq!(granted(&[(Sharing::Others, "x")], &[]), ["windows"]);
        assert_eq!(granted(&[(Sharing::Windows, "x")], &[]), ["linux"]);
        assert_eq!(
            granted(&[(Sharing::Pool("p"), "x")], &[]),
            ["linux", "windows"]
        );
        let replaced = |name: &str, set: Option<&str>| UpdatingNode {
            node: name.to_owned(),
            machine_set: set.map(str::to_owned),
            ..UpdatingNode::default()
        };
        assert_eq!(granted(&[], &[replaced("x", Some("set"))]), ["linux"]);
        assert_eq!(granted(&[], &[replaced("x", None)]), ["linux", "windows"]);
        let still_there = replaced("windows", Some("set"));
        assert_eq!(granted(&[], &[still_there]), ["linux", "windows"]);
    }

    #[test]
    fn a_node_begins_once_its_permit_is_recorded_and_says_what_it_waits_for() {
        let mut asks = node("n", "linux", "drain-a");
        let waits = DisruptionPermit::Waits(WaitReason::Paused);
        assert!(matches!(
            state_of(&asks, Some(&waits)),
            RequestState::Waits(_)
        ));
        let granted = Some(&DisruptionPermit::Granted);
        assert_eq!(state_of(&asks, granted), RequestState::NotYet);
        asks.has_permit = true;
        assert_eq!(state_of(&asks, granted), RequestState::Begins);
        asks.drain_granted = Some("2026-01-01T00:00:00Z".to_owned());
        assert_eq!(state_of(&asks, None), RequestState::Begins, "it goes on");
        let odd = node("n", "linux", "paint-it");
        assert!(matches!(state_of(&odd, None), RequestState::Unknown(_)));
        assert_eq!(
            state_of(&node("n", "linux", ""), None),
            RequestState::NotYet
        );
    }
}

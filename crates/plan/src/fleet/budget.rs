//! Who may be down: only here a node is granted a permit, over a snapshot of its whole pool, so that
//! "never more than the limit at once by our doing" is a property of one pure function.
//!
//! What a node does with its permit is not decided here; see [`crate::fleet::drain`] for one use of it.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_api::field::Field;
pub use evenkeel_api::fleet::max_unavailable::MaxUnavailable;

use crate::fleet::field_problem::FieldProblem;
use crate::fleet::maintenance::Closed;
use crate::fleet::node::{DrainRequest, Node};

/// What a pool's owner allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DisruptionBudget {
    /// How many may be down at once.
    pub max_unavailable: MaxUnavailable,
    /// Whether nobody may begin.
    pub paused: bool,
    /// Whether nobody understands the limit: then nobody may begin either.
    pub unclear: bool,
    /// Why nobody may begin at this moment, as the pool's policy says; for the caller to fill in.
    pub closed: Option<Closed>,
}

impl DisruptionBudget {
    /// What a pool's owner allows, and what is wrong with the limit.
    pub fn of(
        max_unavailable: &Field<MaxUnavailable>,
        paused: &Field<bool>,
    ) -> (Self, Option<FieldProblem>) {
        let problem = match max_unavailable {
            Field::Invalid { why, .. } => Some(FieldProblem {
                field: "spec.maxUnavailable".to_owned(),
                message: why.clone(),
            }),
            Field::Absent | Field::Valid(_) => None,
        };
        let budget = Self {
            max_unavailable: max_unavailable.get().copied().unwrap_or_default(),
            paused: paused.get().copied().unwrap_or_default(),
            unclear: problem.is_some(),
            closed: None,
        };
        (budget, problem)
    }
}

/// The answer to a node that asks for a permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisruptionPermit {
    /// It may be down from now on, until it returns its permit.
    Granted,
    /// Not yet.
    Waits(WaitReason),
}

/// Why a node has to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// The pool is paused.
    Paused,
    /// Nobody understands the pool's limit.
    Unclear,
    /// The pool's policy lets nobody begin now.
    Closed(Closed),
    /// As many are down as may be.
    Full {
        /// The limit.
        limit: usize,
        /// Who is down, or has a permit to be: the first few.
        down: Vec<String>,
    },
    /// As many of its MachineSet do not serve as may be.
    SetFull {
        /// The MachineSet.
        set: String,
        /// The limit.
        limit: usize,
        /// Who does not serve: the first few.
        down: Vec<String>,
    },
    /// Nobody understands the limit of its MachineSet.
    SetUnclear {
        /// The MachineSet.
        set: String,
        /// What is wrong with it.
        why: String,
    },
    /// Its MachineSet is to have fewer Machines than there are: it would not be replaced.
    SetShrinks {
        /// The MachineSet.
        set: String,
    },
    /// Its MachineSet is not there any more: it would not be replaced.
    SetGone {
        /// The MachineSet.
        set: String,
    },
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the pool is paused"),
            Self::Unclear => f.write_str("the pool's maxUnavailable is not valid"),
            Self::Closed(why) => why.fmt(f),
            Self::Full { limit, down } => {
                write!(f, "{} and maxUnavailable is {limit}", are_unavailable(down))
            }
            Self::SetFull { set, limit, down } => write!(
                f,
                "MachineSet {set} has reached its limit of {limit} unavailable Machines: {}",
                down.join(", ")
            ),
            Self::SetUnclear { set, why } => write!(f, "MachineSet {set}: {why}"),
            Self::SetShrinks { set } => write!(
                f,
                "MachineSet {set} is scaling down to fewer Machines: it would not replace this one"
            ),
            Self::SetGone { set } => write!(
                f,
                "MachineSet {set} is gone: nothing would replace this Machine"
            ),
        }
    }
}

fn are_unavailable(nodes: &[String]) -> String {
    match nodes {
        [node] => format!("node {node} is unavailable"),
        nodes => format!("nodes {} are unavailable", nodes.join(", ")),
    }
}

/// How many names are given in a sentence.
const NAMES: usize = 5;

/// How far the budget of a pool is used: who has a permit, and whether there is another. Whoever lets a node go down, or
/// lets it begin with what will take it down, asks here.
#[derive(Debug)]
pub struct BudgetUsage<'a> {
    limit: usize,
    closed: Option<WaitReason>,
    /// How many have a permit.
    held: usize,
    /// How many of these a node that is down waits for.
    held_before_down: usize,
    /// Who is down or has a permit, whoever's doing it is.
    down: Vec<&'a str>,
}

impl<'a> BudgetUsage<'a> {
    /// The usage of the budget of `pool`, of which `holds` says who has a permit already.
    pub fn of(budget: DisruptionBudget, pool: &[&'a Node], holds: impl Fn(&Node) -> bool) -> Self {
        let closed = match budget {
            DisruptionBudget { paused: true, .. } => Some(WaitReason::Paused),
            DisruptionBudget { unclear: true, .. } => Some(WaitReason::Unclear),
            DisruptionBudget { closed, .. } => closed.map(WaitReason::Closed),
        };
        let down = pool.iter().filter(|node| holds(node) || !node.ready);
        let held = pool.iter().filter(|node| holds(node)).count();
        Self {
            limit: budget.max_unavailable.of(pool.len()),
            closed,
            held,
            held_before_down: held,
            down: down.map(|node| node.name.as_str()).collect(),
        }
    }

    /// The same, where `away` have a permit and are no nodes now: others are made in their stead. They count for no
    /// share of the pool.
    #[must_use]
    pub fn counting(mut self, away: &[&'a str]) -> Self {
        self.held += away.len();
        self.held_before_down += away.len();
        self.down.extend(away);
        self
    }

    /// The same, where a node that is down waits for none of `waiting`: they have begun, and cannot go on before it is
    /// back.
    #[must_use]
    pub fn behind_nodes_that_are_down(mut self, waiting: usize) -> Self {
        self.held_before_down = self.held_before_down.saturating_sub(waiting);
        self
    }

    /// How many may be down at once.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Asks for a permit for `node`, which has none. One that is down already takes nothing from anyone,
    /// as long as no more have a permit than the limit.
    pub fn ask(&mut self, node: &'a Node) -> DisruptionPermit {
        if let Some(why) = &self.closed {
            return DisruptionPermit::Waits(why.clone());
        }
        if !node.ready && self.held_before_down < self.limit {
            self.held += 1;
            self.held_before_down += 1;
            return DisruptionPermit::Granted;
        }
        if node.ready && self.held < self.limit && self.down.len() < self.limit {
            self.held += 1;
            self.down.push(&node.name);
            return DisruptionPermit::Granted;
        }
        self.full(node)
    }

    /// Asks for `node`, which has a permit, to use it for one thing more: not while more have one than the
    /// limit.
    pub fn use_again(&self, node: &Node) -> DisruptionPermit {
        match &self.closed {
            Some(why) => DisruptionPermit::Waits(why.clone()),
            None if self.held <= self.limit => DisruptionPermit::Granted,
            None => self.full(node),
        }
    }

    /// Asks for a node that is down, and comes back only by going on: others may wait for just that, however many have a
    /// permit. It began already, so no window need be open.
    pub fn go_on(&self) -> DisruptionPermit {
        match &self.closed {
            None | Some(WaitReason::Closed(_)) => DisruptionPermit::Granted,
            Some(why) => DisruptionPermit::Waits(why.clone()),
        }
    }

    /// Asks for a node that our record has a permit for. One that was not told so yet has not begun: where the window has
    /// closed meanwhile, it waits for the next one.
    pub fn use_recorded(&self, node: &Node) -> DisruptionPermit {
        match &self.closed {
            Some(why @ WaitReason::Closed(_)) if !node.claims_permit() => {
                DisruptionPermit::Waits(why.clone())
            }
            _ => DisruptionPermit::Granted,
        }
    }

    fn full(&self, node: &Node) -> DisruptionPermit {
        let others = self.down.iter().filter(|name| **name != node.name);
        let down = others.take(NAMES).map(ToString::to_string).collect();
        let limit = self.limit;
        DisruptionPermit::Waits(WaitReason::Full { limit, down })
    }
}

/// Whether a node is down, or may be, by our doing: our record says so, or what is written on it. Whose cordon it is says
/// nothing of the kind.
pub fn holds_permit(node: &Node) -> bool {
    node.has_permit || node.claims_permit()
}

/// Answers every node of one pool that asks for a drain and has no permit yet. A node that our record has a permit for
/// goes on; one that only says so itself is asked about like any other.
///
/// Those that are down already come first, because their permit takes nothing from anyone; then the
/// oldest, then by name. A node that is not ready counts as down, whoever's doing it is. As long as
/// the limit does not shrink, no more nodes than the limit ever have a permit at once, and no ready node
/// gets it while the limit is used up.
pub fn answer(budget: DisruptionBudget, pool: &[&Node]) -> BTreeMap<String, DisruptionPermit> {
    answer_counting(budget, pool, &[])
}

/// The same, where `away` have a permit and are no nodes now.
pub fn answer_counting(
    budget: DisruptionBudget,
    pool: &[&Node],
    away: &[&str],
) -> BTreeMap<String, DisruptionPermit> {
    let mut asking: Vec<&&Node> = pool
        .iter()
        .filter(|node| {
            let may_go_on = node.claims_permit() && node.has_permit;
            matches!(node.request(), DrainRequest::Drain(_)) && !may_go_on
        })
        .collect();
    if asking.is_empty() {
        return BTreeMap::new();
    }
    asking.sort_by_key(|node| {
        let name = node.name.as_str();
        (
            !node.has_permit,
            !holds_permit(node),
            node.ready,
            node.created,
            name,
        )
    });
    let mut usage = BudgetUsage::of(budget, pool, holds_permit).counting(away);
    let answers = asking.into_iter().map(|node| {
        let permit = if node.has_permit {
            usage.use_recorded(node)
        } else if holds_permit(node) {
            // It was granted before there was a record, or the record is lost, or it claims what is not so: it holds a
            // permit, and gets no second one.
            usage.use_again(node)
        } else {
            usage.ask(node)
        };
        (node.name.clone(), permit)
    });
    answers.collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_api::names::cordon;
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, age: i64) -> Node {
        Node {
            name: name.to_owned(),
            created: Timestamp::from_second(1_000_000 - age).unwrap(),
            ready: true,
            ..Node::default()
        }
    }

    fn asking(name: &str, age: i64) -> Node {
        Node {
            desired_drain: Some("drain-new".to_owned()),
            ..node(name, age)
        }
    }

    fn granted(budget: DisruptionBudget, pool: &[Node]) -> Vec<String> {
        let pool: Vec<_> = pool.iter().collect();
        let answers = answer(budget, &pool).into_iter();
        let granted = answers.filter(|(_, permit)| *permit == DisruptionPermit::Granted);
        granted.map(|(name, _)| name).collect()
    }

    #[test]
    fn the_oldest_that_asks_is_first_and_the_others_hear_for_whom_they_wait() {
        let pool = [asking("a", 1), asking("b", 9), node("c", 99)];
        assert_eq!(granted(DisruptionBudget::default(), &pool), ["b"]);
        let pool: Vec<_> = pool.iter().collect();
        let answers = answer(DisruptionBudget::default(), &pool);
        let DisruptionPermit::Waits(why) = &answers["a"] else {
            panic!("{answers:?}");
        };
        assert_eq!(
            why.to_string(),
            "node b is unavailable and maxUnavailable is 1"
        );
        assert!(!answers.contains_key("c"));
    }

    #[test]
    fn a_node_that_is_down_keeps_the_others_waiting_and_not_itself() {
        let broken = |node: Node| Node {
            ready: false,
            ..node
        };
        let pool = [asking("a", 9), broken(node("b", 1))];
        assert_eq!(granted(DisruptionBudget::default(), &pool), [""; 0]);
        let pool = [asking("a", 9), broken(asking("b", 1))];
        assert_eq!(granted(DisruptionBudget::default(), &pool), ["b"]);
    }

    #[test]
    fn nobody_begins_in_a_paused_pool() {
        let paused = DisruptionBudget {
            paused: true,
            ..DisruptionBudget::default()
        };
        assert_eq!(granted(paused, &[asking("a", 1)]), [""; 0]);
    }

    /// Covers T01.
    #[test]
    fn outside_a_window_nobody_begins_and_who_has_begun_goes_on() {
        let closed = DisruptionBudget {
            closed: Some(Closed::Window { opens: None }),
            ..DisruptionBudget::default()
        };
        assert_eq!(granted(closed, &[asking("a", 1)]), [""; 0]);
        let broken = Node {
            ready: false,
            ..asking("a", 1)
        };
        assert_eq!(granted(closed, &[broken]), [""; 0]);
        // Its permit was recorded before the window closed, and nobody has told it so yet.
        let recorded = Node {
            has_permit: true,
            ..asking("a", 1)
        };
        assert_eq!(granted(closed, std::slice::from_ref(&recorded)), [""; 0]);
        let begun = Node {
            drain_granted: Some("2026-01-01T00:00:00Z".to_owned()),
            ..recorded
        };
        let pool = [&begun];
        let usage = BudgetUsage::of(closed, &pool, holds_permit);
        assert_eq!(usage.use_recorded(&begun), DisruptionPermit::Granted);
        assert_eq!(usage.go_on(), DisruptionPermit::Granted);
    }

    /// Covers S08.
    #[test]
    fn what_a_node_says_of_itself_grants_it_nothing_in_a_paused_or_full_pool() {
        let claims = |node: Node| Node {
            cordoned_by: Some(cordon::DRAIN.to_owned()),
            unschedulable: true,
            ..node
        };
        let claims_more = |node: Node| Node {
            drain_granted: Some("2026-01-01T00:00:00Z".to_owned()),
            ..claims(node)
        };
        let paused = DisruptionBudget {
            paused: true,
            ..DisruptionBudget::default()
        };
        let down = Node {
            has_permit: true,
            ..node("b", 9)
        };
        for liar in [claims(asking("a", 1)), claims_more(asking("a", 1))] {
            assert_eq!(granted(paused, std::slice::from_ref(&liar)), [""; 0]);
            let pool = [liar.clone(), down.clone()];
            assert_eq!(
                granted(DisruptionBudget::default(), &pool),
                [""; 0],
                "{liar:?}"
            );
            // What our own record says is kept, also in a paused pool.
            let told = Node {
                has_permit: true,
                drain_granted: None,
                ..liar
            };
            assert_eq!(granted(paused, &[told]), ["a"]);
        }
        // A cordon by whomever takes no permit from others.
        let pool = [claims(node("a", 1)), asking("b", 1)];
        assert_eq!(granted(DisruptionBudget::default(), &pool), ["b"]);
    }

    prop_compose! {
        fn any_node()(
            age in 0..4i64,
            ready in any::<bool>(),
            desired in prop::option::of(prop::sample::select(vec!["drain-a", "drain-b", "uncordon-a", "rubbish"])),
            answered in prop::option::of(prop::sample::select(vec!["drain-a", "uncordon-a"])),
            granted in prop::option::weighted(0.2, Just("1970-01-01T00:00:00Z")),
            has_permit in prop::bool::weighted(0.2),
            cordoned in prop::option::weighted(0.2, prop::sample::select(vec![cordon::DRAIN, "someone"])),
        ) -> Node {
            Node {
                ready,
                has_permit,
                desired_drain: desired.map(str::to_owned),
                last_applied_drain: answered.map(str::to_owned),
                drain_granted: granted.map(str::to_owned),
                cordoned_by: cordoned.map(str::to_owned),
                ..node("", age)
            }
        }
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_have_a_permit_and_no_ready_node_goes_down_beyond_it(
            nodes in prop::collection::vec(any_node(), 0..12),
            max in prop_oneof![(0..5u32).prop_map(MaxUnavailable::Count), (0..=100u32).prop_map(MaxUnavailable::Percent)],
            paused in any::<bool>(),
        ) {
            let nodes: Vec<_> = nodes.into_iter().enumerate()
                .map(|(number, node)| Node { name: format!("n{number}"), ..node })
                .collect();
            let budget = DisruptionBudget { max_unavailable: max, paused, ..DisruptionBudget::default() };
            let limit = max.of(nodes.len());
            let ours = |node: &Node| node.claims_permit() || node.has_permit;
            let new = granted(budget, &nodes);
            let after: Vec<_> = nodes.iter().map(|node| {
                let granted = new.contains(&node.name).then(|| "1970-01-01T00:00:00Z".to_owned());
                let has_permit = node.has_permit || granted.is_some();
                Node { drain_granted: granted.or(node.drain_granted.clone()), has_permit, ..node.clone() }
            }).collect();
            let count = |nodes: &[Node], what: &dyn Fn(&Node) -> bool| nodes.iter().filter(|it| what(it)).count();
            let down = |node: &Node| ours(node) || !node.ready;
            prop_assert!(count(&after, &ours) <= limit.max(count(&nodes, &ours)));
            prop_assert!(count(&after, &down) <= limit.max(count(&nodes, &down)));
            // Whoever was granted has a permit now and asks no more; the rest still waits.
            prop_assert_eq!(granted(budget, &after), Vec::<String>::new());
            // Somebody gets on, if anybody may.
            let waits = nodes.iter().any(|it| matches!(it.request(), DrainRequest::Drain(_)) && !ours(it));
            if waits && !paused && count(&nodes, &down) < limit {
                prop_assert!(!new.is_empty());
            }
        }
    }
}

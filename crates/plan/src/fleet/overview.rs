//! The fleet as people want to see it: every pool and node, its state, what it waits for, and who
//! would go when. Nothing is decided here: it is read off what [`rollout`] and [`budget`] decide.

use std::fmt;

use evenkeel_api::machine::node_state::NodeState;

use crate::fleet::budget::{self, DisruptionPermit};
use crate::fleet::node::{DrainRequest, Node};
use crate::fleet::pool::{Assignment, Pool};
use crate::fleet::rollout::{self, NodeRollout, PoolCounts, Rollout, RolloutState};

/// How a node is, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeProgress {
    /// It cannot go on.
    Degraded,
    /// Its kubelet is not well.
    NotReady,
    /// Its pods are leaving.
    Draining,
    /// Somebody else tells it what to run.
    Foreign,
    /// Its agent is at work.
    Updating,
    /// It waits for something.
    Waiting,
    /// It is as it should be.
    Done,
}

impl fmt::Display for NodeProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Degraded => "Degraded",
            Self::NotReady => "NotReady",
            Self::Draining => "Draining",
            Self::Foreign => "Foreign",
            Self::Updating => "Updating",
            Self::Waiting => "Waiting",
            Self::Done => "Done",
        })
    }
}

/// A node of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView<'a> {
    /// The node.
    pub node: &'a Node,
    /// How it is.
    pub state: NodeProgress,
    /// What it waits for, or what is wrong with it; empty if nothing is.
    pub waits_for: String,
}

/// A pool with its nodes, in the order in which they go.
#[derive(Debug)]
pub struct PoolView<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// What is decided for it.
    pub rollout: Rollout<'a>,
    /// How many nodes are how.
    pub counts: PoolCounts,
    /// Its nodes.
    pub nodes: Vec<NodeView<'a>>,
    /// Nodes that other pools have the same right to, with those pools.
    pub torn: Vec<(&'a str, Vec<&'a str>)>,
}

/// Says of nodes that wait that nobody does anything for them: OpenShift's operator has the work.
pub fn idle(views: &mut [PoolView<'_>]) {
    let nodes = views.iter_mut().flat_map(|it| &mut it.nodes);
    for node in nodes.filter(|it| it.state == NodeProgress::Waiting) {
        "nothing: OpenShift's operator manages this node".clone_into(&mut node.waits_for);
    }
}

/// All pools, in the order in which they are given.
pub fn view<'a>(pools: &'a [Pool], assignment: &Assignment<'a>) -> Vec<PoolView<'a>> {
    let members = pools.iter().zip(&assignment.members);
    members
        .map(|(pool, members)| {
            let rollout = rollout::plan(pool, members);
            let permits = budget::answer(pool.budget, members);
            let nodes = rollout.rollouts.iter().map(|rollout| {
                let (state, waits_for) = standing(rollout, permits.get(&rollout.node.name));
                NodeView {
                    node: rollout.node,
                    state,
                    waits_for,
                }
            });
            PoolView {
                pool,
                nodes: nodes.collect(),
                counts: PoolCounts::of(&rollout),
                rollout,
                torn: assignment.torn_from(&pool.name),
            }
        })
        .collect()
}

fn standing(
    rollout: &NodeRollout<'_>,
    permit: Option<&DisruptionPermit>,
) -> (NodeProgress, String) {
    let node = rollout.node;
    if let Some(why) = node.desired().refusal().filter(|_| node.is_foreign()) {
        return (NodeProgress::Foreign, why);
    }
    match &rollout.state {
        RolloutState::Failing(why) | RolloutState::Held(why) => {
            (NodeProgress::Degraded, why.clone())
        }
        RolloutState::Updated if node.is_degraded() => (
            NodeProgress::Degraded,
            node.reason.clone().unwrap_or_default(),
        ),
        RolloutState::Updated if !node.ready => (
            NodeProgress::NotReady,
            "the kubelet to become ready".to_owned(),
        ),
        RolloutState::Updated if matches!(node.request(), DrainRequest::Uncordon(_)) => (
            NodeProgress::Updating,
            "the operator to uncordon it".to_owned(),
        ),
        RolloutState::Updated if node.unschedulable && node.cordoned_by.is_none() => (
            NodeProgress::Done,
            "cordoned, but not by Evenkeel".to_owned(),
        ),
        RolloutState::Updated => (NodeProgress::Done, String::new()),
        RolloutState::Moving => moving(node, permit),
        RolloutState::Next => (
            NodeProgress::Waiting,
            "the operator to assign its new configuration".to_owned(),
        ),
        RolloutState::Waits(why) => (NodeProgress::Waiting, why.to_string()),
        RolloutState::WaitsForZone(zone) if zone.is_empty() => {
            (NodeProgress::Waiting, "nodes without a zone".to_owned())
        }
        RolloutState::WaitsForZone(zone) => (NodeProgress::Waiting, format!("zone {zone}")),
        RolloutState::Stopped => (NodeProgress::Waiting, "the rollout has stopped".to_owned()),
        RolloutState::NoTarget => (
            NodeProgress::Waiting,
            "the pool has no configuration yet".to_owned(),
        ),
    }
}

/// A node that was told to go to the pool's configuration, and is not there.
fn moving(node: &Node, permit: Option<&DisruptionPermit>) -> (NodeProgress, String) {
    match (node.request(), permit) {
        (DrainRequest::Drain(_), Some(DisruptionPermit::Waits(why))) => {
            (NodeProgress::Waiting, why.to_string())
        }
        (DrainRequest::Drain(_), _) if node.claims_permit() => {
            let since = node.drain_granted.as_deref().unwrap_or_default();
            let why = node.reason.as_deref().filter(|why| !why.is_empty());
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            (
                NodeProgress::Draining,
                format!("its pods to leave (since {since}){why}"),
            )
        }
        (DrainRequest::Drain(_), _) => {
            (NodeProgress::Waiting, "the operator to drain it".to_owned())
        }
        _ if !node.ready => (
            NodeProgress::Updating,
            "the node to become ready again".to_owned(),
        ),
        _ => (
            NodeProgress::Updating,
            "its agent to apply the configuration".to_owned(),
        ),
    }
}

/// Who would go when, if every node that goes comes back well.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forecast {
    /// The names of nodes that go at the same time, wave by wave.
    pub waves: Vec<Vec<String>>,
    /// Nodes that would come after those waves; they were not looked at one by one.
    pub later: Vec<String>,
    /// Nodes that would not go, and what holds them.
    pub held: Vec<(String, RolloutState)>,
}

/// Plays the rollout of `pool` on `nodes`, for at most `most` waves.
pub fn forecast(pool: &Pool, nodes: &[&Node], most: usize) -> Forecast {
    let mut nodes: Vec<Node> = nodes.iter().map(|node| (*node).clone()).collect();
    let mut forecast = Forecast::default();
    loop {
        let borrowed: Vec<&Node> = nodes.iter().collect();
        let rollout = rollout::plan(pool, &borrowed);
        let going = |rollout: &&NodeRollout<'_>| {
            matches!(rollout.state, RolloutState::Next | RolloutState::Moving)
        };
        let named = |rollout: &NodeRollout<'_>| rollout.node.name.clone();
        let wave: Vec<String> = rollout.rollouts.iter().filter(going).map(named).collect();
        let rest = rollout
            .rollouts
            .iter()
            .filter(|rollout| rollout.state != RolloutState::Updated);
        if wave.is_empty() {
            let held = rest.map(|rollout| (named(rollout), rollout.state.clone()));
            forecast.held = held.collect();
            return forecast;
        }
        if forecast.waves.len() == most {
            forecast.later = rest.map(named).collect();
            return forecast;
        }
        drop(rollout);
        for node in &mut nodes {
            if wave.contains(&node.name) {
                arrive(node, pool.target.as_deref());
            }
        }
        forecast.waves.push(wave);
    }
}

/// What a node is like that has got there.
fn arrive(node: &mut Node, target: Option<&str>) {
    let target = target.map(str::to_owned);
    node.desired_config.clone_from(&target);
    node.voucher.clone_from(&target);
    node.current_config = target;
    node.state = Some(NodeState::Done);
    node.reason = None;
    node.drain_granted = None;
    node.desired_drain = None;
    node.last_applied_drain = None;
    if node.cordoned_by.take().is_some() {
        node.unschedulable = false;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn pool(limit: u32) -> Pool {
        let spec = json!({
            "nodeSelector": {}, "maxUnavailable": limit, "configuration": { "name": "new" },
        });
        Pool::read(
            "worker",
            &BTreeMap::new(),
            &serde_json::from_value(spec).unwrap(),
        )
    }

    fn node(name: &str) -> Node {
        Node {
            name: name.to_owned(),
            ready: true,
            desired_config: Some("old".to_owned()),
            voucher: Some("old".to_owned()),
            current_config: Some("old".to_owned()),
            state: Some(NodeState::Done),
            ..Node::default()
        }
    }

    fn told(name: &str) -> Node {
        Node {
            desired_config: Some("new".to_owned()),
            voucher: Some("new".to_owned()),
            ..node(name)
        }
    }

    fn seen(pool: &Pool, nodes: &[Node]) -> Vec<String> {
        let pools = [pool.clone()];
        let assignment = Assignment::of(&pools, nodes);
        let views = view(&pools, &assignment);
        let lines = views[0].nodes.iter();
        lines
            .map(|it| format!("{} {}: {}", it.node.name, it.state, it.waits_for))
            .collect()
    }

    #[test]
    fn every_node_says_what_it_waits_for() {
        let asks = |name| Node {
            desired_drain: Some("drain-new".to_owned()),
            ..told(name)
        };
        let nodes = [
            Node {
                drain_granted: Some("2026-01-01T00:00:00Z".to_owned()),
                cordoned_by: Some("drain".to_owned()),
                ..asks("a")
            },
            asks("b"),
            node("c"),
            Node {
                current_config: Some("new".to_owned()),
                ..told("d")
            },
            told("e"),
        ];
        assert_eq!(
            seen(&pool(2), &nodes),
            [
                "a Draining: its pods to leave (since 2026-01-01T00:00:00Z)",
                "b Waiting: the operator to drain it",
                "c Waiting: nodes a, b, e are unavailable and maxUnavailable is 2",
                "d Done: ",
                "e Updating: its agent to apply the configuration",
            ]
        );
        let foreign = Node {
            voucher: None,
            ..told("a")
        };
        let [said] = &seen(&pool(1), &[foreign])[..] else {
            panic!("one node is one line");
        };
        assert!(
            said.starts_with("a Foreign: desiredConfig new is foreign"),
            "{said}"
        );
        let degraded = Node {
            state: Some(NodeState::Degraded),
            reason: Some("no such section".to_owned()),
            ..told("a")
        };
        assert_eq!(
            seen(&pool(1), &[degraded, node("b")]),
            [
                "a Degraded: no such section",
                "b Waiting: the rollout has stopped"
            ]
        );
    }

    #[test]
    fn the_forecast_goes_wave_by_wave_and_names_who_is_held() {
        let nodes = [node("a"), node("b"), node("c"), node("d"), node("e")];
        let nodes: Vec<_> = nodes.iter().collect();
        let waves = |forecast: &Forecast| -> Vec<String> {
            forecast.waves.iter().map(|wave| wave.join(" ")).collect()
        };
        let all = forecast(&pool(2), &nodes, 10);
        assert_eq!(waves(&all), ["a b", "c d", "e"]);
        assert!(all.later.is_empty() && all.held.is_empty());
        let some = forecast(&pool(2), &nodes, 1);
        assert_eq!(waves(&some), ["a b"]);
        assert_eq!(some.later, ["c", "d", "e"]);
        let held = Node {
            state: Some(NodeState::Degraded),
            reason: Some("drift".to_owned()),
            ..node("b")
        };
        let with_held = forecast(&pool(5), &[nodes[0], &held], 10);
        assert_eq!(waves(&with_held), ["a"]);
        assert_eq!(
            with_held.held,
            [("b".to_owned(), RolloutState::Held("drift".to_owned()))]
        );
    }
}

//! A fleet of Windows nodes with everybody who writes on them: the operator's plan, the drain controller, hands on
//! machines, agents, and people who should not.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::annotation;
use evenkeel_api::windows::version::Version;
use evenkeel_api::windows::windows_pool::UpdatingNode;
use evenkeel_plan::fleet::budget::{self, DisruptionBudget, DisruptionPermit, MaxUnavailable};
use evenkeel_plan::fleet::drain::{self, Next};
use evenkeel_plan::fleet::node::{Node, NodePatch, WindowsFacts};
use evenkeel_plan::machine::phase::Drain;
use evenkeel_plan::windows::instances::UpgradeStage;
use evenkeel_plan::windows::upgrade::in_place::{Supplied, hands_on};
use evenkeel_plan::windows::upgrade::{Backing, UpgradeContext};
use evenkeel_plan::windows::windows_pool::removal::{Removal, is_cleared};
use evenkeel_plan::windows::windows_pool::{
    Grant, WindowsNodeState, WindowsPool, WindowsRollout, plan,
};
use jiff::Timestamp;

/// What an agent asks for that wants to boot.
const BOOT: &str = "drain-boot";

const SOMEBODY: &str = "drain-of-somebody";

/// A version by its number.
#[expect(clippy::unwrap_used, reason = "it is a version")]
pub(crate) fn version(number: u8) -> Grant {
    Grant {
        version: format!("1.{number}.0-abc1234").parse().unwrap(),
        hash: format!("hash-{number}"),
    }
}

pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) pool: WindowsPool,
    pub(crate) target: Grant,
    /// The pool's status: what was granted.
    pub(crate) granted: Vec<UpdatingNode>,
    pub(crate) context: UpgradeContext,
    /// The agent that each machine has: the version that it can bring its node to.
    agents: BTreeMap<String, Version>,
    /// The version whose services do not start.
    pub(crate) broken: Option<Version>,
    /// Nodes whose instances are listed no more.
    pub(crate) delisted: BTreeSet<String>,
    /// Those of them whose agents were stopped for that.
    going: BTreeSet<String>,
}

fn apply(node: &mut Node, change: &NodePatch) {
    *node = change.made_to(node);
    // The answer is not among what a plan looks at after a change.
    if let Some(value) = change.annotations.get(annotation::DRAIN_GRANTED) {
        node.drain_granted.clone_from(value);
    }
    // The record is as the node says: how it comes to that is another test's.
    node.has_permit = node.claims_permit();
}

impl World {
    /// So many nodes at version 1, of which so many may be down at once.
    pub(crate) fn new(size: usize, limit: MaxUnavailable) -> Self {
        let first = version(1);
        let nodes: Vec<Node> = (0..size)
            .map(|number| Node {
                name: format!("win-{number:04}"),
                os: Some("windows".to_owned()),
                ready: true,
                windows: Some(Box::new(WindowsFacts {
                    version: Some(first.version.clone().into()),
                    current_services: Some(first.hash.clone()),
                    desired_version: Some(first.version.clone().into()),
                    desired_services: Some(first.hash.clone()),
                    ..WindowsFacts::default()
                })),
                ..Node::default()
            })
            .collect();
        let backing = nodes.iter().map(|it| (it.name.clone(), Backing::Listed));
        Self {
            context: UpgradeContext {
                backing: backing.collect(),
                removals: Some(BTreeSet::new()),
                now: Timestamp::UNIX_EPOCH,
                ..UpgradeContext::default()
            },
            agents: nodes
                .iter()
                .map(|it| (it.name.clone(), first.version.clone()))
                .collect(),
            pool: WindowsPool {
                budget: DisruptionBudget {
                    max_unavailable: limit,
                    ..DisruptionBudget::default()
                },
                ..WindowsPool::default()
            },
            target: version(2),
            granted: Vec::new(),
            broken: None,
            delisted: BTreeSet::new(),
            going: BTreeSet::new(),
            nodes,
        }
    }

    /// OpenShift's operator made this node: it has none of our agents.
    pub(crate) fn made_by_wmco(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let version = Some("10.20.1-4bd2d8b".to_owned().into());
        node.windows = Some(Box::new(WindowsFacts {
            version: version.clone(),
            desired_version: version,
            wmco_key: Some("1f3a".to_owned()),
            ..WindowsFacts::default()
        }));
        self.agents.remove(&node.name);
    }

    pub(crate) fn limit(&self) -> usize {
        self.pool.budget.max_unavailable.of(self.nodes.len())
    }

    fn at(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|it| it.name == name)
    }

    /// What the operator decides now.
    pub(crate) fn round(&self) -> WindowsRollout<'_> {
        let all: Vec<&Node> = self.nodes.iter().collect();
        plan(
            &self.pool,
            Some(&self.target),
            &self.granted,
            &all,
            &self.context,
        )
    }

    /// The operator looks, writes on nodes what the status says already, and then the status. One that is killed
    /// in between has not written the status.
    pub(crate) fn operate(&mut self, is_killed: bool) -> Vec<String> {
        let round = self.round();
        let begins = [
            WindowsNodeState::Next,
            WindowsNodeState::Removal(Removal::Next),
        ];
        let begun = round
            .rollouts
            .iter()
            .filter(|it| begins.contains(&it.state));
        let begun = begun.map(|it| it.node.name.clone()).collect();
        let writes: Vec<_> = round
            .writes
            .iter()
            .map(|(node, change)| (node.name.clone(), change.clone()))
            .collect();
        let updating = round.updating;
        for (name, change) in writes {
            if let Some(at) = self.at(&name) {
                apply(&mut self.nodes[at], &change);
            }
        }
        if !is_killed {
            self.granted = updating;
        }
        begun
    }

    /// The drain controller gives leave and drains, as far as it gets in one go.
    pub(crate) fn drain(&mut self) {
        for node in &mut self.nodes {
            node.has_permit = node.claims_permit();
        }
        let all: Vec<&Node> = self.nodes.iter().collect();
        let answers = budget::answer(self.pool.budget, &all);
        for node in &mut self.nodes {
            match drain::next(node) {
                Next::AskForPermit
                    if answers.get(&node.name) == Some(&DisruptionPermit::Granted) =>
                {
                    let (change, _) = drain::grant(node, Timestamp::UNIX_EPOCH);
                    apply(node, &change);
                }
                Next::Write(change, _) | Next::Mark(change) => apply(node, &change),
                Next::Evict => node.last_applied_drain.clone_from(&node.desired_drain),
                Next::AskForPermit | Next::Nothing | Next::Unknown(_) => {}
            }
        }
    }

    /// Hands on the machine of a node, if that is due: whether anything was done.
    pub(crate) fn supply(&mut self, at: usize) -> bool {
        let target = self.target.clone();
        let node = &mut self.nodes[at];
        let entry = self.granted.iter().find(|it| it.node == node.name);
        if entry.is_none_or(|it| it.to != target.version)
            || hands_on(node, &target.version) != Some(UpgradeStage::Supply)
        {
            return false;
        }
        assert!(
            node.claims_permit(),
            "hands on a machine that serves: {node:?}"
        );
        // Its kubelet is down from here on, and its old agent is gone.
        node.ready = false;
        self.agents
            .insert(node.name.clone(), target.version.clone());
        let supplied = Supplied {
            grant: target,
            at: self.context.now,
        };
        if let Some(windows) = &mut node.windows {
            windows.supplied = Some(supplied.to_string());
        }
        true
    }

    /// Somebody takes the instance of a node out of the list, or puts it back. Whose agent was stopped goes anyway.
    pub(crate) fn list(&mut self, at: usize, is_listed: bool) {
        let name = &self.nodes[at].name;
        if !is_listed {
            self.delisted.insert(name.clone());
        } else if !self.going.contains(name) {
            self.delisted.remove(name);
        }
        self.know();
    }

    /// The operator knows who is listed.
    pub(crate) fn know(&mut self) {
        self.context.removals = Some(self.delisted.clone());
    }

    /// Hands on the machine of a node that is listed no more, if its pods have left: first its agent goes, then its Node.
    pub(crate) fn take_out(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let entry = self.granted.iter().find(|it| it.node == node.name);
        if self.going.contains(&node.name) {
            self.nodes.remove(at);
        } else if self.delisted.contains(&node.name) && is_cleared(entry, node) {
            assert!(
                node.claims_permit() && node.unschedulable,
                "it serves: {node:?}"
            );
            node.ready = false;
            self.going.insert(node.name.clone());
        }
    }

    /// The agent of a node brings it to what it is told, if it is the agent of that version.
    pub(crate) fn agent(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if self.going.contains(&node.name) {
            return;
        }
        let (Some(can), Some(windows)) = (self.agents.get(&node.name), &mut node.windows) else {
            return;
        };
        let hash = windows.desired_services.clone().unwrap_or_default();
        if !windows.is_told(can) || hash != format!("hash-{}", can.minor) {
            node.state = Some(NodeState::Degraded);
            node.reason = Some("there are no such services".to_owned());
            return;
        }
        if self.broken.as_ref() == Some(can) {
            node.state = Some(NodeState::Degraded);
            node.reason = Some("service network: is stopped".to_owned());
            return;
        }
        windows.version = Some(can.clone().into());
        windows.current_services = Some(hash);
        // A request that is nobody's it takes back.
        if node.desired_drain.as_deref() == Some(SOMEBODY) {
            node.desired_drain = Some("uncordon-of-somebody".to_owned());
        }
        node.state = None;
        node.reason = None;
        node.ready = true;
    }

    /// The agent of a node asks for a drain of its own, because its proxy has changed; unless it is held for an upgrade.
    pub(crate) fn ask_for_boot(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let asked = node.desired_drain.as_deref();
        if !asked.is_some_and(Drain::is_by_operator) {
            node.desired_drain = Some(BOOT.to_owned());
        }
    }

    /// It boots, if its pods have left for that, and lets them in again.
    pub(crate) fn boot(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let asked = node.desired_drain.as_deref() == Some(BOOT);
        if asked && node.last_applied_drain.as_deref() == Some(BOOT) && node.claims_permit() {
            node.desired_drain = Some("uncordon-boot".to_owned());
        }
    }

    /// Somebody writes on a node what is not theirs to write.
    pub(crate) fn tamper(&mut self, at: usize, what: u8) {
        let target = self.target.clone();
        let node = &mut self.nodes[at];
        let held = node
            .desired_drain
            .as_deref()
            .is_some_and(Drain::is_by_operator);
        let Some(windows) = &mut node.windows else {
            return;
        };
        match what {
            0 => windows.desired_version = Some(target.version.into()),
            1 => windows.desired_services = Some(target.hash),
            2 => windows.desired_version = None,
            3 => windows.desired_version = Some("rubbish".to_owned().into()),
            4 => windows.desired_services = None,
            // What an agent asks for itself it asks for again.
            5 if held => node.desired_drain = None,
            6 if held => node.last_applied_drain = None,
            5 | 6 => {}
            7 if held => node.desired_drain = Some(SOMEBODY.to_owned()),
            8 => windows.version = None,
            _ => windows.supplied = None,
        }
    }

    /// Everybody does what they should, once.
    pub(crate) fn calm_round(&mut self) {
        self.operate(false);
        self.drain();
        for at in (0..self.nodes.len()).rev() {
            self.take_out(at);
        }
        for at in 0..self.nodes.len() {
            if !self.supply(at) {
                self.agent(at);
            }
            self.boot(at);
        }
    }

    /// Those that are down by our doing.
    pub(crate) fn down(&self) -> Vec<&str> {
        let down = self.nodes.iter().filter(|it| budget::holds_permit(it));
        down.map(|it| it.name.as_str()).collect()
    }

    /// Whether all run the target and serve, and nothing is left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.granted.is_empty()
            && self.nodes.iter().all(|node| {
                node.windows.as_ref().is_some_and(|it| {
                    it.runs(&self.target.version)
                        && it.current_services.as_ref() == Some(&self.target.hash)
                        && it.supplied.is_none()
                }) && node.ready
                    && !node.unschedulable
                    && !node.claims_permit()
            })
    }
}

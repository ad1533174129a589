//! A pool whose nodes live: agents that work and fail, people who edit, power that goes, an operator
//! that is killed between two writes. The decisions are the real ones.

pub(crate) mod calendar;
pub(crate) mod checker;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::field::Field;
use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::label;
use evenkeel_plan::fleet::budget::{
    DisruptionBudget, DisruptionPermit, MaxUnavailable, answer, holds_permit,
};
use evenkeel_plan::fleet::drain::{self, DrainSettings, Next};
use evenkeel_plan::fleet::node::{Node, NodePatch};
use evenkeel_plan::fleet::policy::{PolicyLookup, PolicyReference, RolloutPolicy};
use evenkeel_plan::fleet::pool::Pool;
use evenkeel_plan::fleet::rollout::{self, is_moving};
use jiff::Timestamp;
use proptest::prelude::*;

use self::calendar::Calendar;
use self::checker::{By, Rules, faults};

/// Something that happens. Numbers are taken modulo the number of nodes.
#[derive(Debug, Clone)]
pub(crate) enum Deed {
    /// The operator decides on the rollout, and is killed after so many writes.
    RollOut { written: usize },
    /// The operator answers drains, and is killed after so many nodes.
    Drain { written: usize },
    /// An agent goes one step on; if it is about to write its configuration, it may fail.
    Agent { at: usize, fails: bool },
    /// An agent that cannot go on returns its permit, so that others need not wait.
    GivesUp { at: usize },
    /// Power, or the kubelet, goes or comes.
    Power { at: usize },
    /// A person cordons, or takes that back.
    Cordon { at: usize },
    /// A person writes another wish on a node.
    Tamper { at: usize },
    /// A person edits a file on a node that is at rest.
    Drift { at: usize },
    /// The pool gets another configuration.
    Retarget { to: u8 },
    /// The pool's owner pauses, or takes that back.
    Pause,
    /// The pool's owner allows this many.
    Limit { to: u32 },
    /// Time passes.
    Passes { minutes: i32 },
    /// Somebody overrides the windows, or takes that back.
    Override,
    /// A node joins.
    Join,
    /// A node goes for good.
    Gone { at: usize },
}

pub(crate) fn any_deed() -> impl Strategy<Value = Deed> {
    let at = 0..64usize;
    prop_oneof![
        6 => prop_oneof![Just(usize::MAX), 0..3usize].prop_map(|written| Deed::RollOut { written }),
        6 => prop_oneof![Just(usize::MAX), 0..3usize].prop_map(|written| Deed::Drain { written }),
        24 => (at.clone(), prop::bool::weighted(0.15)).prop_map(|(at, fails)| Deed::Agent { at, fails }),
        3 => at.clone().prop_map(|at| Deed::GivesUp { at }),
        2 => at.clone().prop_map(|at| Deed::Power { at }),
        1 => at.clone().prop_map(|at| Deed::Cordon { at }),
        1 => at.clone().prop_map(|at| Deed::Tamper { at }),
        1 => at.clone().prop_map(|at| Deed::Drift { at }),
        1 => (0..4u8).prop_map(|to| Deed::Retarget { to }),
        1 => Just(Deed::Pause),
        1 => (1..5u32).prop_map(|to| Deed::Limit { to }),
        4 => (0..2_000i32).prop_map(|minutes| Deed::Passes { minutes }),
        1 => Just(Deed::Override),
        1 => Just(Deed::Join),
        1 => at.prop_map(|at| Deed::Gone { at }),
    ]
}

/// A pool and all that its people have done to it.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Node>,
    /// Cordoned by hand.
    pub(crate) cordoned: BTreeSet<String>,
    /// Machines that boot, with what was written on them before.
    booting: BTreeMap<String, String>,
    pool: Pool,
    /// When its nodes may begin, as it says and as it was read.
    policy: Option<(Calendar, RolloutPolicy)>,
    now: Timestamp,
    zones: usize,
    made: usize,
    /// What was decided last, for people.
    pub(crate) decided: Vec<String>,
}

impl Fleet {
    pub(crate) fn new(nodes: usize, zones: usize, limit: MaxUnavailable) -> Self {
        let mut fleet = Self {
            nodes: Vec::new(),
            cordoned: BTreeSet::new(),
            booting: BTreeMap::new(),
            pool: Pool {
                name: "worker".to_owned(),
                target: Some("rendered-1".to_owned()),
                rendered: (0..4).map(|number| format!("rendered-{number}")).collect(),
                budget: DisruptionBudget {
                    max_unavailable: limit,
                    ..DisruptionBudget::default()
                },
                ..Pool::default()
            },
            policy: None,
            now: Timestamp::UNIX_EPOCH,
            zones,
            made: 0,
            decided: Vec::new(),
        };
        for number in 0..nodes {
            fleet.join(number % 3 != 0);
        }
        fleet
    }

    /// The same, with windows and freezes.
    pub(crate) fn with_calendar(mut self, calendar: Calendar, now: Timestamp) -> Self {
        let policy = RolloutPolicy::read(&Field::from(calendar.spec()));
        assert_eq!(policy.problems, [], "{calendar:?}");
        self.pool.policy = PolicyReference::to("policy", Some("nights"));
        self.policy = Some((calendar, policy));
        self.now = now;
        self
    }

    /// The pool as its policy lets it be now.
    fn held(&self) -> Pool {
        let policy = self.policy.as_ref();
        let found = policy.map_or(PolicyLookup::Missing, |(_, it)| PolicyLookup::Found(it));
        self.pool.clone().held_to(found, self.now)
    }

    /// Whether a node may begin now, as a person reckons it.
    fn is_closed(&self) -> bool {
        let calendar = self.policy.as_ref().map(|(calendar, _)| calendar);
        self.pool.policy.overridden.is_none() && calendar.is_some_and(|it| !it.is_open(self.now))
    }

    /// The operator sleeps until the next window opens, and wakes when it does.
    pub(crate) fn sleeps_until_open(&mut self) {
        let Some((calendar, policy)) = &self.policy else {
            return;
        };
        if !calendar.is_open(self.now) {
            let opens = policy.calendar.next_change(self.now);
            assert!(
                opens.is_some_and(|it| it > self.now && calendar.is_open(it)),
                "no window opens at {opens:?}"
            );
            self.now = opens.unwrap_or(self.now);
        }
    }

    pub(crate) fn target(&self) -> &str {
        self.pool.target.as_deref().unwrap_or_default()
    }

    /// Everybody runs the pool's configuration, and nobody is down.
    pub(crate) fn is_done(&self) -> bool {
        let target = self.pool.target.as_deref();
        self.nodes.iter().all(|it| {
            it.current_config.as_deref() == target
                && it.desired_config.as_deref() == target
                && !holds_permit(it)
        })
    }

    fn join(&mut self, has_config: bool) {
        self.made += 1;
        let config = has_config.then(|| "rendered-0".to_owned());
        self.nodes.push(Node {
            name: format!("n{}", self.made),
            created: [4, 1, 3, 0, 2].map(moment)[self.made % 5],
            labels: [(label::ZONE, format!("z{}", self.made % self.zones))]
                .into_iter()
                .collect(),
            ready: true,
            state: has_config.then_some(NodeState::Done),
            current_config: config.clone(),
            voucher: config.clone(),
            desired_config: config,
            ..Node::default()
        });
    }

    pub(crate) fn happens(&mut self, deed: &Deed) {
        self.decided.clear();
        match *deed {
            Deed::RollOut { written } => self.roll_out(written),
            Deed::Drain { written } => self.drain(written),
            Deed::Passes { minutes } => self.now += jiff::SignedDuration::from_mins(minutes.into()),
            Deed::Override => {
                let text = self
                    .pool
                    .policy
                    .overridden
                    .is_none()
                    .then_some("jane: CVE-2026-1");
                assert_eq!(self.pool.policy.override_by(text), None);
            }
            Deed::Join => self.join(false),
            Deed::Pause => self.pool.budget.paused ^= true,
            Deed::Limit { to } => self.pool.budget.max_unavailable = MaxUnavailable::Count(to),
            Deed::Retarget { to } => self.pool.target = Some(format!("rendered-{to}")),
            Deed::Gone { at } if self.nodes.len() > 1 => {
                let at = at % self.nodes.len();
                self.nodes.remove(at);
            }
            Deed::Gone { .. } => {}
            Deed::Agent { at, fails } => {
                let at = at % self.nodes.len();
                agent(&mut self.nodes[at], &mut self.booting, fails);
            }
            Deed::GivesUp { at } => {
                let at = at % self.nodes.len();
                let node = &mut self.nodes[at];
                let held = node
                    .desired_drain
                    .as_deref()
                    .and_then(|it| it.strip_prefix("drain-"));
                if node.is_degraded()
                    && node.ready
                    && let Some(target) = held
                {
                    node.desired_drain = Some(format!("uncordon-{target}"));
                }
            }
            Deed::Power { at } => {
                let at = at % self.nodes.len();
                self.nodes[at].ready ^= true;
            }
            Deed::Cordon { at } => {
                let at = at % self.nodes.len();
                let node = &mut self.nodes[at];
                if self.cordoned.remove(&node.name) {
                    node.unschedulable = node.is_cordoned_by_drain();
                } else if !node.unschedulable {
                    node.unschedulable = true;
                    self.cordoned.insert(node.name.clone());
                }
            }
            Deed::Tamper { at } => {
                let node = at % self.nodes.len();
                let node = &mut self.nodes[node];
                node.desired_config = Some("by-hand".to_owned());
                // Some know of the voucher.
                if at % 2 == 0 {
                    node.voucher.clone_from(&node.desired_config);
                }
            }
            Deed::Drift { at } => {
                let at = at % self.nodes.len();
                let node = &mut self.nodes[at];
                if node.current_config.is_some() && !is_moving(node) {
                    node.state = Some(NodeState::Degraded);
                    node.reason = Some("a file differs".to_owned());
                }
            }
        }
    }

    /// What is tried from now on succeeds, and nobody stands in the way.
    pub(crate) fn calms_down(&mut self) {
        self.pool.budget.paused = false;
        self.pool.policy.override_by(None);
        for node in &mut self.nodes {
            node.ready = true;
        }
    }

    /// The pool gets a configuration that nobody has yet. Who is down stays down until it has it: the kubelet is dead, and
    /// the agent is not.
    pub(crate) fn gets_a_cure(&mut self) {
        let cure = "rendered-cure".to_owned();
        self.pool.budget.paused = false;
        self.pool.rendered.insert(cure.clone());
        self.pool.target = Some(cure);
    }

    /// Everybody does their work until all is done, or for long enough.
    pub(crate) fn goes_on(&mut self) {
        for _ in 0..40 * (self.nodes.len() + 2) {
            self.sleeps_until_open();
            self.happens(&Deed::RollOut {
                written: usize::MAX,
            });
            self.happens(&Deed::Drain {
                written: usize::MAX,
            });
            for at in 0..self.nodes.len() {
                self.happens(&Deed::Agent { at, fails: false });
            }
            if self.is_done() {
                break;
            }
        }
    }

    fn limit(&self) -> usize {
        self.pool.budget.max_unavailable.of(self.nodes.len())
    }

    fn write(&mut self, name: &str, change: &NodePatch) {
        for node in self.nodes.iter_mut().filter(|it| it.name == name) {
            *node = change.made_to(node);
            node.has_permit = node.claims_permit();
        }
    }

    /// The record of permits is as the nodes say: how it comes to that is another test's.
    fn record(&mut self) {
        for node in &mut self.nodes {
            node.has_permit = node.claims_permit();
        }
    }

    fn roll_out(&mut self, written: usize) {
        self.record();
        let nodes = self.nodes.clone();
        let nodes: Vec<_> = nodes.iter().collect();
        let pool = self.held();
        let rollout = rollout::plan(&pool, &nodes);
        assert_eq!(
            rollout.rollouts.len(),
            self.nodes.len(),
            "somebody was forgotten"
        );
        for it in &rollout.rollouts {
            self.decided.push(format!("{}: {}", it.node.name, it.state));
        }
        self.decided.extend(rollout.stopped);
        let writes = rollout.writes.into_iter().take(written);
        let writes = writes.map(|(node, patch)| (node.name.clone(), patch));
        self.carry_out(writes.collect(), By::Rollout);
    }

    /// Writes what was decided, provided that the checker has nothing against it.
    fn carry_out(&mut self, writes: Vec<(String, NodePatch)>, by: By) {
        let rules = Rules {
            target: self.target(),
            limit: self.limit(),
            paused: self.pool.budget.paused,
            closed: self.is_closed(),
        };
        let faults = faults(&rules, &self.nodes, &writes, by);
        assert!(
            faults.is_empty(),
            "{by:?}: {faults:#?} in {:#?}",
            self.nodes
        );
        for (name, patch) in writes {
            self.decided
                .push(format!("writes on {name}: {}", shown(&patch)));
            self.write(&name, &patch);
        }
    }

    /// The drain controller, on nodes without pods, whose record has what it grants.
    fn drain(&mut self, written: usize) {
        let now = self.now;
        self.record();
        let nodes = self.nodes.clone();
        let pool: Vec<_> = nodes.iter().collect();
        let answers = answer(self.held().budget, &pool);
        let mut writes = Vec::new();
        for node in nodes.iter().take(written) {
            let change = match drain::next(node) {
                Next::AskForPermit => match &answers[&node.name] {
                    DisruptionPermit::Granted => drain::grant(node, now).0,
                    DisruptionPermit::Waits(why) => {
                        self.decided.push(format!("{}: waiting: {why}", node.name));
                        continue;
                    }
                },
                Next::Write(change, _) | Next::Mark(change) => change,
                Next::Evict => {
                    drain::evict(
                        node,
                        &[],
                        &BTreeMap::default(),
                        DrainSettings::default(),
                        now,
                    )
                    .write
                }
                Next::Nothing | Next::Unknown(_) => continue,
            };
            writes.push((node.name.clone(), change));
        }
        self.carry_out(writes, By::Drain);
    }
}

/// A patch in one line.
fn shown(patch: &NodePatch) -> String {
    let cordon = patch.unschedulable.map(|it| format!("unschedulable={it}"));
    let annotations = patch.annotations.iter().map(|(name, value)| {
        let name = name.rsplit('/').next().unwrap_or_default();
        match value {
            Some(value) => format!("{name}={value}"),
            None => format!("{name} removed"),
        }
    });
    annotations.chain(cordon).collect::<Vec<_>>().join(", ")
}

/// So many seconds after the beginning of time.
fn moment(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or_default()
}

/// One step of an agent, in the order of `plan::phase`. It drains for every configuration, and a machine
/// that boots comes up with what was written, whatever it was told meanwhile.
fn agent(node: &mut Node, booting: &mut BTreeMap<String, String>, fails: bool) {
    let say = |node: &mut Node, state: NodeState, reason: &str| {
        node.state = Some(state);
        node.reason = Some(reason.to_owned());
    };
    if let Some(written) = booting.remove(&node.name) {
        node.ready = true;
        node.current_config = Some(written);
    }
    // What nobody vouches for is not obeyed, and nothing is said about it.
    let Some(desired) = node.desired().vouched().map(str::to_owned) else {
        return;
    };
    let drain = format!("drain-{desired}");
    if desired == "by-hand" {
        say(
            node,
            NodeState::Degraded,
            "MachineConfig by-hand does not exist",
        );
    } else if node.current_config.as_ref() == Some(&desired) {
        say(node, NodeState::Done, "");
        if node
            .desired_drain
            .as_deref()
            .is_some_and(|it| it.starts_with("drain-"))
        {
            node.desired_drain = Some(format!("uncordon-{desired}"));
        }
    } else if node.last_applied_drain.as_ref() != Some(&drain)
        || node.desired_drain.as_ref() != Some(&drain)
    {
        say(node, NodeState::Working, "waits until pods have left");
        node.desired_drain = Some(drain);
    } else if fails {
        say(node, NodeState::Degraded, "the disk is full");
    } else {
        // It writes, and boots.
        assert!(
            holds_permit(node),
            "{} goes down without a permit",
            node.name
        );
        say(node, NodeState::Working, "the machine boots");
        node.ready = false;
        booting.insert(node.name.clone(), desired);
    }
}

//! Machines that are deleted so that their MachineSet makes new ones, which get the new version: how many of a set
//! may be away at once, and who of it goes now. The permit of the pool is asked for besides that, as for every
//! other disruption, in [`crate::fleet::budget`].
//!
//! A Machine that no MachineSet backs would be gone for good: it is never deleted.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::names::{annotation, cordon};
use evenkeel_api::notice::Notice;
use evenkeel_api::windows::version::Version;
use evenkeel_api::windows::windows_pool::{Strategy, UpdatingNode};
use serde_json::Value;

use crate::fleet::budget::{self, BudgetUsage, DisruptionPermit, MaxUnavailable, WaitReason};
use crate::fleet::node::Node;
use crate::windows::upgrade::{UpgradeContext, in_place};
use crate::windows::windows_pool::release::Grant;
use crate::windows::windows_pool::spec::WindowsPool;

/// How many names are given in a sentence.
const NAMES: usize = 5;

/// A Machine that runs Windows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// Namespace and name, as `namespace/name`.
    pub name: String,
    /// The MachineSet that replaces it, in the same form.
    pub set: Option<String>,
    /// The Node that it is.
    pub node: Option<String>,
    /// Whether somebody has deleted it, and it is on its way out.
    pub is_going: bool,
}

/// A MachineSet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineSet {
    /// How many Machines it is to have.
    pub replicas: usize,
    /// How many of its nodes may be unavailable, as its annotation says.
    pub max_unhealthy: Option<String>,
}

impl MachineSet {
    /// How many of its nodes may be unavailable at once, or what is wrong with its annotation.
    pub fn limit(&self) -> Result<MaxUnavailable, String> {
        let Some(text) = &self.max_unhealthy else {
            return Ok(MaxUnavailable::default());
        };
        let text = text.trim();
        let value = match text.parse::<u64>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::from(text),
        };
        MaxUnavailable::read(&value).map_err(|why| format!("{}: {why}", annotation::MAX_UNHEALTHY))
    }
}

/// What is seen of Machines and their sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machines {
    /// All Machines that run Windows.
    pub machines: Vec<Machine>,
    /// `MachineSets` by `namespace/name`.
    pub sets: BTreeMap<String, MachineSet>,
}

impl Machines {
    /// The Machine that a node is.
    pub fn of_node(&self, node: &str) -> Option<&Machine> {
        let mut machines = self.machines.iter();
        machines.find(|it| it.node.as_deref() == Some(node))
    }

    /// The MachineSet that replaces this Machine, if there is one.
    pub fn set_of<'m>(&'m self, machine: &'m Machine) -> Option<(&'m str, &'m MachineSet)> {
        let name = machine.set.as_deref()?;
        self.sets.get(name).map(|set| (name, set))
    }

    /// What is wrong with sets, by their name.
    pub fn problems(&self) -> BTreeMap<String, String> {
        let wrong = |(name, set): (&String, &MachineSet)| Some((name.clone(), set.limit().err()?));
        self.sets.iter().filter_map(wrong).collect()
    }
}

/// Whether a node was told something else than `version`, and never came to run anything: nobody configures it any
/// more, and it may itself be replaced.
pub fn is_stranded(node: &Node, version: Option<&Version>) -> bool {
    node.windows.as_deref().is_some_and(|it| {
        let is_told = version.is_some_and(|version| it.is_told(version));
        it.version.is_none()
            && it.current_services.is_none()
            && it.desired_version.is_some()
            && !is_told
    })
}

/// Whether a node serves, as far as its MachineSet counts: it is ready, says which version it runs, and nobody of us
/// keeps pods away.
fn serves(node: &Node) -> bool {
    let has_version = node
        .windows
        .as_deref()
        .is_some_and(|it| it.version.is_some());
    let is_held = node.unschedulable && node.cordoned_by.as_deref() == Some(cordon::AGENT);
    node.ready && has_version && !budget::holds_permit(node) && !is_held
}

/// One MachineSet, counted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Count {
    limit: Result<usize, String>,
    /// Fewer Machines than there are: whoever is deleted now is not replaced.
    shrinks: bool,
    /// Those that are made anew: no Machine yet, no node yet, or one that never served.
    renewed: usize,
    /// Who does not serve.
    down: Vec<String>,
}

/// The `MachineSets` of a cluster, counted: who of them may go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineLedger {
    sets: BTreeMap<String, Count>,
}

impl MachineLedger {
    /// Counts. Nodes of `leaving` have a grant to be replaced: they count as away, also while they are there.
    pub fn of(
        seen: &Machines,
        nodes: &BTreeMap<&str, &Node>,
        leaving: &BTreeSet<&str>,
        version: Option<&Version>,
    ) -> Self {
        let mut sets = BTreeMap::new();
        for (name, set) in &seen.sets {
            let own = seen.machines.iter();
            let own = own.filter(|it| it.set.as_ref() == Some(name) && !it.is_going);
            let (mut renewed, mut down, mut live) = (0, Vec::new(), 0);
            for machine in own {
                live += 1;
                let node = machine.node.as_deref();
                let seen = node.and_then(|it| nodes.get(it).copied());
                let is_leaving = node.is_some_and(|it| leaving.contains(it));
                let never_served = seen.is_none_or(|node| {
                    let has_version = node
                        .windows
                        .as_deref()
                        .is_some_and(|it| it.version.is_some());
                    !has_version && !is_stranded(node, version)
                });
                if is_leaving || never_served {
                    renewed += 1;
                }
                if is_leaving || !seen.is_some_and(serves) {
                    down.push(node.unwrap_or(&machine.name).to_owned());
                }
            }
            let missing = set.replicas.saturating_sub(live);
            let unmade = (0..missing).map(|_| format!("a Machine that {name} has not created yet"));
            down.extend(unmade);
            let limit = set.limit().map(|it| it.of(set.replicas));
            let count = Count {
                limit,
                shrinks: live > set.replicas,
                renewed: renewed + missing,
                down,
            };
            sets.insert(name.clone(), count);
        }
        Self { sets }
    }

    /// How many of a set do not serve.
    pub fn unavailable(&self, set: &str) -> usize {
        self.sets.get(set).map_or(0, |it| it.down.len())
    }

    /// Whether `node` of `set` may be replaced now, besides its permit of the pool. One that does not serve takes
    /// nothing from anyone, as long as no more are made anew than the limit.
    fn may_go(&self, set: &str, node: &Node) -> Result<(), WaitReason> {
        let named = || set.to_owned();
        let Some(count) = self.sets.get(set) else {
            return Err(WaitReason::SetGone { set: named() });
        };
        let limit = match &count.limit {
            Ok(limit) => *limit,
            Err(why) => {
                return Err(WaitReason::SetUnclear {
                    set: named(),
                    why: why.clone(),
                });
            }
        };
        if count.shrinks {
            return Err(WaitReason::SetShrinks { set: named() });
        }
        let is_down = count.down.contains(&node.name);
        if count.renewed < limit && (is_down || count.down.len() < limit) {
            return Ok(());
        }
        let others = count.down.iter().filter(|name| **name != node.name);
        Err(WaitReason::SetFull {
            set: named(),
            limit,
            down: others.take(NAMES).cloned().collect(),
        })
    }

    /// Asks for `node` of `set` to be replaced: within its set, and for a permit of the pool.
    pub fn ask<'n>(
        &mut self,
        set: &str,
        node: &'n Node,
        usage: &mut BudgetUsage<'n>,
    ) -> DisruptionPermit {
        if let Err(why) = self.may_go(set, node) {
            return DisruptionPermit::Waits(why);
        }
        // One with a permit for something else uses that, and so does one that was asked to go in place.
        let permit = if budget::holds_permit(node) || in_place::is_held(node) {
            usage.use_again(node)
        } else {
            usage.ask(node)
        };
        if permit == DisruptionPermit::Granted {
            self.goes(set, node);
        }
        permit
    }

    /// Whether one of `set` that was granted may be deleted still: another one would replace it.
    pub fn renews(&self, set: &str) -> bool {
        let set = self.sets.get(set);
        set.is_some_and(|it| it.limit.is_ok() && !it.shrinks)
    }

    /// Takes note that `node` of `set` goes.
    fn goes(&mut self, set: &str, node: &Node) {
        if let Some(count) = self.sets.get_mut(set) {
            count.renewed += 1;
            if !count.down.contains(&node.name) {
                count.down.push(node.name.clone());
            }
        }
    }
}

/// Something that people should hear of a Machine or a MachineSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineNotice {
    /// Which one, as `namespace/name`.
    pub object: String,
    /// Whether it is a MachineSet.
    pub is_set: bool,
    /// What people should hear of it.
    pub notice: Notice,
}

/// What people should hear: sets whose limit makes no sense, and Machines that are never deleted.
pub fn notices(
    pool: &WindowsPool,
    target: Option<&Grant>,
    nodes: &[&Node],
    context: &UpgradeContext,
) -> Vec<MachineNotice> {
    let Some(target) = target.filter(|_| pool.strategy == Strategy::Recreate) else {
        return Vec::new();
    };
    let problems = context.machines.problems();
    let wrong = problems.into_iter().map(|(object, message)| MachineNotice {
        object,
        is_set: true,
        notice: Notice::warning("InvalidMaxUnhealthy", message),
    });
    let alone = nodes.iter().filter_map(|node| {
        let runs = node.windows.as_deref()?.version.as_ref()?;
        let machine = context.machines.of_node(&node.name)?;
        let is_alone = context.machines.set_of(machine).is_none() && *runs != target.version;
        is_alone.then(|| MachineNotice {
            object: machine.name.clone(),
            is_set: false,
            notice: Notice::warning(
                "MachineNotReplaced",
                format!(
                    "no MachineSet would replace this Machine, so it is not deleted: node {} is upgraded to {} in place",
                    node.name, target.version
                ),
            ),
        })
    });
    wrong.chain(alone).collect()
}

/// What is left of `granted`, for nodes that are gone: each holds its permit of the pool until its MachineSet has a node
/// that serves in its place. The others, as they are.
pub fn still_away(
    granted: &[UpdatingNode],
    nodes: &BTreeMap<&str, &Node>,
    ledger: &MachineLedger,
) -> Vec<UpdatingNode> {
    let mut usage: BTreeMap<&str, usize> = BTreeMap::new();
    // Whoever is still there and goes has its permit already.
    for entry in granted {
        let set = entry.machine_set.as_deref();
        if let Some(set) = set.filter(|_| nodes.contains_key(entry.node.as_str())) {
            let left = usage.entry(set).or_insert_with(|| ledger.unavailable(set));
            *left = left.saturating_sub(1);
        }
    }
    let mut away = Vec::new();
    for entry in granted {
        let Some(set) = entry.machine_set.as_deref() else {
            continue;
        };
        if nodes.contains_key(entry.node.as_str()) {
            continue;
        }
        let left = usage.entry(set).or_insert_with(|| ledger.unavailable(set));
        if *left > 0 {
            *left -= 1;
            away.push(entry.clone());
        }
    }
    away
}

#[cfg(test)]
mod tests;

//! Which Windows machine is to be configured, mended or taken out, and which is left in peace.
//!
//! A machine is called as in the list of instances, or by its Machine. What is remembered of it is a
//! [`InstanceRecord`]: it outlives the operator, so that a machine whose entry went meanwhile is still taken out.

mod failure;
mod identity;
mod learned;
mod record;
#[cfg(test)]
mod tests;
pub mod workflow;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use evenkeel_api::names::cordon;
use evenkeel_api::notice::Notice;
use evenkeel_api::windows::version::{StatedVersion, Version};
use jiff::Timestamp;

use crate::fleet::node_facts::NodeFacts;

pub use failure::{FailureKind, InstanceFailure};
pub use identity::{Claim, Found, addresses, is_node_name, node_of, owned, ways};
pub use learned::{Cure, cured, learned};
pub use record::{Fact, InstanceRecord, InstanceState};

/// How long the agent of a new node may take until all its services run.
pub const START: Duration = Duration::from_mins(20);
/// The pauses after failures.
pub const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// What a removal waits for before anybody has said more.
const WAITING: &str = "waiting: a permit within the disruption budget of the WindowsPool";

/// How a Machine is called among instances: no address and no host name has an underscore.
const MACHINE: &str = "machine_";

/// What a Machine is called among instances.
pub fn called(namespace: &str, machine: &str) -> String {
    format!("{MACHINE}{namespace}_{machine}")
}

/// Whether what is called so is a Machine, which others make and remove.
pub fn is_machine(name: &str) -> bool {
    name.starts_with(MACHINE)
}

/// A machine that is to be a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredInstance {
    /// The user to log in as.
    pub user: String,
    /// Its addresses, or why it has none.
    pub addresses: Result<Vec<IpAddr>, InstanceFailure>,
    /// Addresses that its Node has besides those, as whoever lists it says.
    pub node_addresses: Vec<IpAddr>,
    /// The Node that it is, as its Machine says.
    pub node: Option<String>,
}

/// A Windows node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and none excludes another"
)]
pub struct WindowsNode {
    /// Its name.
    pub name: String,
    /// The machine that it was made of.
    pub instance: Option<String>,
    /// Its addresses and names, as its kubelet says.
    pub addresses: Vec<String>,
    /// The version that it was granted, and the services.
    pub desired: (Option<StatedVersion>, Option<String>),
    /// The version that it runs, and the services.
    pub current: (Option<StatedVersion>, Option<String>),
    /// Whether payload files are missing that its agent does not have.
    pub lacks_files: bool,
    /// Whether OpenShift's operator made it, and nobody of us came after that one.
    pub is_wmcos: bool,
    /// Whether our agent still keeps pods away.
    pub is_held: bool,
    /// Whether its kubelet says that it is ready.
    pub is_ready: bool,
    /// Whether it is to get another version on its machine now, and how far that is.
    pub upgrade: Option<UpgradeStage>,
    /// Whether it may be taken out, if it serves.
    pub clearance: Clearance,
}

/// Whether a node that serves may be taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clearance {
    /// Its pods have left for that, with a permit of the pool.
    Cleared,
    /// Not yet; and what that waits for, if anybody has said.
    Waits(Option<String>),
}

impl Default for Clearance {
    fn default() -> Self {
        Self::Waits(None)
    }
}

/// How far the upgrade of a node is that has no pods any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeStage {
    /// Its machine is to be prepared.
    Supply,
    /// Its files are there, and its agent is to bring it to what it is told.
    Apply,
}

impl WindowsNode {
    /// A Windows node; nothing for any other.
    pub fn of(facts: &NodeFacts) -> Option<Self> {
        let node = &facts.node;
        let windows = node.windows.as_ref()?;
        let instance = facts.instance.as_deref().and_then(|it| it.rsplit_once('@'));
        let missing_files = windows.missing_files.as_ref();
        Some(Self {
            name: node.name.clone(),
            instance: instance.map(|(_, instance)| instance.to_owned()),
            addresses: windows.addresses.clone(),
            desired: (
                windows.desired_version.clone(),
                windows.desired_services.clone(),
            ),
            current: (windows.version.clone(), windows.current_services.clone()),
            is_wmcos: windows.is_wmcos(),
            lacks_files: missing_files.is_some_and(|it| !it.is_empty()),
            is_held: node.unschedulable && node.cordoned_by.as_deref() == Some(cordon::AGENT),
            is_ready: node.ready,
            ..Self::default()
        })
    }

    /// Whether it runs what it was granted.
    pub fn is_done(&self) -> bool {
        self.current.0.is_some() && self.current == self.desired && !self.is_held
    }

    /// Whether it ever served.
    fn has_served(&self) -> bool {
        self.current.0.is_some() || self.current.1.is_some()
    }
}

/// Work on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// From a bare machine to a node.
    Configure,
    /// A node of OpenShift's operator: whether all is there that taking it over needs. Nothing is written on it.
    Survey,
    /// Files that went missing are brought again.
    Restore,
    /// Its agent's login has ended: a new one is brought.
    LogIn,
    /// From one version to another.
    Upgrade,
    /// From a node to a bare machine.
    Deconfigure,
    /// It cannot be reached any more: its Node goes, and it is forgotten.
    Abandon,
    /// There is nothing left of it but its host key.
    Forget,
}

impl Work {
    /// Whether it is taken out by it.
    fn is_removal(self) -> bool {
        matches!(self, Self::Deconfigure | Self::Abandon | Self::Forget)
    }

    /// What people hear of it when it failed.
    pub fn failed(self, instance: &str, problem: &InstanceFailure) -> Notice {
        let is_theirs = matches!(
            problem.category,
            FailureKind::NotTakenOver | FailureKind::TakeOverRefused
        );
        let what = match self {
            _ if is_theirs => "cannot be taken over",
            Self::Configure => "cannot be configured",
            Self::Survey => "cannot be taken over",
            Self::Restore => "cannot restore its files",
            Self::LogIn => "cannot create a new login for its agent",
            Self::Upgrade => "cannot be upgraded",
            Self::Deconfigure | Self::Abandon | Self::Forget => "cannot be removed",
        };
        problem.notice(&format!("instance {instance}: {what}: "))
    }
}

/// What happens to a machine now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Todo {
    /// It is worked on.
    Begin(Work),
    /// Nothing but to remember this.
    Note(InstanceState, Option<InstanceFailure>),
    /// It is to be taken out, and serves: that waits.
    Wait {
        /// For what.
        why: String,
        /// Whether its Node is ready.
        is_ready: bool,
    },
    /// It is taken out with pods on it: its Node is not ready for so long that nobody waits for them any more.
    BeginUndrained {
        /// Since when.
        since: Timestamp,
    },
    /// There is nothing left of it to remember.
    Forget,
}

impl Todo {
    /// What is begun.
    pub fn work(&self) -> Option<Work> {
        match self {
            Self::Begin(work) => Some(*work),
            Self::BeginUndrained { .. } => Some(Work::Deconfigure),
            Self::Note(..) | Self::Wait { .. } | Self::Forget => None,
        }
    }
}

/// All that counts.
#[derive(Debug)]
pub struct InstanceSnapshot<'a> {
    /// Machines that are to be nodes; none if that is not known now.
    pub wanted: Option<&'a BTreeMap<String, DesiredInstance>>,
    /// Machines whose entry cannot be read, or whose name was not looked up yet: they stay as they are.
    pub unclear: &'a BTreeSet<String>,
    /// What is remembered.
    pub records: &'a BTreeMap<String, InstanceRecord>,
    /// All Windows nodes.
    pub nodes: &'a [WindowsNode],
    /// What is being worked on.
    pub busy: &'a BTreeMap<String, Work>,
    /// Why nothing can be configured now.
    pub obstacle: Option<&'a InstanceFailure>,
    /// The version whose files we have.
    pub version: Option<&'a Version>,
    /// How many machines may be configured at once, and how many may be taken out.
    pub parallel: usize,
    /// How long a machine that leaves is looked for.
    pub leave_within: Duration,
    /// Now.
    pub now: Timestamp,
}

/// What happens now, and when it is to be looked at again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceDecision {
    /// By machine.
    pub todo: BTreeMap<String, Todo>,
    /// When time alone changes something.
    pub again: Option<Timestamp>,
    /// Machines of the list that are to be taken out, with their Nodes; none if nobody knows now who is wanted.
    pub leaving: Option<BTreeMap<String, Option<String>>>,
}

/// Decides for all machines.
pub fn decide(snapshot: &InstanceSnapshot<'_>) -> InstanceDecision {
    let mut decision = InstanceDecision::default();
    let nothing = BTreeMap::new();
    let wanted = snapshot.wanted.unwrap_or(&nothing);
    let twins = twins(snapshot, wanted);
    let mut free = free(snapshot, Work::Configure);
    // Who has failed less comes first: one that hangs again and again holds nobody up.
    let failures = |name: &str| snapshot.records.get(name).map_or(0, |it| it.failures);
    let mut order: Vec<_> = wanted.iter().collect();
    order.sort_by_key(|(name, _)| failures(name));
    for (name, machine) in order {
        if snapshot.busy.contains_key(name) || is_going(snapshot, name) {
            continue;
        }
        let todo = match twins.get(name.as_str()) {
            Some(twin) => Some(refused(InstanceFailure::new(
                FailureKind::SameInstance,
                format!("it is the same machine as {twin}: keep one of them"),
            ))),
            None => one_wanted(snapshot, name, machine, &mut free, &mut decision.again),
        };
        decision.todo.extend(todo.map(|todo| (name.clone(), todo)));
    }
    if snapshot.wanted.is_some() {
        let mut free = self::free(snapshot, Work::Deconfigure);
        let mut order: Vec<_> = leaving(snapshot, wanted).into_iter().collect();
        order.sort_by_key(|name| failures(name));
        let listed = order.iter().filter(|name| !is_machine(name));
        let nodes = listed.map(|name| {
            let node = node_leaving(snapshot, name).map(|it| it.name.clone());
            (name.clone(), node)
        });
        decision.leaving = Some(nodes.collect());
        for name in order {
            let todo = one_leaving(snapshot, &name, &mut free, &mut decision.again);
            decision.todo.extend(todo.map(|todo| (name, todo)));
        }
    }
    decision
}

/// How many more may be worked on so.
fn free(snapshot: &InstanceSnapshot<'_>, work: Work) -> usize {
    let is_so = |it: &&Work| **it == work || it.is_removal() && work.is_removal();
    let busy = snapshot.busy.values().filter(is_so).count();
    snapshot.parallel.saturating_sub(busy)
}

fn refused(problem: InstanceFailure) -> Todo {
    Todo::Note(InstanceState::Failing, Some(problem))
}

fn one_wanted(
    snapshot: &InstanceSnapshot<'_>,
    name: &str,
    machine: &DesiredInstance,
    free: &mut usize,
    again: &mut Option<Timestamp>,
) -> Option<Todo> {
    let record = snapshot.records.get(name);
    let node = node_of(name, record, Some(machine), snapshot.nodes);
    let mut work = Work::Configure;
    if let Some(node) = node {
        let starting = record.filter(|it| it.state == InstanceState::Starting);
        let login_ends = record.and_then(|it| it.login_ends);
        if let Some(ends) = login_ends.filter(|ends| snapshot.now < *ends) {
            soonest(again, ends);
        }
        if login_ends.is_some_and(|ends| snapshot.now >= ends) {
            // Whatever else it is to do, its agent cannot hear of it.
            work = Work::LogIn;
        } else if node.is_wmcos && record.is_none_or(|it| !it.is_surveyed) {
            work = Work::Survey;
        } else if let Some(upgrade) = node.upgrade {
            // Before anybody knows that it is upgraded it only seems to be starting.
            let started = starting.and_then(|it| it.started.as_ref());
            let is_our_version =
                |it: &StatedVersion| snapshot.version.is_some_and(|ours| it == ours);
            if upgrade == UpgradeStage::Apply && started.is_some_and(is_our_version) {
                // Its agent was started, and says itself if it cannot go on.
                return Some(Todo::Note(InstanceState::Starting, None));
            }
            work = Work::Upgrade;
        } else if node.has_served() {
            if node.is_wmcos {
                // Its turn comes within the disruption budget.
                return Some(Todo::Note(InstanceState::Waiting, None));
            }
            // We have no files of any other version.
            if !node.lacks_files
                || snapshot
                    .version
                    .is_some_and(|it| node.desired.0.as_ref().is_none_or(|told| told != it))
            {
                let state = if node.is_done() {
                    InstanceState::Ready
                } else {
                    InstanceState::Starting
                };
                return Some(Todo::Note(state, None));
            }
            work = Work::Restore;
        } else if let Some(record) = starting {
            let until = record.since + START;
            if snapshot.now < until {
                soonest(again, until);
                return Some(Todo::Note(InstanceState::Starting, None));
            }
        }
    }
    // Only now does anybody have to reach it.
    if let Err(problem) = &machine.addresses {
        return Some(refused(problem.clone()));
    }
    if let Some(obstacle) = snapshot.obstacle {
        return Some(Todo::Note(InstanceState::Waiting, Some(obstacle.clone())));
    }
    if let Some(until) = record.and_then(|it| it.retry_at)
        && snapshot.now < until
    {
        soonest(again, until);
        return None;
    }
    if work == Work::Configure {
        if *free == 0 {
            return Some(Todo::Note(InstanceState::Waiting, None));
        }
        *free -= 1;
    }
    Some(Todo::Begin(work))
}

/// Whether a machine is being taken apart: that comes to its end first, also if it is wanted again.
fn is_going(snapshot: &InstanceSnapshot<'_>, name: &str) -> bool {
    snapshot.records.get(name).is_some_and(|it| it.is_going)
}

/// The Node that a machine is which is taken out.
fn node_leaving<'n>(snapshot: &InstanceSnapshot<'n>, name: &str) -> Option<&'n WindowsNode> {
    let wanted = snapshot.wanted.and_then(|it| it.get(name));
    let record = snapshot.records.get(name);
    // Nothing of ours is on it, and it goes on as it is.
    let is_ours = |node: &&WindowsNode| !node.is_wmcos || record.is_some_and(|it| it.is_secured);
    node_of(name, record, wanted, snapshot.nodes).filter(is_ours)
}

/// Machines that are remembered and not wanted any more, and those that are being taken apart. What a Node says that
/// it was made of is no reason to go anywhere.
fn leaving(
    snapshot: &InstanceSnapshot<'_>,
    wanted: &BTreeMap<String, DesiredInstance>,
) -> BTreeSet<String> {
    let remembered = snapshot.records.keys().cloned();
    remembered
        .filter(|name| {
            let is_listed = wanted.contains_key(name) || snapshot.unclear.contains(name);
            !is_listed || is_going(snapshot, name)
        })
        .collect()
}

fn one_leaving(
    snapshot: &InstanceSnapshot<'_>,
    name: &str,
    free: &mut usize,
    again: &mut Option<Timestamp>,
) -> Option<Todo> {
    if snapshot.busy.contains_key(name) {
        return None;
    }
    let node = node_leaving(snapshot, name);
    let record = snapshot.records.get(name);
    // What a Machine was made of goes with the Machine, and its Node too: nobody knocks there again.
    if is_machine(name) {
        return record.map(forget);
    }
    let nothing = InstanceRecord::default();
    let record = record.unwrap_or(&nothing);
    if record.is_untaken() || !record.is_touched && node.is_none() {
        return Some(forget(record));
    }
    let deadline = record.lost_since.map(|since| since + snapshot.leave_within);
    let category = record.category.as_ref();
    if let Some(until) = deadline
        && category.is_some_and(FailureKind::loses_the_machine)
    {
        if snapshot.now >= until {
            return Some(Todo::Begin(Work::Abandon));
        }
        soonest(again, until);
    }
    if let Some(until) = record.retry_at
        && record.leaving_since.is_some()
        && snapshot.now < until
    {
        soonest(again, until);
        return None;
    }
    // Who serves is taken out only when its pods have left, unless nobody hears of it for too long.
    let mut undrained = None;
    if let Some(node) = node.filter(|it| it.has_served() && !record.is_going)
        && let Clearance::Waits(why) = &node.clearance
    {
        let since = record.lost_since.filter(|_| !node.is_ready);
        undrained = since.filter(|since| snapshot.now >= *since + snapshot.leave_within);
        if undrained.is_none() {
            if !node.is_ready {
                soonest(again, since.unwrap_or(snapshot.now) + snapshot.leave_within);
            }
            return Some(Todo::Wait {
                why: why.clone().unwrap_or_else(|| WAITING.to_owned()),
                is_ready: node.is_ready,
            });
        }
    }
    if *free == 0 {
        return (record.state != InstanceState::Leaving)
            .then_some(Todo::Note(InstanceState::Leaving, None));
    }
    *free -= 1;
    Some(match undrained {
        Some(since) => Todo::BeginUndrained { since },
        None => Todo::Begin(Work::Deconfigure),
    })
}

/// Nothing of ours is on it. Who was never reached has no host key either.
fn forget(record: &InstanceRecord) -> Todo {
    match record.address {
        Some(_) => Todo::Begin(Work::Forget),
        None => Todo::Forget,
    }
}

fn soonest(again: &mut Option<Timestamp>, at: Timestamp) {
    *again = Some(again.map_or(at, |known| known.min(at)));
}

/// Machines that are listed a second time under another name, with the name that counts: the one that
/// was there first, else the first in order.
fn twins<'w>(
    snapshot: &InstanceSnapshot<'_>,
    wanted: &'w BTreeMap<String, DesiredInstance>,
) -> BTreeMap<&'w str, &'w str> {
    let mut order: Vec<&'w str> = wanted.keys().map(String::as_str).collect();
    let is_new = |name: &str| {
        let record = snapshot.records.get(name);
        !record.is_some_and(|it| it.is_touched)
    };
    order.sort_by_key(|name| (is_new(name), *name));
    let mut owners: BTreeMap<IpAddr, &'w str> = BTreeMap::new();
    let mut twins = BTreeMap::new();
    for name in order {
        let addresses = wanted.get(name).and_then(|it| it.addresses.as_ref().ok());
        for address in addresses.into_iter().flatten() {
            let owner = owners.entry(*address).or_insert(name);
            if *owner != name {
                twins.insert(name, *owner);
            }
        }
    }
    twins
}

//! Plans for one machine: from what is desired and what was seen to what is done, and what that
//! disrupts. In which order, `route` knows.

pub mod attributes;
pub mod desired;
pub mod diff;
pub mod disruption;
pub mod entry;
pub mod journal;
pub mod linux_node;
pub mod os;
pub mod pace;
pub mod phase;
pub mod place;
pub mod problem;
pub mod provision;
pub mod record;
pub mod resource;
mod route;
pub mod ssh_keys;
pub mod standing;
pub mod state;
pub mod step;
pub mod targets;
pub mod unit_state;
pub mod units;
pub mod voucher;
pub mod waiting;

pub use route::folder_for;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use evenkeel_api::machine::disruption_policy::DisruptionPolicy;

use crate::machine::desired::{Contents, Desired};
use crate::machine::disruption::rules::NeededDisruption;
use crate::machine::disruption::{Disruption, UnitAction, rules, together};
use crate::machine::entry::Entry;
use crate::machine::problem::{MachineProblem, Refused};
use crate::machine::record::{BootId, Record};
use crate::machine::resource::Resource;
use crate::machine::step::Step;
use crate::machine::targets::{Part, Targets};

/// What a machine looks like where it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineSnapshot {
    /// What stands at the paths of [`interest`]; a path that is not here has nothing.
    pub paths: BTreeMap<String, Entry>,
    /// Folders above those paths that are there, links followed.
    pub folders: BTreeSet<String>,
    /// Paths above them that can hold nothing, with the reason.
    pub blocked: BTreeMap<String, String>,
    /// Contents that were seen, where somebody may want to compare them.
    pub contents: Contents,
    /// The operating system, where it was looked at.
    pub os: Option<os::OsSnapshot>,
}

impl MachineSnapshot {
    fn at(&self, path: &str) -> &Entry {
        self.paths.get(path).unwrap_or(&Entry::Absent)
    }

    /// How a machine looks that is exactly at `targets`.
    pub fn imagined(targets: &Targets, contents: &Contents) -> Self {
        let paths: BTreeMap<_, _> = targets
            .iter()
            .map(|(path, target)| (path.clone(), target.entry.clone()))
            .collect();
        let folders = paths
            .keys()
            .flat_map(|path| above(path))
            .map(str::to_owned)
            .collect();
        Self {
            paths,
            folders,
            blocked: BTreeMap::new(),
            contents: contents.clone(),
            os: None,
        }
    }
}

/// The paths one must look at to plan: those that are desired and those that are ours.
pub fn interest<'a>(targets: &'a Targets, record: &'a Record) -> BTreeSet<&'a str> {
    targets
        .keys()
        .chain(record.owned.keys())
        .map(String::as_str)
        .collect()
}

/// The folders above `path`, the nearest last, without the root.
pub fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/')
        .map(|(end, _)| &path[..end])
        .filter(|folder| !folder.is_empty())
}

/// What would be done to a machine, in order, and what that disrupts. It leaves no choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What changes, one entry a resource.
    pub changes: Vec<PlannedChange>,
    /// How it is done.
    pub steps: Vec<Step>,
    /// What happens around the steps.
    pub actions: Vec<UnitAction>,
    /// What is to be remembered when all is done.
    pub record: Record,
    /// What a person should know; it changes nothing.
    pub warnings: Vec<String>,
    /// What of it cannot be done on this machine. While there is any, none of the plan is.
    pub beyond: Vec<MachineProblem>,
}

impl Plan {
    /// How much the whole plan disrupts.
    pub fn disruption(&self) -> Disruption {
        rules::greatest(&self.actions)
    }

    /// The same writes with everything around them that a change can need.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.actions = rules::REBOOT.to_vec();
        self
    }

    /// The same on a machine that serves nobody: no pods are there to leave.
    #[must_use]
    pub fn without_drain(mut self) -> Self {
        self.actions.retain(|action| *action != UnitAction::Drain);
        self
    }

    /// The same where nothing is to be done.
    #[must_use]
    pub fn with_nothing_to_do(mut self) -> Self {
        self.changes.clear();
        self.steps.clear();
        self.actions.clear();
        self
    }

    /// Carried out in this boot: if it needs another one, that is remembered with it.
    #[must_use]
    pub fn carried_out_in(mut self, boot: BootId) -> Self {
        if self.actions.contains(&UnitAction::Reboot) {
            self.record.written_in = Some(boot);
            let staged = &mut self.record.staged;
            for step in self.steps.iter().filter(|step| os::is_about(step)) {
                if !staged.contains(step) {
                    staged.push(step.clone());
                }
            }
        }
        self
    }

    /// Why this plan cannot be carried out on this machine, if it cannot.
    pub fn refusal(&self) -> Option<Refused> {
        (!self.beyond.is_empty()).then(|| Refused(self.beyond.clone()))
    }
}

/// One resource that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedChange {
    /// What changes.
    pub resource: Resource,
    /// Whether it comes, changes or goes.
    pub action: ChangeAction,
    /// Why, in words.
    pub why: String,
    /// How much this change alone disrupts.
    pub disruption: Disruption,
    /// The entry of the disruption policy that says so; nothing if our own table does.
    pub policy: Option<String>,
}

/// What happens to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeAction {
    /// It was not there.
    Create,
    /// It is there and differs.
    Update,
    /// It is no longer desired.
    Delete,
}

impl fmt::Display for ChangeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        })
    }
}

/// What brings a machine that looks like `seen`, with `record` of what is ours, to `desired`.
///
/// `targets` are the paths of `desired` on this machine, `contents` its bytes where rules look at
/// them.
pub fn plan(
    desired: &Desired,
    targets: &Targets,
    contents: &Contents,
    seen: &MachineSnapshot,
    record: &Record,
) -> Result<Plan, Refused> {
    let (mut steps, mut after) = route::steps(desired, targets, seen, record)?;
    let mut warnings = Vec::new();
    let mut actions = Vec::new();
    let mut changes = Vec::new();
    for (resource, group) in group(&steps) {
        let NeededDisruption {
            actions: needs,
            warning,
            policy,
        } = needs(&desired.disruption_policy, &group, contents, seen);
        warnings.extend(warning);
        changes.push(PlannedChange {
            policy,
            action: change_action(resource, &group, targets, record),
            why: why(&group),
            disruption: rules::greatest(&needs),
            resource: resource.clone(),
        });
        actions.extend(needs);
    }
    let os = os::route(desired, seen.os.as_ref(), record, &mut after);
    for (resource, action, why) in os.changes {
        changes.push(PlannedChange {
            resource,
            action,
            why,
            disruption: rules::greatest(rules::REBOOT),
            policy: None,
        });
        actions.extend(rules::REBOOT.iter().cloned());
    }
    after.staged = os::on_its_way(&record.staged, &os.steps);
    if os.steps.is_empty() {
        // Whatever waits for a boot goes on waiting for it.
        after.written_in.clone_from(&record.written_in);
        after.boots = record.boots;
    }
    // Last: pulling an image may need the registries, the keys and the certificates that come with
    // it, and nothing is staged that files could still turn back from.
    steps.extend(os.steps);
    Ok(Plan {
        changes,
        steps,
        actions: together(actions),
        record: after,
        warnings,
        beyond: os.beyond,
    })
}

fn group(steps: &[Step]) -> BTreeMap<&Resource, Vec<&Step>> {
    let mut groups: BTreeMap<&Resource, Vec<&Step>> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.part != Part::Folder) {
        groups.entry(&step.resource).or_default().push(step);
    }
    groups
}

fn change_action(
    resource: &Resource,
    steps: &[&Step],
    targets: &Targets,
    record: &Record,
) -> ChangeAction {
    let desired = targets.values().any(|target| target.resource == *resource);
    let ours = record
        .owned
        .values()
        .any(|owned| owned.resource == *resource && owned.part != Part::Folder);
    if !desired {
        ChangeAction::Delete
    } else if !ours && steps.iter().all(|step| step.before == Entry::Absent) {
        ChangeAction::Create
    } else {
        ChangeAction::Update
    }
}

fn why(steps: &[&Step]) -> String {
    let mut reasons: Vec<String> = Vec::new();
    // The thing itself first, then what hangs on it, whatever order the steps are done in.
    let mut steps = steps.to_vec();
    steps.sort_by(|one, other| one.part.cmp(&other.part));
    for step in steps {
        let reason = step.part.difference(&step.before, &step.after);
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons.join("; ")
}

fn needs(
    policy: &DisruptionPolicy,
    steps: &[&Step],
    contents: &Contents,
    seen: &MachineSnapshot,
) -> NeededDisruption {
    let Some(step) = steps.first() else {
        return NeededDisruption::default();
    };
    let old = step.before.hash().and_then(|hash| seen.contents.get(hash));
    let new = step.after.hash();
    let new = new.and_then(|hash| contents.get(hash).or_else(|| seen.contents.get(hash)));
    rules::needs(
        policy,
        step,
        old.unwrap_or_default(),
        new.unwrap_or_default(),
    )
}

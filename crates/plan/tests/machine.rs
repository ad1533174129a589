//! What holds for every plan of a machine, whatever stands on it and whatever is desired: checked on
//! random trees with few paths, so that they meet in every way.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::disruption::Disruption;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use evenkeel_plan::machine::os;
use evenkeel_plan::machine::record::Record;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::step::Step;
use evenkeel_plan::machine::targets::{Part, Target, Targets};
use evenkeel_plan::machine::{MachineSnapshot, Plan, above, interest, plan};
use proptest::prelude::*;
use proptest::sample::select;

const PATHS: &[&str] = &[
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/d",
    "/e/f/g",
    "/e/h",
    "/etc/containers/policy.json",
    "/etc/containers/registries.conf",
    "/etc/kubernetes/kubelet-ca.crt",
];

/// Everything that stands on a machine; what is not here is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct World(BTreeMap<String, Entry>);

impl World {
    fn at(&self, path: &str) -> Entry {
        self.0.get(path).cloned().unwrap_or(Entry::Absent)
    }

    fn is_folder(&self, path: &str) -> bool {
        matches!(self.at(path), Entry::Directory { .. })
    }

    /// Somebody puts something there, and the folders above it, unless something is in the way.
    fn disturb(&mut self, path: &str, entry: &Entry) {
        let in_the_way = |folder: &str| self.0.contains_key(folder) && !self.is_folder(folder);
        if above(path).any(in_the_way) {
            return;
        }
        self.0
            .retain(|other, _| other != path && !other.starts_with(&format!("{path}/")));
        if *entry == Entry::Absent {
            return;
        }
        for folder in above(path) {
            self.0.entry(folder.to_owned()).or_insert_with(theirs);
        }
        self.0.insert(path.to_owned(), entry.clone());
    }

    fn seen(&self, targets: &Targets, record: &Record) -> MachineSnapshot {
        let mut seen = MachineSnapshot::default();
        for path in interest(targets, record) {
            seen.paths.insert(path.to_owned(), self.at(path));
            let mut blocked = false;
            for folder in above(path) {
                blocked |= self.0.contains_key(folder) && !self.is_folder(folder);
                if blocked {
                    let why = "is not a folder".to_owned();
                    seen.blocked.insert(folder.to_owned(), why);
                } else if self.is_folder(folder) {
                    seen.folders.insert(folder.to_owned());
                }
            }
        }
        seen
    }

    /// Does what a host does for one move, and refuses what a host refuses.
    fn go(&mut self, step: &Step, entry: &Entry) -> Result<(), String> {
        let children = format!("{}/", step.path);
        if *entry == Entry::Absent {
            // A folder with somebody else's files stays.
            if !self.0.keys().any(|path| path.starts_with(&children)) {
                self.0.remove(&step.path);
            }
            return Ok(());
        }
        if let Some(missing) = above(&step.path).find(|folder| !self.is_folder(folder)) {
            return Err(format!("{missing} is no folder for {step:?}"));
        }
        if self.0.keys().any(|path| path.starts_with(&children)) && !self.is_folder(&step.path) {
            return Err(format!("{} is in use", step.path));
        }
        self.0.insert(step.path.clone(), entry.clone());
        Ok(())
    }
}

fn theirs() -> Entry {
    Entry::Directory {
        mode: 0o700,
        owner: Ids { user: 7, group: 7 },
    }
}

fn file(contents: &str, mode: u32) -> Entry {
    Entry::File {
        hash: Hash::of(contents.as_bytes()),
        mode,
        owner: Ids::default(),
    }
}

/// What can be desired at a path.
fn any_wanted() -> impl Strategy<Value = Entry> {
    prop_oneof![
        4 => (select(vec!["x", "y"]), select(vec![0o644, 0o600]))
            .prop_map(|(contents, mode)| file(contents, mode)),
        2 => select(vec!["/x", "y"]).prop_map(|target| Entry::Link { target: target.to_owned() }),
        1 => Just(Entry::Absent),
    ]
}

/// What can stand at a path.
fn any_entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        7 => any_wanted(),
        1 => Just(theirs()),
        1 => Just(Entry::Other),
    ]
}

fn any_disturbance() -> impl Strategy<Value = Vec<(&'static str, Entry)>> {
    prop::collection::vec((select(PATHS), any_entry()), 0..5)
}

/// What is desired: files, links, and paths where nothing may be.
fn any_config() -> impl Strategy<Value = (Desired, Targets)> {
    let paths = prop::collection::btree_map(select(PATHS), any_wanted(), 0..6);
    (paths, select(vec!["", "image"])).prop_map(|(mut paths, image)| {
        let all: Vec<_> = paths.keys().copied().collect();
        // A path below a desired file is refused long before a plan.
        paths.retain(|path, _| !above(path).any(|folder| all.contains(&folder)));
        // Only where a unit's link would be can nothing be desired, and that is never a folder.
        paths.retain(|path, entry| *entry != Entry::Absent || !matches!(*path, "/a" | "/a/b"));
        let target = |path: &str, entry| Target {
            resource: Resource::File(path.to_owned()),
            part: Part::Whole,
            entry,
        };
        let targets = paths
            .into_iter()
            .map(|(path, entry)| (path.to_owned(), target(path, entry)))
            .collect();
        let desired = Desired {
            os_image_url: image.to_owned(),
            ..Desired::default()
        };
        (desired, targets)
    })
}

fn planned(
    world: &World,
    (desired, targets): &(Desired, Targets),
    record: &Record,
) -> Option<Plan> {
    let seen = world.seen(targets, record);
    plan(desired, targets, &Contents::default(), &seen, record).ok()
}

/// Applies `plan` and checks everything that must hold on the way.
fn checked(
    world: &mut World,
    config: &(Desired, Targets),
    record: &Record,
    plan: &Plan,
) -> Result<(), TestCaseError> {
    let before = world.clone();
    let mut touched = BTreeSet::new();
    for step in plan.steps.iter().filter(|step| !os::is_about(step)) {
        prop_assert!(
            touched.insert(step.path.clone()),
            "two steps for {}",
            step.path
        );
        prop_assert_eq!(&world.at(&step.path), &step.before);
        prop_assert_ne!(&step.before, &step.after);
        world.go(step, &step.after).map_err(TestCaseError::fail)?;
    }
    let (_, targets) = config;
    for (path, target) in targets {
        let stands = world.at(path);
        let left_alone = target.entry == Entry::Absent
            && matches!(stands, Entry::Directory { .. } | Entry::Other);
        prop_assert!(
            stands == target.entry || left_alone,
            "{} is {:?}",
            path,
            stands
        );
    }
    for path in &touched {
        let ours = targets.contains_key(path) || record.owned.contains_key(path);
        let folder = targets
            .keys()
            .any(|target| above(target).any(|folder| folder == path));
        prop_assert!(ours || folder, "{} is nothing of ours", path);
    }
    for path in before.0.keys().chain(world.0.keys()) {
        let same = before.at(path) == world.at(path);
        prop_assert!(same || touched.contains(path), "{} changed by itself", path);
    }
    let greatest = plan.changes.iter().map(|change| change.disruption).max();
    prop_assert_eq!(plan.disruption(), greatest.unwrap_or(Disruption::None));

    let again = planned(world, config, &plan.record)
        .ok_or_else(|| TestCaseError::fail("what was reached is refused"))?;
    prop_assert_eq!(&again.steps, &vec![]);
    prop_assert_eq!(&again.changes, &vec![]);
    prop_assert_eq!(&again.record, &plan.record);

    let mut undone = world.clone();
    for step in plan.steps.iter().rev().filter(|step| !os::is_about(step)) {
        undone.go(step, &step.before).map_err(TestCaseError::fail)?;
    }
    prop_assert_eq!(undone, before);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Covers M07.
    #[test]
    fn a_plan_leads_there_and_back_touches_nothing_else_and_is_needed_once(
        strangers in any_disturbance(),
        first in any_config(),
        drift in any_disturbance(),
        second in any_config(),
    ) {
        let mut world = World::default();
        let mut record = Record::default();
        for (disturbances, config) in [(strangers, first), (drift, second)] {
            for (path, entry) in disturbances {
                world.disturb(path, &entry);
            }
            if let Some(plan) = planned(&world, &config, &record) {
                // With somebody's file in a folder that is to become a file, the host undoes it all.
                let in_use = plan.steps.iter().any(|step| {
                    matches!(step.before, Entry::Directory { .. })
                        && step.after != Entry::Absent
                        && world.0.keys().any(|path| {
                            path.starts_with(&format!("{}/", step.path))
                                && !plan.steps.iter().any(|step| step.path == *path)
                        })
                });
                if in_use {
                    continue;
                }
                checked(&mut world, &config, &record, &plan)?;
                record = plan.record;
            }
        }
    }

    /// Covers M07.
    #[test]
    fn when_nothing_is_desired_any_more_everything_is_as_before_we_came(
        strangers in any_disturbance(),
        configs in prop::collection::vec(any_config(), 1..4),
    ) {
        let mut world = World::default();
        for (path, entry) in strangers {
            world.disturb(path, &entry);
        }
        let before = world.clone();
        let mut record = Record::default();
        let nothing = (Desired::default(), Targets::new());
        for config in configs.iter().chain([&nothing]) {
            if let Some(plan) = planned(&world, config, &record) {
                checked(&mut world, config, &record, &plan)?;
                record = plan.record;
            }
        }
        prop_assert_eq!(world, before);
        prop_assert_eq!(record, Record::default());
    }
}

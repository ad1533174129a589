//! The steps that lead a machine to its targets, in an order in which nothing is in the way, and what
//! is ours afterwards.

use std::collections::BTreeSet;

use evenkeel_api::machine::machine_config::Section;

use super::{MachineSnapshot, above};
use crate::machine::desired::Desired;
use crate::machine::entry::{Entry, Ids};
use crate::machine::problem::{MachineProblem, Refused};
use crate::machine::record::{Owned, Record};
use crate::machine::resource::Resource;
use crate::machine::standing;
use crate::machine::step::Step;
use crate::machine::targets::{KEYS_USER, Part, Target, Targets};

/// The steps, and what is to be remembered when they are done.
pub(super) fn steps(
    desired: &Desired,
    targets: &Targets,
    seen: &MachineSnapshot,
    record: &Record,
) -> Result<(Vec<Step>, Record), Refused> {
    let mut route = Route {
        targets,
        seen,
        record,
        after: Record::about(desired),
        steps: Vec::new(),
        problems: Vec::new(),
    };
    route.sections_stand(desired);
    route.prune(false);
    route.place(false);
    route.prune(true);
    route.folders();
    route.place(true);
    if !route.problems.is_empty() {
        route.problems.sort();
        route.problems.dedup();
        return Err(Refused(route.problems));
    }
    let still_ours = |path: &&String| route.after.owned.contains_key(*path);
    let labels = record.labels.iter().filter(|(path, _)| still_ours(path));
    let labels = labels.map(|(path, label)| (path.clone(), label.clone()));
    route.after.labels = labels.collect();
    let attributes = record.attributes.iter();
    let attributes = attributes.filter(|(path, _)| still_ours(path));
    let attributes = attributes.map(|(path, it)| (path.clone(), it.clone()));
    route.after.attributes = attributes.collect();
    route.steps.sort_by_key(position);
    Ok((route.steps, route.after))
}

/// Where in the order a step comes. Services are removed before everything else, the last one created first,
/// and come after everything else, in the order of creation; the rest stays as it is.
fn position(step: &Step) -> (u8, u32) {
    match (&step.part, &step.after) {
        (Part::Service(order), Entry::Absent) => (0, u32::MAX - order),
        (Part::Service(order), _) => (2, *order),
        _ => (1, 0),
    }
}

struct Route<'a> {
    targets: &'a Targets,
    seen: &'a MachineSnapshot,
    record: &'a Record,
    after: Record,
    steps: Vec<Step>,
    problems: Vec<MachineProblem>,
}

impl Route<'_> {
    /// What we do not support may stand, but not change.
    fn sections_stand(&mut self, desired: &Desired) {
        let old = self.record.standing();
        let sections: BTreeSet<_> = old.keys().chain(desired.unsupported.keys()).collect();
        let basis = self.record.basis.as_ref();
        let open = |section: &Section| basis.is_some_and(|it| it.leaves_open(section));
        for section in sections.into_iter().filter(|section| !open(section)) {
            let (was, is) = (old.get(section), desired.unsupported.get(section));
            let refusal = standing::refusal(section, was, is).map(|mut problem| {
                let advice = basis.map(|basis| basis.advice(section));
                problem.message.push_str(&advice.unwrap_or_default());
                problem
            });
            self.problems.extend(refusal);
        }
    }

    /// What is ours and no longer desired goes, deepest first: at first what stands in folders, and
    /// when they are empty the `folders`, so that nothing is in the way of what comes.
    fn prune(&mut self, folders: bool) {
        let needed: BTreeSet<&str> = self
            .targets
            .iter()
            .filter(|(_, target)| target.entry != Entry::Absent)
            .flat_map(|(path, _)| above(path))
            .collect();
        let mut gone: Vec<_> = self
            .record
            .owned
            .iter()
            .filter(|(path, _)| !self.targets.contains_key(*path))
            .filter(|(_, owned)| matches!(owned.entry, Entry::Directory { .. }) == folders)
            .filter(|(_, owned)| !matches!(owned.part, Part::Payload(_)))
            .collect();
        gone.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
        for (path, owned) in gone {
            if folders && needed.contains(path.as_str()) {
                self.after.owned.insert(path.clone(), owned.clone());
                continue;
            }
            let seen = self.seen.at(path);
            if *seen == owned.before || is_strangers(seen, Some(&owned.entry)) {
                continue;
            }
            if folders && !matches!(seen, Entry::Directory { .. }) {
                // Somebody else's by now; we only ever made the folder.
                continue;
            }
            if owned.before != Entry::Absent
                && !above(path).all(|folder| self.seen.folders.contains(folder))
            {
                // Somebody removed the folder: what stood in it before us went with it.
                continue;
            }
            self.steps.push(Step {
                resource: owned.resource.clone(),
                part: owned.part.clone(),
                path: path.clone(),
                before: seen.clone(),
                after: owned.before.clone(),
            });
        }
    }

    /// Folders that are missing above what is desired, the topmost first.
    fn folders(&mut self) {
        let (mut made, mut there) = (BTreeSet::new(), BTreeSet::new());
        for (path, target) in self.targets {
            if target.entry == Entry::Absent {
                continue;
            }
            // Below a folder that we make there is nothing yet, whatever was seen there.
            let mut fresh = false;
            for folder in above(path) {
                if !fresh && there.contains(folder) {
                    continue;
                }
                fresh |= made.contains(folder) || self.going(folder).is_some();
                if !fresh && let Some(why) = self.in_the_way(folder) {
                    let message = format!("cannot be created: {folder} {why}");
                    self.problems.push(MachineProblem::new(
                        &target.resource.to_string(),
                        "",
                        message,
                    ));
                    break;
                }
                if !fresh && self.seen.folders.contains(folder) {
                    there.insert(folder);
                    continue;
                }
                fresh = true;
                if made.insert(folder) {
                    self.make(folder, target);
                }
            }
        }
    }

    /// Why `folder` can hold nothing, if it cannot.
    fn in_the_way(&self, folder: &str) -> Option<&str> {
        let comes_back = |step: &Step| step.path == folder && step.after != Entry::Absent;
        let restored = self.steps.iter().any(comes_back);
        let seen = self.seen.blocked.get(folder).map(String::as_str);
        seen.or_else(|| {
            restored.then_some("is no longer managed, and gets back what was there before")
        })
    }

    /// The step that takes `path` away, if there is one.
    fn going(&self, path: &str) -> Option<usize> {
        self.steps
            .iter()
            .position(|step| step.path == path && step.after == Entry::Absent)
    }

    fn make(&mut self, folder: &str, target: &Target) {
        let after = folder_for(folder, &target.resource, &target.entry);
        let before = self.seen.at(folder).clone();
        let resource = target.resource.clone();
        self.own(folder, resource.clone(), Part::Folder, &after, &before);
        // A path has one step: then going and coming back cannot meet halfway in a run that is
        // taken up again.
        let step = match self.going(folder) {
            Some(place) => Step {
                after,
                ..self.steps.remove(place)
            },
            None => Step {
                resource,
                part: Part::Folder,
                path: folder.to_owned(),
                before,
                after,
            },
        };
        self.steps.push(step);
    }

    /// What is desired and does not stand there already: something, or that nothing is there.
    fn place(&mut self, something: bool) {
        let placed = |target: &Target| (target.entry != Entry::Absent) == something;
        for (path, target) in self.targets.iter().filter(|(_, target)| placed(target)) {
            let seen = self.seen.at(path);
            let ours = self.record.owned.get(path).map(|owned| &owned.entry);
            if is_strangers(seen, ours) {
                if !something {
                    continue;
                }
                let message = format!(
                    "{path} is {}, which Evenkeel does not replace: move it away",
                    seen.noun()
                );
                self.problems.push(MachineProblem::new(
                    &target.resource.to_string(),
                    "",
                    message,
                ));
                continue;
            }
            self.own(
                path,
                target.resource.clone(),
                target.part.clone(),
                &target.entry,
                seen,
            );
            if *seen != target.entry {
                self.steps.push(Step {
                    resource: target.resource.clone(),
                    part: target.part.clone(),
                    path: path.clone(),
                    before: seen.clone(),
                    after: target.entry.clone(),
                });
            }
        }
    }

    /// Remembers that `path` is ours. What stood there before we first came is kept.
    fn own(&mut self, path: &str, resource: Resource, part: Part, entry: &Entry, seen: &Entry) {
        let before = match (&part, self.record.owned.get(path)) {
            // Nobody puts an older payload back, and a service of ours goes when we go, also one that
            // we found: it may be what an earlier life of ours left.
            (Part::Payload(_) | Part::Service(_), _) => Entry::Absent,
            (_, Some(owned)) => owned.before.clone(),
            (_, None) => seen.clone(),
        };
        self.after.owned.insert(
            path.to_owned(),
            Owned {
                resource,
                part,
                entry: entry.clone(),
                before,
            },
        );
    }
}

/// Whether what was `seen` is not ours to replace: a file or a link is kept and put back one day, a
/// device cannot be, and a folder only if it is ours.
fn is_strangers(seen: &Entry, ours: Option<&Entry>) -> bool {
    match seen {
        Entry::Other => true,
        Entry::Directory { .. } => !matches!(ours, Some(Entry::Directory { .. })),
        _ => false,
    }
}

/// A folder that a target needs above it. A user's keys are private, and so is the way to them.
pub fn folder_for(folder: &str, resource: &Resource, entry: &Entry) -> Entry {
    let home = format!("/home/{KEYS_USER}");
    let is_private = folder.starts_with(&home) || folder.split('/').any(|name| name == ".ssh");
    match (resource, entry) {
        (Resource::AuthorisedKeys(_), Entry::File { owner, .. }) if is_private => {
            Entry::Directory {
                mode: 0o700,
                owner: *owner,
            }
        }
        _ => Entry::Directory {
            mode: 0o755,
            owner: Ids::default(),
        },
    }
}

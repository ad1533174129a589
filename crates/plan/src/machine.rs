//! Plans for one machine: from what is desired and what was seen to ordered steps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::desired::{Contents, Desired};
use crate::disruption::{Action, Disruption, rules, together};
use crate::entry::{Entry, Ids};
use crate::problem::{Problem, Refused};
use crate::record::{Owned, Record};
use crate::resource::Resource;
use crate::step::Step;
use crate::targets::{KEYS_USER, Part, Target, Targets};

/// What a machine looks like where it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// What stands at the paths of [`interest`]; a path that is not here has nothing.
    pub paths: BTreeMap<String, Entry>,
    /// Folders above those paths that are there, links followed.
    pub folders: BTreeSet<String>,
    /// Paths above them that can hold nothing, with the reason.
    pub blocked: BTreeMap<String, String>,
    /// Contents that were seen, where somebody may want to compare them.
    pub contents: Contents,
}

impl Seen {
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
    pub changes: Vec<Change>,
    /// How it is done.
    pub steps: Vec<Step>,
    /// What happens around the steps.
    pub actions: Vec<Action>,
    /// What is to be remembered when all is done.
    pub record: Record,
    /// What a person should know; it changes nothing.
    pub warnings: Vec<String>,
}

impl Plan {
    /// How much the whole plan disrupts.
    pub fn disruption(&self) -> Disruption {
        rules::greatest(&self.actions)
    }
}

/// One resource that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What changes.
    pub resource: Resource,
    /// Whether it comes, changes or goes.
    pub action: ChangeAction,
    /// Why, in words.
    pub why: String,
    /// How much this change alone disrupts.
    pub disruption: Disruption,
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
    seen: &Seen,
    record: &Record,
) -> Result<Plan, Refused> {
    let mut planning = Planning {
        targets,
        seen,
        record,
        after: Record::about(desired),
        steps: Vec::new(),
        problems: Vec::new(),
    };
    planning.sections_stand(desired);
    planning.prune();
    planning.folders();
    planning.place();
    if !planning.problems.is_empty() {
        planning.problems.sort();
        planning.problems.dedup();
        return Err(Refused(planning.problems));
    }
    let Planning { steps, after, .. } = planning;
    let mut warnings = Vec::new();
    let mut actions = Vec::new();
    let mut changes = Vec::new();
    for (resource, group) in group(&steps) {
        let (needs, warning) = needs(resource, &group, contents, seen);
        warnings.extend(warning);
        changes.push(Change {
            action: change_action(resource, &group, targets, record),
            why: why(&group),
            disruption: rules::greatest(&needs),
            resource: resource.clone(),
        });
        actions.extend(needs);
    }
    for (resource, old, new) in system_changes(desired, record) {
        let (needs, _) = rules::needs(&resource, &[], &[]);
        let action = match (old.is_empty(), new.is_empty()) {
            (true, _) => ChangeAction::Create,
            (_, true) => ChangeAction::Delete,
            _ => ChangeAction::Update,
        };
        let shown = |text: String| {
            if text.is_empty() {
                "none".to_owned()
            } else {
                text
            }
        };
        let why = format!("is {}, should be {}", shown(old), shown(new));
        changes.push(Change {
            resource,
            action,
            why,
            disruption: rules::greatest(&needs),
        });
        actions.extend(needs);
    }
    Ok(Plan {
        changes,
        steps,
        actions: together(actions),
        record: after,
        warnings,
    })
}

struct Planning<'a> {
    targets: &'a Targets,
    seen: &'a Seen,
    record: &'a Record,
    after: Record,
    steps: Vec<Step>,
    problems: Vec<Problem>,
}

impl Planning<'_> {
    /// What we do not support may stand, but not change.
    fn sections_stand(&mut self, desired: &Desired) {
        let old = self.record.standing();
        let sections: BTreeSet<_> = old.keys().chain(desired.unsupported.keys()).collect();
        for section in sections {
            let (was, is) = (old.get(section), desired.unsupported.get(section));
            if was == is {
                continue;
            }
            let how = match (was, is) {
                (None, _) => "is new",
                (_, None) => "is gone",
                _ => "changes",
            };
            let message = format!(
                "{how}, and this section cannot change on a running machine: \
                 take the change back, or provision the machine anew"
            );
            self.problems
                .push(Problem::new(&section.name, &section.identity, message));
        }
    }

    /// What is ours and no longer desired goes first, deepest first, so that nothing is in the way.
    fn prune(&mut self) {
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
            .collect();
        gone.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
        for (path, owned) in gone {
            let is_folder = matches!(owned.entry, Entry::Directory { .. });
            if is_folder && needed.contains(path.as_str()) {
                self.after.owned.insert(path.clone(), owned.clone());
                continue;
            }
            let seen = self.seen.at(path);
            if *seen == owned.before || is_strangers(seen, Some(&owned.entry)) {
                continue;
            }
            if is_folder && !matches!(seen, Entry::Directory { .. }) {
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
        let mut made = BTreeSet::new();
        for (path, target) in self.targets {
            if target.entry == Entry::Absent {
                continue;
            }
            // Below a folder that we make there is nothing yet, whatever was seen there.
            let mut fresh = false;
            for folder in above(path) {
                fresh |= made.contains(folder) || self.going(folder).is_some();
                if !fresh && let Some(why) = self.seen.blocked.get(folder) {
                    let message = format!("cannot be placed: {folder} {why}");
                    self.problems
                        .push(Problem::new(&target.resource.to_string(), "", message));
                    break;
                }
                if !fresh && self.seen.folders.contains(folder) {
                    continue;
                }
                fresh = true;
                if made.insert(folder) {
                    self.make(folder, target);
                }
            }
        }
    }

    /// The step that takes `path` away, if there is one.
    fn going(&self, path: &str) -> Option<usize> {
        self.steps
            .iter()
            .position(|step| step.path == path && step.after == Entry::Absent)
    }

    fn make(&mut self, folder: &str, target: &Target) {
        let after = folder_for(folder, target);
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

    /// What is desired and does not stand there already.
    fn place(&mut self) {
        for (path, target) in self.targets {
            let seen = self.seen.at(path);
            let ours = self.record.owned.get(path).map(|owned| &owned.entry);
            if is_strangers(seen, ours) {
                if target.entry == Entry::Absent {
                    continue;
                }
                let message = format!(
                    "{path} is {}: move it away, it is not ours to replace",
                    seen.noun()
                );
                self.problems
                    .push(Problem::new(&target.resource.to_string(), "", message));
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
        let before = self
            .record
            .owned
            .get(path)
            .map_or_else(|| seen.clone(), |owned| owned.before.clone());
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
fn folder_for(folder: &str, target: &Target) -> Entry {
    let home = format!("/home/{KEYS_USER}");
    match (&target.resource, &target.entry) {
        (Resource::AuthorisedKeys(_), Entry::File { owner, .. }) if folder.starts_with(&home) => {
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
    for step in steps {
        let reason = step.part.difference(&step.before, &step.after);
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons.join("; ")
}

fn needs(
    resource: &Resource,
    steps: &[&Step],
    contents: &Contents,
    seen: &Seen,
) -> (Vec<Action>, Option<String>) {
    let step = steps.first();
    let old = step
        .and_then(|step| step.before.hash())
        .and_then(|hash| seen.contents.get(hash));
    let new = step
        .and_then(|step| step.after.hash())
        .and_then(|hash| contents.get(hash).or_else(|| seen.contents.get(hash)));
    rules::needs(resource, old.unwrap_or_default(), new.unwrap_or_default())
}

fn system_changes(desired: &Desired, record: &Record) -> Vec<(Resource, String, String)> {
    let arguments = (
        record.kernel_arguments.join(" "),
        desired.kernel_arguments.join(" "),
    );
    let image = (record.os_image_url.clone(), desired.os_image_url.clone());
    [
        (Resource::KernelArguments, arguments),
        (Resource::OsImage, image),
    ]
    .into_iter()
    .filter(|(_, (old, new))| old != new)
    .map(|(resource, (old, new))| (resource, old, new))
    .collect()
}

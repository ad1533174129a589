//! From a configuration to the paths of one machine: what must stand where.
//!
//! A unit becomes its file, its drop-ins and the links that enable it; a user's keys become the file
//! where this machine's sshd looks for them; names of users become numbers.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::machine::machine_config::Owner;
use serde::{Deserialize, Serialize};

use crate::machine::desired::{Desired, DesiredUnit};
use crate::machine::entry::{Entry, Hash, Ids, Names};
use crate::machine::problem::MachineProblem;
use crate::machine::resource::Resource;
use crate::machine::units::{Install, Preset, UNIT_FOLDER, UnitFacts, Vendor, install};

/// The user whose keys we keep.
pub const KEYS_USER: &str = "core";
/// Where a unit that may not be started points.
const MASK: &str = "/dev/null";
const UNIT_MODE: u32 = 0o644;
const KEYS_MODE: u32 = 0o600;

/// What must be known of a machine before the paths can be named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Users and groups.
    pub names: Names,
    /// Where the keys of [`KEYS_USER`] go, or why nowhere; nothing where no configuration brings any.
    pub keys: Option<Result<KeysFile, String>>,
    /// The units that the configuration names, and those they bring along.
    pub units: BTreeMap<String, UnitFacts>,
    /// There is no machine: configurations are compared with each other.
    pub imagined: bool,
}

/// The file for the keys of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysFile {
    /// Where it is.
    pub path: String,
    /// Whose it is: sshd believes no other.
    pub owner: Ids,
}

/// What must stand at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Whose path it is.
    pub resource: Resource,
    /// What it is for that resource.
    pub part: Part,
    /// What must stand there.
    pub entry: Entry,
}

/// What a path is for its resource; it decides how a difference is worded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The resource itself.
    Whole,
    /// A drop-in of a unit, by name.
    DropIn(String),
    /// The link that masks a unit.
    Mask,
    /// A link that enables a unit.
    Enablement,
    /// A Windows service, with its number in the order of creation.
    Service(u32),
    /// A payload file, with the services that run it. It is whoever brought it who takes it away.
    Payload(Vec<String>),
    /// A folder above it that was missing.
    Folder,
}

impl Part {
    /// Why `seen` is not `desired`, in words that fit this part.
    pub fn difference(&self, seen: &Entry, desired: &Entry) -> String {
        let plain = || {
            seen.differs_from(desired)
                .unwrap_or_else(|| "nothing differs".to_owned())
        };
        match (self, seen, desired) {
            (Self::DropIn(name), _, _) => format!("drop-in {name}: {}", plain()),
            (Self::Enablement, _, Entry::Absent) => "enabled, should not be".to_owned(),
            (Self::Enablement, Entry::Absent, _) => "not enabled".to_owned(),
            (Self::Enablement, _, _) => "enabled in another way".to_owned(),
            (Self::Mask, _, Entry::Link { .. }) => "not masked".to_owned(),
            (Self::Mask, _, _) => "masked, should not be".to_owned(),
            (Self::Whole | Self::Service(_) | Self::Payload(_) | Self::Folder, _, _) => plain(),
        }
    }
}

/// Everything that must stand somewhere, by path.
pub type Targets = BTreeMap<String, Target>;

/// The paths of `desired` on a machine with these `facts`, or everything that is wrong with them.
pub fn targets(desired: &Desired, facts: &Facts) -> Result<Targets, Vec<MachineProblem>> {
    let mut gather = Gather {
        facts,
        desired,
        targets: Targets::new(),
        problems: Vec::new(),
        linked: BTreeSet::new(),
    };
    for (path, file) in &desired.files {
        match facts.names.ids(&file.user, &file.group) {
            Ok(owner) => gather.put(
                path.clone(),
                Resource::File(path.clone()),
                Part::Whole,
                Entry::File {
                    hash: file.hash,
                    mode: file.mode,
                    owner,
                },
            ),
            Err(unknown) => {
                gather
                    .problems
                    .push(MachineProblem::new("storage.files", path, unknown));
            }
        }
    }
    for (name, unit) in &desired.units {
        gather.unit(name, unit);
    }
    if let Some(hash) = desired.ssh_keys {
        gather.keys(hash);
    }
    if gather.problems.is_empty() {
        Ok(gather.targets)
    } else {
        Err(gather.problems)
    }
}

struct Gather<'a> {
    facts: &'a Facts,
    desired: &'a Desired,
    targets: Targets,
    problems: Vec<MachineProblem>,
    linked: BTreeSet<String>,
}

impl Gather<'_> {
    fn put(&mut self, path: String, resource: Resource, part: Part, entry: Entry) {
        match self.targets.get(&path) {
            // One unit gives a name up and another takes it: the name is taken.
            Some(other) if other.entry != Entry::Absent && entry == Entry::Absent => return,
            Some(other) if other.resource != resource && other.entry != Entry::Absent => {
                let message = format!(
                    "{} is declared at {path}, too: declare it once",
                    other.resource
                );
                self.problems
                    .push(MachineProblem::new(&resource.to_string(), "", message));
                return;
            }
            _ => {}
        }
        self.targets.insert(
            path,
            Target {
                resource,
                part,
                entry,
            },
        );
    }

    fn unit(&mut self, name: &str, unit: &DesiredUnit) {
        let resource = || Resource::Unit(name.to_owned());
        let file = |hash: Hash| Entry::File {
            hash,
            mode: UNIT_MODE,
            owner: Ids::default(),
        };
        let place = format!("{UNIT_FOLDER}/{name}");
        if unit.masked {
            self.put(
                place,
                resource(),
                Part::Mask,
                Entry::Link {
                    target: MASK.to_owned(),
                },
            );
        } else if let Some(hash) = unit.contents {
            self.put(place, resource(), Part::Whole, file(hash));
        }
        for (drop_in, hash) in &unit.drop_ins {
            let path = format!("{UNIT_FOLDER}/{name}.d/{drop_in}");
            self.put(path, resource(), Part::DropIn(drop_in.clone()), file(*hash));
        }
        let enabled = match (unit.enabled, unit.contents) {
            (Some(enabled), _) => Some(enabled),
            // A unit that we bring follows the presets; one that we only add to is left as it is.
            (None, Some(_)) => match self.preset(name) {
                Preset::Enable => Some(true),
                Preset::Disable => Some(false),
                Preset::Unknown => None,
            },
            (None, None) => return,
        };
        match enabled {
            Some(true) => self.enable(name, name),
            Some(false) => self.disable(name, name),
            None => self.leave_to_preset(name),
        }
    }

    fn preset(&self, name: &str) -> Preset {
        self.facts
            .units
            .get(name)
            .map_or(Preset::Unknown, |facts| facts.preset)
    }

    /// Where the file of unit `name` is or will be, and what enabling it asks for.
    fn fragment(&self, name: &str) -> Option<Vendor> {
        let ours = |name: &str| {
            self.desired
                .units
                .get(name)
                .filter(|unit| unit.contents.is_some())
                .map(|unit| Vendor {
                    path: format!("{UNIT_FOLDER}/{name}"),
                    install: unit.install.clone(),
                })
        };
        let vendor = || {
            self.facts
                .units
                .get(name)
                .and_then(|facts| facts.vendor.clone())
        };
        if self.facts.imagined {
            return vendor();
        }
        ours(name)
            .or_else(|| install::template_of(name).and_then(|template| ours(&template)))
            .or_else(vendor)
    }

    fn enable(&mut self, name: &str, for_unit: &str) {
        if !self.linked.insert(name.to_owned()) {
            return;
        }
        let Some(fragment) = self.fragment(name) else {
            self.problems.push(MachineProblem::new(
                "systemd.units",
                for_unit,
                format!(
                    "{name} should be enabled, but is neither on this machine nor in the configuration: add its contents, or install the package that has it"
                ),
            ));
            return;
        };
        let seen = self
            .facts
            .units
            .get(name)
            .map(|facts| facts.links.clone())
            .unwrap_or_default();
        for (path, target) in fragment.install.links(name, &fragment.path) {
            // A link that names the same unit by another path enables it just as well.
            let target = match seen.get(&path) {
                Some(seen) if last(seen) == last(&target) => seen.clone(),
                _ => target,
            };
            self.put(
                path,
                Resource::Unit(for_unit.to_owned()),
                Part::Enablement,
                Entry::Link { target },
            );
        }
        for also in fragment.install.also() {
            self.enable(also, for_unit);
        }
    }

    fn disable(&mut self, name: &str, for_unit: &str) {
        if !self.linked.insert(name.to_owned()) {
            return;
        }
        if let Some(facts) = self.facts.units.get(name) {
            for path in facts.links.keys() {
                let resource = Resource::Unit(for_unit.to_owned());
                self.put(path.clone(), resource, Part::Enablement, Entry::Absent);
            }
        }
        for also in self
            .fragment(name)
            .map(|fragment| fragment.install.also().to_vec())
            .unwrap_or_default()
        {
            self.disable(&also, for_unit);
        }
    }

    /// With no machine to ask, "as the presets say" is a state of its own.
    fn leave_to_preset(&mut self, name: &str) {
        let path = imagined_link(name);
        let entry = Entry::Link {
            target: "as the presets say".to_owned(),
        };
        self.put(
            path,
            Resource::Unit(name.to_owned()),
            Part::Enablement,
            entry,
        );
    }

    fn keys(&mut self, hash: Hash) {
        let file = self.facts.keys.clone();
        match file.unwrap_or_else(|| Err(no_such_user())) {
            Ok(KeysFile { path, owner }) => {
                let entry = Entry::File {
                    hash,
                    mode: KEYS_MODE,
                    owner,
                };
                let resource = Resource::AuthorisedKeys(KEYS_USER.to_owned());
                self.put(path, resource, Part::Whole, entry);
            }
            Err(why) => {
                self.problems
                    .push(MachineProblem::new("passwd.users", KEYS_USER, why));
            }
        }
    }
}

/// Why keys of a user that is not there go nowhere.
pub fn no_such_user() -> String {
    format!("user {KEYS_USER} does not exist on this machine: create it, or remove its keys")
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn imagined_link(name: &str) -> String {
    format!("{UNIT_FOLDER}/boot.wants/{name}")
}

impl Facts {
    /// The facts of no machine in particular: every name exists and every unit can be enabled. For
    /// comparing configurations with each other.
    pub fn imagined(configurations: &[&Desired]) -> Self {
        let keys = KeysFile {
            path: format!("/home/{KEYS_USER}/.ssh/authorized_keys"),
            owner: Ids {
                user: 1_000_000,
                group: 1_000_000,
            },
        };
        let mut facts = Self {
            keys: Some(Ok(keys)),
            imagined: true,
            ..Self::default()
        };
        let mut next = 1_000_000;
        let mut number = |names: &mut BTreeMap<String, u32>, name: &str| {
            next += 1;
            names.entry(name.to_owned()).or_insert(next);
        };
        for desired in configurations {
            for file in desired.files.values() {
                if let Owner::Name(name) = &file.user {
                    number(&mut facts.names.users, name);
                }
                if let Owner::Name(name) = &file.group {
                    number(&mut facts.names.groups, name);
                }
            }
            for (name, unit) in &desired.units {
                let also = unit.install.also().iter();
                for name in std::iter::once(name).chain(also) {
                    facts.units.insert(name.clone(), imagined_unit(name));
                }
            }
        }
        facts
    }
}

fn imagined_unit(name: &str) -> UnitFacts {
    let link = BTreeMap::from([(imagined_link(name), name.to_owned())]);
    UnitFacts {
        vendor: Some(Vendor {
            path: name.to_owned(),
            install: Install::read(["[Install]\nWantedBy=boot"]),
        }),
        preset: Preset::Unknown,
        links: link,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(enabled: bool, alias: &str) -> DesiredUnit {
        DesiredUnit {
            contents: Some(Hash::of(alias.as_bytes())),
            install: Install::read([format!("[Install]\nAlias={alias}\n").as_str()]),
            enabled: Some(enabled),
            ..DesiredUnit::default()
        }
    }

    /// A machine on which `b.service` has the name `other.service` now.
    fn facts() -> Facts {
        let links = BTreeMap::from([(
            format!("{UNIT_FOLDER}/other.service"),
            "b.service".to_owned(),
        )]);
        let b = UnitFacts {
            links,
            ..UnitFacts::default()
        };
        Facts {
            units: BTreeMap::from([("b.service".to_owned(), b)]),
            ..Facts::default()
        }
    }

    #[test]
    fn a_name_that_one_unit_gives_up_another_can_take() {
        for (a, b) in [("a.service", "b.service"), ("z.service", "b.service")] {
            let mut desired = Desired::default();
            desired
                .units
                .insert(a.to_owned(), unit(true, "other.service"));
            desired
                .units
                .insert(b.to_owned(), unit(false, "other.service"));
            let found = targets(&desired, &facts()).unwrap();
            let target = format!("{UNIT_FOLDER}/{a}");
            assert_eq!(
                found[&format!("{UNIT_FOLDER}/other.service")].entry,
                Entry::Link { target }
            );
        }
    }

    #[test]
    fn a_name_that_two_units_want_is_refused() {
        let mut desired = Desired::default();
        for name in ["a.service", "b.service"] {
            desired
                .units
                .insert(name.to_owned(), unit(true, "other.service"));
        }
        let problems = targets(&desired, &facts()).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0]
                .to_string()
                .contains("other.service, too: declare it once"),
            "{}",
            problems[0]
        );
    }
}

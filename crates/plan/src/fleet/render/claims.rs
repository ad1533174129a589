//! Which paths the parts of a merged configuration claim, and that no two of them claim the same one
//! as something else; and who said what, to tell people whose a conflict is.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::Problems;
use evenkeel_api::machine::fragment::Fragment;
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_api::names::linux;

use super::Conflict;

/// Who speaks of what is at a path: the section, the path, and the sources, the highest last.
#[derive(Debug, Default)]
pub(super) struct PathClaims {
    by: BTreeMap<(&'static str, String), Vec<String>>,
}

const FILES: &str = "storage.files";
const UNITS: &str = "systemd.units";
/// Sections whose elements are paths, and whether others may be below them.
const PATHS: [(&str, bool); 3] = [
    (FILES, false),
    ("storage.links", true),
    ("storage.directories", true),
];

impl PathClaims {
    /// Notes all paths of which `fragment` speaks.
    pub(super) fn note(&mut self, source: &str, fragment: &Fragment) {
        for at_path in fragment.paths() {
            let sources = self.by.entry(at_path).or_default();
            sources.push(source.to_owned());
        }
    }

    /// Whether all of `merged` can hold at once.
    pub(super) fn check(&self, merged: &MachineConfig) -> Result<(), Conflict> {
        let claimed = claimed(merged);
        for (path, sections) in &claimed {
            let mut sections = sections.iter().copied();
            let Some(section) = sections.next() else {
                continue;
            };
            if let Some(other) = sections.next() {
                let what = format!("{path} is in {section} and in {other}");
                return Err(self.conflict(what, (section, path), (other, path)));
            }
            for above in crate::machine::above(path) {
                let holders = claimed.get(above).into_iter().flatten();
                let solid = |it: &&&str| !PATHS.contains(&(**it, true));
                if let Some(over) = holders.into_iter().find(solid) {
                    let what = format!("{section} {path} is below {over} {above}");
                    return Err(self.conflict(what, (*over, above), (section, path)));
                }
            }
        }
        Ok(())
    }

    fn conflict(
        &self,
        what: String,
        one: (&'static str, &str),
        other: (&'static str, &str),
    ) -> Conflict {
        let last = |(section, path): (&'static str, &str)| {
            let sources = self.by.get(&(section, path.to_owned()));
            let last = sources.and_then(|it| it.last());
            last.cloned().unwrap_or_default()
        };
        Conflict {
            what,
            sources: [last(one), last(other)],
        }
    }

    /// Whose fault it is that what was valid one by one is not together. Only files can be so.
    pub(super) fn blame(&self, problems: &Problems) -> Conflict {
        let Some(problem) = problems.iter().next() else {
            let sources = [String::from("one MachineConfig"), String::from("another")];
            return Conflict {
                what: String::from("the cause is unknown"),
                sources,
            };
        };
        let (section, path) = (problem.place.section(), &problem.place.identity);
        let sources = self.by.get(&(FILES, path.clone()));
        let mut last = sources.into_iter().flatten().rev().cloned();
        let higher = last
            .next()
            .unwrap_or_else(|| String::from("one MachineConfig"));
        let lower = last.next().unwrap_or_else(|| String::from("another"));
        Conflict {
            what: format!("{section} {path}: {}", problem.message),
            sources: [lower, higher],
        }
    }
}

/// The sections that put something at a path, by the path.
fn claimed(merged: &MachineConfig) -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut claimed: BTreeMap<String, BTreeSet<&'static str>> = BTreeMap::new();
    let mut claim = |path: String, section| claimed.entry(path).or_default().insert(section);
    for path in merged.files.keys() {
        claim(path.clone(), FILES);
    }
    for (name, unit) in &merged.units {
        let path = format!("{}/{name}", linux::UNITS);
        for drop_in in unit.drop_ins.keys() {
            claim(format!("{path}.d/{drop_in}"), UNITS);
        }
        if unit.contents.is_some() || unit.masked {
            claim(path, UNITS);
        }
    }
    for section in merged.unsupported.keys() {
        let known = PATHS.iter().find(|(name, _)| *name == section.name);
        if let Some((name, _)) = known {
            claim(section.identity.clone(), name);
        }
    }
    claimed
}

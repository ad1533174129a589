//! Which paths the parts of a merged configuration claim, and that no two of them claim the same one
//! as something else.

use std::collections::BTreeMap;

use evenkeel_api::machine_config::MachineConfig;
use evenkeel_api::names::linux;

use super::Conflict;

/// What is at a path, and who says so. Of two who say the same, the later one counts.
#[derive(Debug, Default)]
pub(super) struct Claims {
    at: BTreeMap<String, Vec<Claim>>,
}

#[derive(Debug)]
struct Claim {
    section: &'static str,
    source: String,
}

const FILES: &str = "storage.files";
const UNITS: &str = "systemd.units";
/// Sections whose elements are paths, and whether others may be below them.
const PATHS: [(&str, bool); 3] = [
    (FILES, false),
    ("storage.links", true),
    ("storage.directories", true),
];

impl Claims {
    /// Notes all paths of `config`.
    pub(super) fn note(&mut self, source: &str, config: &MachineConfig) {
        for path in config.files.keys() {
            self.claim(path, FILES, source);
        }
        for (name, unit) in &config.units {
            let path = format!("{}/{name}", linux::UNITS);
            for drop_in in unit.drop_ins.keys() {
                self.claim(&format!("{path}.d/{drop_in}"), UNITS, source);
            }
            if unit.contents.is_some() || unit.masked {
                self.claim(&path, UNITS, source);
            }
        }
        for section in config.unsupported.keys() {
            let known = PATHS.iter().find(|(name, _)| *name == section.name);
            if let Some((name, _)) = known {
                self.claim(&section.identity, name, source);
            }
        }
    }

    fn claim(&mut self, path: &str, section: &'static str, source: &str) {
        let claims = self.at.entry(path.to_owned()).or_default();
        claims.retain(|claim| claim.section != section);
        claims.push(Claim {
            section,
            source: source.to_owned(),
        });
    }

    /// Whether all of them can hold at once.
    pub(super) fn check(&self) -> Result<(), Conflict> {
        for (path, claims) in &self.at {
            if let [one, other, ..] = claims.as_slice() {
                let what = format!("{path} is in {} and in {}", one.section, other.section);
                return Err(conflict(what, one, other));
            }
            let Some(below) = claims.first() else {
                continue;
            };
            for above in crate::machine::above(path) {
                let holders = self.at.get(above).into_iter().flatten();
                let solid = |it: &&Claim| !PATHS.contains(&(it.section, true));
                if let Some(file) = holders.into_iter().find(solid) {
                    let (section, over) = (below.section, file.section);
                    let what = format!("{section} {path} is below {over} {above}");
                    return Err(conflict(what, file, below));
                }
            }
        }
        Ok(())
    }
}

fn conflict(what: String, one: &Claim, other: &Claim) -> Conflict {
    Conflict {
        what,
        sources: [one.source.clone(), other.source.clone()],
    }
}

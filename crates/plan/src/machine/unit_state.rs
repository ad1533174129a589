//! What systemd must make of the units of a configuration, besides what stands on disk: something of
//! the running machine may outweigh it, such as a mask that is gone after a boot.

use std::collections::BTreeMap;

use crate::machine::entry::Entry;
use crate::machine::resource::Resource;
use crate::machine::targets::{Part, Target, Targets};

/// What systemd must make of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expected {
    /// It can be started: its file is ours.
    There,
    /// It starts at boot.
    Enabled,
    /// It does not.
    Disabled,
    /// It cannot be started at all.
    Masked,
}

/// What is expected of each unit that `targets` name.
pub fn expected(targets: &Targets) -> BTreeMap<&str, Vec<Expected>> {
    let mut all: BTreeMap<&str, Vec<Expected>> = BTreeMap::new();
    for (path, target) in targets {
        if let Some((unit, expected)) = of(path, target) {
            all.entry(unit).or_default().push(expected);
        }
    }
    for expected in all.values_mut() {
        expected.sort_unstable();
        expected.dedup();
        // A masked unit is masked, whatever else it would be.
        if expected.contains(&Expected::Masked) {
            *expected = vec![Expected::Masked];
        }
    }
    all
}

fn of<'a>(path: &'a str, target: &'a Target) -> Option<(&'a str, Expected)> {
    let Resource::Unit(unit) = &target.resource else {
        return None;
    };
    match (&target.part, &target.entry) {
        (Part::Mask, Entry::Link { .. }) => Some((unit, Expected::Masked)),
        (Part::Whole, Entry::File { .. }) => Some((unit, Expected::There)),
        (Part::Enablement, entry) => {
            // A unit may bring others along; an alias has no state of its own.
            let (folder, name) = path.rsplit_once('/')?;
            let expected = match entry {
                Entry::Absent => Expected::Disabled,
                _ => Expected::Enabled,
            };
            let (_, kind) = folder.rsplit_once('.')?;
            matches!(kind, "wants" | "requires" | "upholds").then_some((name, expected))
        }
        _ => None,
    }
}

impl Expected {
    /// Why a unit that systemd calls `state` is not as expected; nothing if it is.
    pub fn difference(self, state: Option<&str>) -> Option<String> {
        let masked = state.is_some_and(|state| state.starts_with("masked"));
        let known = !matches!(state, None | Some("bad"));
        let (fine, should) = match self {
            Self::There => (known && !masked, "loaded"),
            Self::Enabled => (known && !masked && state != Some("disabled"), "enabled"),
            Self::Disabled => (
                !matches!(state, Some("enabled" | "enabled-runtime")),
                "disabled",
            ),
            Self::Masked => (masked, "masked"),
        };
        let state = state.unwrap_or("not found");
        (!fine).then(|| format!("systemd reports {state}, should be {should}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Expected::{Disabled, Enabled, Masked, There};
    use super::*;
    use crate::machine::entry::{Hash, Ids};

    fn unit(name: &str, part: Part, entry: Entry) -> Target {
        Target {
            resource: Resource::Unit(name.to_owned()),
            part,
            entry,
        }
    }

    fn link(target: &str) -> Entry {
        Entry::Link {
            target: target.to_owned(),
        }
    }

    #[test]
    fn each_unit_is_expected_to_be_what_its_paths_say() {
        let file = Entry::File {
            hash: Hash::of(b""),
            mode: 0o644,
            owner: Ids::default(),
        };
        let enablement = |name: &str, entry| unit(name, Part::Enablement, entry);
        let targets = Targets::from([
            ("/u/a.service".into(), unit("a.service", Part::Whole, file)),
            (
                "/u/m.target.wants/a.service".into(),
                enablement("a.service", link("/u/a.service")),
            ),
            (
                "/u/m.target.wants/also.socket".into(),
                enablement("a.service", link("x")),
            ),
            (
                "/u/m.target.wants/b.service".into(),
                enablement("b.service", Entry::Absent),
            ),
            (
                "/u/c.service".into(),
                unit("c.service", Part::Mask, link("/dev/null")),
            ),
            (
                "/u/m.target.wants/c.service".into(),
                enablement("c.service", link("x")),
            ),
            (
                "/u/other.service".into(),
                enablement("b.service", Entry::Absent),
            ),
        ]);
        let all = BTreeMap::from([
            ("a.service", vec![There, Enabled]),
            ("also.socket", vec![Enabled]),
            ("b.service", vec![Disabled]),
            ("c.service", vec![Masked]),
        ]);
        assert_eq!(expected(&targets), all);
    }

    #[test]
    fn what_systemd_calls_a_unit_fits_or_is_a_difference() {
        for (expected, state, fits) in [
            (There, Some("static"), true),
            (There, Some("masked-runtime"), false),
            (There, None, false),
            (Enabled, Some("enabled"), true),
            (Enabled, Some("static"), true),
            (Enabled, Some("disabled"), false),
            (Enabled, Some("masked"), false),
            (Disabled, Some("disabled"), true),
            (Disabled, Some("enabled-runtime"), false),
            (Disabled, None, true),
            (Masked, Some("masked"), true),
            (Masked, Some("enabled"), false),
            (Masked, None, false),
        ] {
            let difference = expected.difference(state);
            assert_eq!(difference.is_none(), fits, "{expected:?}: {difference:?}");
        }
        assert_eq!(
            Masked.difference(None).as_deref(),
            Some("systemd reports not found, should be masked")
        );
    }
}

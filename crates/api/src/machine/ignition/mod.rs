//! Ignition configurations, 2.2 and 3.0 to 3.5, read into and written from the one normal form.
//! Each version's keys are a table; what is ours to do is read here, and everything else is kept as
//! it stands so that a change of it can be seen and refused.

pub(crate) mod data_url;
mod files;
mod keys;
mod keys_2_2;
pub(crate) mod merge;
mod paths;
mod rules;
mod unit_text;
mod units;
mod unsupported;
mod url;
pub(crate) mod write;

use crate::located::Node;
use crate::machine::machine_config::MachineConfig;
use crate::problem::{At, Findings};
use crate::shape::{self, Shape};

/// A version of the specification that we read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spec {
    TwoTwo,
    Three(u8),
}

impl Spec {
    const NEWEST: u8 = 5;

    fn named(version: &str) -> Result<Self, String> {
        let readable = "2.2.0 and 3.0.0 to 3.5.0 are supported";
        if version == "2.2.0" {
            return Ok(Self::TwoTwo);
        }
        let minor = version
            .strip_prefix("3.")
            .and_then(|rest| rest.strip_suffix(".0"));
        match minor.and_then(|minor| minor.parse::<u8>().ok()) {
            Some(minor) if minor <= Self::NEWEST && version == format!("3.{minor}.0") => {
                return Ok(Self::Three(minor));
            }
            _ => {}
        }
        Err(if version.ends_with("-experimental") {
            format!("ignition.version {version:?} is experimental: use a released one ({readable})")
        } else if version.starts_with("2.") {
            format!(
                "ignition.version {version:?} is not supported: write it as 2.2.0 or translate it to 3.x ({readable})"
            )
        } else if version.starts_with("3.") {
            format!(
                "ignition.version {version:?} is unknown: use 3.{}.0 or older ({readable})",
                Self::NEWEST
            )
        } else {
            format!("ignition.version {version:?} is unknown: {readable}")
        })
    }

    pub(crate) fn keys(self) -> &'static Shape {
        match self {
            Self::TwoTwo => &keys_2_2::CONFIG,
            Self::Three(_) => &keys::CONFIG,
        }
    }

    pub(crate) fn minor(self) -> u8 {
        match self {
            Self::TwoTwo => u8::MAX,
            Self::Three(minor) => minor,
        }
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TwoTwo => f.write_str("2.2.0"),
            Self::Three(minor) => write!(f, "3.{minor}.0"),
        }
    }
}

/// Reads a whole Ignition configuration into `config`.
pub(crate) fn read(
    node: &Node<'_>,
    at: &At<'_>,
    config: &mut MachineConfig,
    findings: &mut Findings,
) {
    let Some(spec) = version(node, at, findings) else {
        return;
    };
    shape::check(node, spec.keys(), spec.minor(), at, findings);
    if let Spec::Three(minor) = spec {
        rules::check(node, minor, at, findings);
    }
    let mut taken = paths::Taken::default();
    config.files = files::read(node, spec, at, &mut taken, findings);
    config.units = units::read(node, at, findings);
    unsupported::read(node, Some(spec), at, &mut taken, config, findings);
    paths::check_together(config, node, at, findings);
}

/// Reads the sections that are not ours to do, and judges nothing but the version.
pub(crate) fn read_sections(
    node: &Node<'_>,
    at: &At<'_>,
    config: &mut MachineConfig,
    findings: &mut Findings,
) {
    if let Some(spec) = version(node, at, findings) {
        let (mut taken, mut unjudged) = (paths::Taken::default(), Findings::of(""));
        unsupported::read(node, Some(spec), at, &mut taken, config, &mut unjudged);
    }
}

/// Reads what several configurations say together, each of them valid and in the words of its version.
/// That nothing stands in the way of something else is for those who know where both come from.
pub(crate) fn read_merged(node: &Node<'_>, config: &mut MachineConfig, findings: &mut Findings) {
    let at = At::top(None);
    let mut taken = paths::Taken::default();
    config.files = files::read(node, Spec::Three(Spec::NEWEST), &at, &mut taken, findings);
    config.units = units::read(node, &at, findings);
    unsupported::read(node, None, &at, &mut taken, config, findings);
}

fn version(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Option<Spec> {
    let ignition = node.get("ignition");
    let line = ignition.map_or(node.line, |ignition| ignition.line);
    let section = at.key("ignition", line);
    let Some(version) = ignition.and_then(|ignition| ignition.get("version")) else {
        let message = "ignition.version is missing: write the version of the specification, for example 3.4.0";
        findings.problem(&section, message);
        return None;
    };
    let here = section.key("version", version.line);
    let Some(text) = version.as_text() else {
        let message = format!(
            "ignition.version must be text, found {}: write \"3.4.0\"",
            version.kind()
        );
        findings.problem(&here, message);
        return None;
    };
    Spec::named(text)
        .map_err(|message| findings.problem(&here, message))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers M04.
    #[test]
    fn the_versions_of_the_specification_that_are_read() {
        for (text, spec) in [
            ("2.2.0", Spec::TwoTwo),
            ("3.0.0", Spec::Three(0)),
            ("3.5.0", Spec::Three(5)),
        ] {
            assert_eq!(Spec::named(text), Ok(spec));
            assert_eq!(spec.to_string(), text);
        }
        for (text, words) in [
            ("2.1.0", "write it as 2.2.0"),
            ("2.3.0", "write it as 2.2.0"),
            ("3.6.0", "use 3.5.0 or older"),
            ("3.5.1", "use 3.5.0 or older"),
            ("3.05.0", "use 3.5.0 or older"),
            ("3.6.0-experimental", "is experimental"),
            ("1", "is unknown"),
            ("4.0.0", "is unknown"),
            ("", "is unknown"),
        ] {
            let message = Spec::named(text).unwrap_err();
            assert!(message.contains(words), "{message}");
            assert!(
                message.contains("2.2.0 and 3.0.0 to 3.5.0 are supported"),
                "{message}"
            );
        }
    }
}

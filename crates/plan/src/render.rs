//! Several configurations become one: merged in the order of their names, and named by what they
//! say, so that the same input is the same rendered configuration on every run and machine.

mod claims;
mod whole;

use std::fmt;

use evenkeel_api::machine_config::{MachineConfig, Section, Unit};
use serde_json::Value;

use crate::entry::Hash;

use self::claims::Claims;
pub use self::whole::{LIMIT, RenderProblem, Rendered, render};

/// Two configurations that cannot both hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What they disagree about.
    pub what: String,
    /// Where both come from.
    pub sources: [String; 2],
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = &self.sources;
        write!(f, "{one} and {other} cannot be merged: {}", self.what)
    }
}

impl std::error::Error for Conflict {}

/// Merges configurations, each with the name by which people know its source.
///
/// They are taken in the order of their own names, those without one first and as given: files by
/// path, units by name with their drop-ins, the later one winning; keys and kernel arguments
/// together; the last image that is not empty.
pub fn merge(mut configs: Vec<(String, MachineConfig)>) -> Result<MachineConfig, Conflict> {
    configs.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    let mut merged = MachineConfig::default();
    let mut claims = Claims::default();
    for (source, config) in configs {
        claims.note(&source, &config);
        for (path, file) in config.files {
            merged.files.insert(path, file);
        }
        for (name, unit) in config.units {
            add_unit(merged.units.entry(name).or_default(), unit);
        }
        for key in config.ssh_keys {
            if !merged.ssh_keys.contains(&key) {
                merged.ssh_keys.push(key);
            }
        }
        merged.kernel_arguments.extend(config.kernel_arguments);
        if !config.os_image_url.is_empty() {
            merged.os_image_url = config.os_image_url;
        }
        for (section, value) in config.unsupported {
            let value = match merged.unsupported.remove(&section) {
                Some(before) => together(&section, before, value),
                None => value,
            };
            merged.unsupported.insert(section, value);
        }
    }
    claims.check()?;
    Ok(merged)
}

/// The name of a rendered configuration of `pool`: it follows from what the configuration says.
pub fn name(pool: &str, config: &MachineConfig) -> String {
    let unnamed = MachineConfig {
        name: None,
        ..config.clone()
    };
    let hash = Hash::of(unnamed.to_document().to_string().as_bytes()).to_string();
    format!("rendered-{pool}-{}", &hash[..32])
}

fn add_unit(unit: &mut Unit, later: Unit) {
    unit.contents = later.contents.or(unit.contents.take());
    unit.enabled = later.enabled.or(unit.enabled);
    unit.masked |= later.masked;
    unit.drop_ins.extend(later.drop_ins);
}

/// Lists of a section grow, everything else is replaced. FIPS, once asked for, stays: only `true` is
/// ever said.
fn together(section: &Section, before: Value, later: Value) -> Value {
    match (before, later) {
        (Value::Array(mut all), Value::Array(more)) if section.identity.is_empty() => {
            for value in more {
                if !all.contains(&value) {
                    all.push(value);
                }
            }
            Value::Array(all)
        }
        (_, later) => later,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_api::machine_config::{File, Owner};

    use super::*;

    fn config(name: &str, files: &[(&str, &str)]) -> (String, MachineConfig) {
        let files = files.iter().map(|(path, text)| {
            let file = File {
                contents: text.as_bytes().to_vec(),
                mode: File::DEFAULT_MODE,
                user: Owner::default(),
                group: Owner::default(),
            };
            ((*path).to_owned(), file)
        });
        let config = MachineConfig {
            name: Some(name.to_owned()),
            files: files.collect(),
            ..MachineConfig::default()
        };
        (format!("{name}.yaml"), config)
    }

    #[test]
    fn later_names_win_whatever_the_order_they_are_given_in() {
        let (a, b) = (
            config("00-a", &[("/x", "a"), ("/a", "a")]),
            config("99-b", &[("/x", "b")]),
        );
        let one = merge(vec![a.clone(), b.clone()]).unwrap();
        let other = merge(vec![b, a]).unwrap();
        assert_eq!(one, other);
        assert_eq!(one.files["/x"].contents, b"b");
        assert_eq!(one.files["/a"].contents, b"a");
        assert_eq!(name("worker", &one), name("worker", &other));
    }

    #[test]
    fn units_keys_arguments_and_lists_come_together() {
        let (_, mut a) = config("a", &[]);
        let (_, mut b) = config("b", &[]);
        let unit = |contents: Option<&str>, enabled, drop_in: &str| Unit {
            contents: contents.map(str::to_owned),
            enabled,
            masked: false,
            drop_ins: BTreeMap::from([(drop_in.to_owned(), drop_in.to_owned())]),
        };
        a.units.insert(
            "u.service".into(),
            unit(Some("[Unit]"), Some(true), "10.conf"),
        );
        b.units
            .insert("u.service".into(), unit(None, None, "20.conf"));
        a.ssh_keys = vec!["one".into(), "two".into()];
        b.ssh_keys = vec!["two".into(), "three".into()];
        a.kernel_arguments = vec!["quiet".into()];
        b.kernel_arguments = vec!["debug".into()];
        a.os_image_url = "os:1".into();
        let section = |name: &str| Section {
            name: name.into(),
            identity: String::new(),
        };
        a.unsupported
            .insert(section("spec.extensions"), serde_json::json!(["usbguard"]));
        b.unsupported.insert(
            section("spec.extensions"),
            serde_json::json!(["usbguard", "kerberos"]),
        );
        a.unsupported
            .insert(section("spec.fips"), Value::Bool(true));
        let merged = merge(vec![("a".into(), a), ("b".into(), b)]).unwrap();
        let unit = &merged.units["u.service"];
        assert_eq!(
            (unit.contents.as_deref(), unit.enabled, unit.drop_ins.len()),
            (Some("[Unit]"), Some(true), 2)
        );
        assert_eq!(merged.ssh_keys, ["one", "two", "three"]);
        assert_eq!(merged.kernel_arguments, ["quiet", "debug"]);
        assert_eq!(merged.os_image_url, "os:1");
        assert_eq!(
            merged.unsupported[&section("spec.extensions")],
            serde_json::json!(["usbguard", "kerberos"])
        );
        assert_eq!(merged.unsupported[&section("spec.fips")], Value::Bool(true));
    }

    #[test]
    fn an_impossible_merge_names_both_sources() {
        let error = merge(vec![
            config("a", &[("/etc/x", "")]),
            config("b", &[("/etc/x/y", "")]),
        ])
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.yaml and b.yaml cannot be merged: storage.files /etc/x/y is below storage.files /etc/x"
        );
        // A unit is a file, too.
        let (source, mut unit) = config("b", &[]);
        unit.units.insert(
            "x.service".to_owned(),
            Unit {
                contents: Some(String::new()),
                ..Unit::default()
            },
        );
        let file = config("a", &[("/etc/systemd/system/x.service", "")]);
        let error = merge(vec![file, (source, unit)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.yaml and b.yaml cannot be merged: /etc/systemd/system/x.service is in storage.files and in systemd.units"
        );
        // So is a link, which we keep although we do not make it.
        let (source, mut link) = config("b", &[]);
        let section = Section {
            name: "storage.links".to_owned(),
            identity: "/etc/x".to_owned(),
        };
        link.unsupported.insert(
            section,
            serde_json::json!({ "path": "/etc/x", "target": "/y" }),
        );
        let error = merge(vec![config("a", &[("/etc/x", "")]), (source, link)]).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("/etc/x is in storage.files and in storage.links"),
            "{error}"
        );
    }

    #[test]
    fn a_name_follows_from_the_content_alone() {
        let (_, one) = config("a", &[("/x", "1")]);
        let (_, same) = config("b", &[("/x", "1")]);
        let (_, other) = config("a", &[("/x", "2")]);
        assert_eq!(name("worker", &one), name("worker", &same));
        assert_ne!(name("worker", &one), name("worker", &other));
        assert!(name("worker", &one).starts_with("rendered-worker-"));
        assert_eq!(name("worker", &one).len(), "rendered-worker-".len() + 32);
    }
}

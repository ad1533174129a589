//! `systemd.units`: units and their drop-ins. What a unit says is systemd's business, not ours.

use std::collections::BTreeMap;

use super::unit_text;
use crate::located::Node;
use crate::machine::machine_config::Unit;
use crate::problem::{At, Findings};

const SUFFIXES: [&str; 11] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "slice",
    "scope",
];

const MAX_NAME: usize = 255;

pub(super) fn read(
    node: &Node<'_>,
    at: &At<'_>,
    findings: &mut Findings,
) -> BTreeMap<String, Unit> {
    let mut units = BTreeMap::new();
    let Some(systemd) = node.get("systemd") else {
        return units;
    };
    let section = at.key("systemd", systemd.line);
    let list = section.key("units", systemd.line);
    for (index, item) in systemd.list("units").iter().enumerate() {
        let Some(name) = item.text("name") else {
            continue;
        };
        let here = list.index(index, item.line).called(name);
        if let Err(message) = judge_unit(name) {
            findings.problem(&here, message);
        }
        judge_text(item, &here, findings);
        let unit = Unit {
            contents: filled(item),
            // The older `enable` only ever switches on.
            enabled: item
                .flag("enabled")
                .or(item.flag("enable").filter(|enable| *enable)),
            masked: item.flag("mask").unwrap_or_default(),
            drop_ins: drop_ins(item, &here, findings),
        };
        if units.insert(name.to_owned(), unit).is_some() {
            findings.problem(&here, "the same unit is listed twice: keep one");
        }
    }
    units
}

fn drop_ins(unit: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> BTreeMap<String, String> {
    let mut drop_ins: BTreeMap<String, Option<String>> = BTreeMap::new();
    let list = at.key("dropins", unit.line);
    for (index, item) in unit.list("dropins").iter().enumerate() {
        let Some(name) = item.text("name") else {
            continue;
        };
        let here = list.index(index, item.line).called(name);
        if let Err(message) = judge_drop_in(name) {
            findings.problem(&here, message);
        }
        judge_text(item, &here, findings);
        let contents = filled(item);
        if contents.is_none() {
            findings.warning(&here, "the drop-in has no contents and is ignored");
        }
        if drop_ins.insert(name.to_owned(), contents).is_some() {
            findings.problem(&here, "the same drop-in is listed twice: keep one");
        }
    }
    let filled = drop_ins.into_iter();
    filled
        .filter_map(|(name, contents)| Some((name, contents?)))
        .collect()
}

fn judge_text(item: &Node<'_>, at: &At<'_>, findings: &mut Findings) {
    let Some(contents) = item.get("contents") else {
        return;
    };
    if let Err(message) = unit_text::judge(contents.as_text().unwrap_or_default()) {
        let here = at.key("contents", contents.line);
        findings.problem(&here, format!("contents: {message}"));
    }
}

fn filled(item: &Node<'_>) -> Option<String> {
    let contents = item
        .text("contents")
        .filter(|contents| !contents.is_empty());
    contents.map(str::to_owned)
}

fn judge_unit(name: &str) -> Result<(), String> {
    judge_length(name)?;
    if name.contains('/') {
        return Err("name has a slash: give the unit's name, not a path".to_owned());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if let Some(odd) = name.chars().find(|c| !allowed(*c)) {
        return Err(format!(
            "name has {odd:?}, which systemd does not load: use letters, digits and :-_.\\@"
        ));
    }
    match name.rsplit_once('.') {
        Some((stem, suffix)) if !stem.is_empty() && SUFFIXES.contains(&suffix) => Ok(()),
        _ => Err(format!(
            "name does not end in a unit type: add one of .{}",
            SUFFIXES.join(" .")
        )),
    }
}

fn judge_drop_in(name: &str) -> Result<(), String> {
    judge_length(name)?;
    if name.contains(['/', '\0']) {
        return Err("name has a slash: give the drop-in's name, not a path".to_owned());
    }
    match name.strip_suffix(".conf") {
        Some(stem) if !stem.is_empty() => Ok(()),
        _ => Err("name does not end in .conf: systemd reads no other drop-ins".to_owned()),
    }
}

fn judge_length(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err("name is empty: give one".to_owned()),
        length if length > MAX_NAME => {
            Err(format!("name has {length} bytes: the limit is {MAX_NAME}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers M08.
    #[test]
    fn a_unit_name_is_one_that_systemd_loads() {
        for name in [
            "a.service",
            "getty@tty1.service",
            "dev-sda1.swap",
            r"a\x2db.mount",
            "x.y.timer",
        ] {
            assert_eq!(judge_unit(name), Ok(()), "{name}");
        }
        let long = format!("{}.service", "x".repeat(248));
        for (name, words) in [
            ("", "is empty"),
            ("a/b.service", "slash"),
            ("../a.service", "slash"),
            ("a", "unit type"),
            ("a.conf", "unit type"),
            (".service", "unit type"),
            ("a.service.d", "unit type"),
            ("a b.service", "does not load"),
            (long.as_str(), "256 bytes"),
        ] {
            let message = judge_unit(name).unwrap_err();
            assert!(message.contains(words), "{name}: {message}");
        }
    }

    /// Covers M08.
    #[test]
    fn a_drop_in_name_is_one_that_systemd_reads() {
        assert_eq!(judge_drop_in("10-a.conf"), Ok(()));
        for name in ["", ".conf", "10-a", "10-a.config", "a/b.conf"] {
            assert!(judge_drop_in(name).is_err(), "{name}");
        }
    }
}

//! Files, directories and links beside each other.

use std::collections::BTreeSet;

use super::super::paths;
use super::{filled, is_set, judge_path};
use crate::located::Node;
use crate::names::linux;
use crate::problem::{At, Findings};

const LISTS: [&str; 3] = ["files", "directories", "links"];

pub(super) fn check(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) {
    let Some(storage) = node.get("storage") else {
        return;
    };
    let units = unit_files(node);
    let links: Vec<_> = storage
        .list("links")
        .iter()
        .filter_map(|link| link.text("path"))
        .collect();
    let directories: BTreeSet<_> = storage
        .list("directories")
        .iter()
        .filter_map(|it| it.text("path"))
        .collect();
    let section = at.key("storage", storage.line);
    for list in LISTS {
        let here = section.key(list, storage.line);
        for (index, item) in storage.list(list).iter().enumerate() {
            let path = item.text("path").unwrap_or_default();
            let here = here.index(index, item.line).called(path);
            let mut wrong = |key: &'static str, message: String| {
                let line = item.get(key).map_or(item.line, |value| value.line);
                findings.problem(&here.key(key, line), message);
            };
            let above = links.iter().find(|link| {
                let rest = path.strip_prefix(**link);
                rest.is_some_and(|rest| rest.starts_with('/'))
            });
            if let Some(link) = above {
                wrong(
                    "path",
                    format!("path is below {link}, which is a link: name where it leads to"),
                );
            }
            if list == "files" {
                let has_source = item
                    .get("contents")
                    .is_some_and(|contents| contents.get("source").is_some());
                if is_set(item, "overwrite") && !has_source {
                    wrong(
                        "overwrite",
                        "overwrite is true and there are no contents: give contents.source, or leave overwrite out".to_owned(),
                    );
                }
                continue;
            }
            // Of files all of this is read elsewhere.
            if let Err(message) = judge_path("path", path) {
                wrong("path", message);
            }
            if units.contains(path) {
                wrong(
                    "path",
                    "the same path is also that of a unit or a drop-in: keep one of them"
                        .to_owned(),
                );
            }
            for key in ["user", "group"] {
                let both = item.get(key).is_some_and(|owner| {
                    owner.integer("id").is_some() && filled(owner, "name").is_some()
                });
                if both {
                    wrong(key, format!("{key} has both id and name: give one of them"));
                }
            }
            if list == "links" {
                if let Err(message) = judge_target(item, path, &directories) {
                    wrong("target", message);
                }
            } else if item
                .integer("mode")
                .is_some_and(|it| !(0..=0o7777).contains(&it))
            {
                wrong(
                    "mode",
                    "mode is not within 0 and 07777: give permission bits only".to_owned(),
                );
            }
        }
    }
}

fn judge_target(link: &Node<'_>, path: &str, directories: &BTreeSet<&str>) -> Result<(), String> {
    let Some(target) = filled(link, "target") else {
        return Err("target is missing: say where the link leads to".to_owned());
    };
    let target = paths::joined(path, target);
    if is_set(link, "hard") && directories.contains(target.as_str()) {
        return Err(format!(
            "{target} is a directory, to which no hard link can lead: make it a symbolic one"
        ));
    }
    Ok(())
}

/// Where the units and drop-ins with contents are.
fn unit_files(node: &Node<'_>) -> BTreeSet<String> {
    let units = node.get("systemd").map_or(&[][..], |it| it.list("units"));
    let mut files = BTreeSet::new();
    for unit in units {
        let path = format!("{}/{}", linux::UNITS, unit.text("name").unwrap_or_default());
        for drop_in in unit.list("dropins") {
            if filled(drop_in, "contents").is_some() {
                let name = drop_in.text("name").unwrap_or_default();
                files.insert(format!("{path}.d/{name}"));
            }
        }
        if filled(unit, "contents").is_some() {
            files.insert(path);
        }
    }
    files
}

//! What Ignition's own validator asks of a configuration beyond its keys. Most of it speaks of what is not ours to do, and is
//! held all the same: a configuration that a new machine would refuse is no configuration of a running one.

mod disks;
mod duplicates;
mod filesystems;
mod luks;
mod nodes;
mod sources;

use super::keys;
use crate::located::Node;
use crate::problem::{At, Findings};

/// What a rule finds: the key that it speaks of, and the sentence.
type Broken = (&'static str, String);

/// Reports what breaks a rule of Ignition 3.`minor`.
pub(super) fn check(node: &Node<'_>, minor: u8, at: &At<'_>, findings: &mut Findings) {
    duplicates::check(node, &keys::CONFIG, at, findings);
    sources::check(node, minor, at, findings);
    nodes::check(node, at, findings);
    each(node, "storage", "disks", at, findings, disks::disk);
    each(node, "storage", "raid", at, findings, disks::raid);
    each(node, "storage", "filesystems", at, findings, |item| {
        filesystems::filesystem(item, minor)
    });
    each(node, "storage", "luks", at, findings, luks::volume);
}

/// Holds a rule against each element of a list.
fn each(
    node: &Node<'_>,
    section: &'static str,
    list: &'static str,
    at: &At<'_>,
    findings: &mut Findings,
    rule: impl Fn(&Node<'_>) -> Vec<Broken>,
) {
    let Some(parent) = node.get(section) else {
        return;
    };
    let here = at.key(section, parent.line);
    let here = here.key(list, parent.line);
    for (index, item) in parent.list(list).iter().enumerate() {
        let identity = ["device", "name", "path"]
            .iter()
            .find_map(|key| item.text(key))
            .unwrap_or_default();
        let here = here.index(index, item.line).called(identity);
        for (key, message) in rule(item) {
            let line = item.get(key).map_or(item.line, |value| value.line);
            findings.problem(&here.key(key, line), message);
        }
    }
}

/// The text under a key, if it says anything.
fn filled<'n>(node: &'n Node<'_>, key: &str) -> Option<&'n str> {
    node.text(key).filter(|text| !text.is_empty())
}

fn is_set(node: &Node<'_>, key: &str) -> bool {
    node.flag(key) == Some(true)
}

/// A path that is absolute, and written in the only way there is.
fn judge_path(key: &str, path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err(format!("{key} is empty: give an absolute path"));
    }
    if !path.starts_with('/') {
        return Err(format!("{key} {path:?} is relative: begin it with /"));
    }
    let is_clean = path == "/"
        || path[1..]
            .split('/')
            .all(|part| !["", ".", ".."].contains(&part));
    if is_clean {
        return Ok(());
    }
    Err(format!(
        "{key} {path:?} is not in its shortest form: write it without //, . and .. and without a slash at its end"
    ))
}

//! Which paths a configuration may write, and that no two things of it claim the same one.

use std::collections::BTreeMap;

use crate::located::Node;
use crate::machine::machine_config::MachineConfig;
use crate::names::linux;
use crate::problem::{At, Findings};

const MAX_COMPONENT: usize = 255;
const MAX_PATH: usize = 4095;

/// Paths that are spoken for, and by what.
#[derive(Debug, Default)]
pub(super) struct Taken(BTreeMap<String, &'static str>);

impl Taken {
    /// Notes that `what` is at `path`; refuses a second claim.
    pub(super) fn claim(&mut self, path: &str, what: &'static str) -> Result<(), String> {
        match self.0.get(path) {
            Some(other) if *other == what => {
                Err(format!("the same path is listed twice in {what}: keep one"))
            }
            Some(other) => Err(format!("the same path is also in {other}: keep one")),
            None => {
                self.0.insert(path.to_owned(), what);
                Ok(())
            }
        }
    }
}

/// Whether it begins with a drive or a share: the whole configuration is for another system then.
fn is_of_windows(path: &str) -> bool {
    let mut start = path.chars();
    let has_drive = start.next().is_some_and(|it| it.is_ascii_alphabetic());
    path.starts_with(r"\\") || has_drive && start.next() == Some(':')
}

/// Whether a file may be at this path at all.
pub(super) fn judge(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("path is empty: give an absolute path".to_owned());
    }
    if is_of_windows(path) {
        return Err(
            "path is a Windows path, and this is for Linux nodes: begin it with /, or keep it out of configurations of Linux nodes"
                .to_owned(),
        );
    }
    if !path.starts_with('/') {
        return Err("path is relative: begin it with /".to_owned());
    }
    if path.contains('\0') {
        return Err("path has a NUL in it: remove it".to_owned());
    }
    if path.ends_with('/') {
        return Err("path ends in a slash, and a file cannot: remove it".to_owned());
    }
    for component in path.split('/').skip(1) {
        match component {
            "" => return Err("path has two slashes in a row: write one".to_owned()),
            "." | ".." => {
                return Err(format!("path has a component {component:?}: remove it"));
            }
            name if name.len() > MAX_COMPONENT => {
                return Err(format!(
                    "path has a component of {} bytes: the limit is {MAX_COMPONENT}",
                    name.len()
                ));
            }
            _ => {}
        }
    }
    if path.len() > MAX_PATH {
        return Err(format!(
            "path has {} bytes: the limit is {MAX_PATH}",
            path.len()
        ));
    }
    if path == linux::FORCE_FILE {
        return Err("this is the force file, which makes the agent apply everything again: a configuration may not contain it, create it by hand".to_owned());
    }
    if is_at_or_below(path, linux::OWN_STATE) || is_at_or_below(linux::OWN_STATE, path) {
        return Err(format!(
            "{} is the agent's own state: a configuration may not write there",
            linux::OWN_STATE
        ));
    }
    Ok(())
}

fn is_at_or_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Where `target` leads to from a link at `path`, in its shortest form.
pub(super) fn joined(path: &str, target: &str) -> String {
    let whole = if target.starts_with('/') {
        target.to_owned()
    } else {
        format!("{path}/{target}")
    };
    let mut parts = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Refuses a file below another file, and a file that is also a unit or a drop-in.
pub(super) fn check_together(
    config: &MachineConfig,
    node: &Node<'_>,
    at: &At<'_>,
    findings: &mut Findings,
) {
    let unit_files = unit_files(config);
    let storage = at.key(
        "storage",
        node.get("storage").map_or(0, |storage| storage.line),
    );
    let files = node
        .get("storage")
        .map_or(&[][..], |storage| storage.list("files"));
    let list = storage.key("files", 0);
    for (index, file) in files.iter().enumerate() {
        let Some(path) = file
            .text("path")
            .filter(|path| config.files.contains_key(*path))
        else {
            continue;
        };
        let here = list.index(index, file.line).called(path);
        let ancestors = path.match_indices('/').map(|(end, _)| &path[..end]);
        for above in ancestors.filter(|above| config.files.contains_key(*above)) {
            findings.problem(
                &here,
                format!("path is below {above}, which is a file: move one of them"),
            );
        }
        if let Some(owner) = unit_files.get(path) {
            findings.problem(
                &here,
                format!("the same file is also {owner}: keep one of them"),
            );
        }
    }
}

fn unit_files(config: &MachineConfig) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for (name, unit) in &config.units {
        let path = format!("{}/{name}", linux::UNITS);
        for drop_in in unit.drop_ins.keys() {
            files.insert(
                format!("{path}.d/{drop_in}"),
                format!("drop-in {drop_in} of unit {name}"),
            );
        }
        if unit.contents.is_some() || unit.masked {
            files.insert(path, format!("unit {name}"));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers M07.
    #[test]
    fn a_path_is_absolute_and_clean_and_not_ours() {
        for path in [
            "/etc/x",
            "/x",
            "/etc/machine-config-daemon/no-reboot/containers-gpg.pub",
            "/etc/machine-config-daemon/state-of-affairs",
            "/etc/..x",
            "/run/machine-config-daemon-force.d/x",
        ] {
            assert_eq!(judge(path), Ok(()), "{path}");
        }
        let long = format!("/{}", "x".repeat(256));
        let deep = "/abcdefg".repeat(600);
        for (path, words) in [
            ("", "is empty"),
            ("etc/x", "is relative"),
            (r"C:\k\kubelet.exe", "is a Windows path"),
            ("c:/k", "is a Windows path"),
            (r"\\share\k", "is a Windows path"),
            ("/etc/x/", "ends in a slash"),
            ("/", "ends in a slash"),
            ("//etc", "two slashes"),
            ("/etc//x", "two slashes"),
            ("/etc/./x", "component \".\""),
            ("/etc/../x", "component \"..\""),
            ("/etc/..", "component \"..\""),
            ("/etc/\0x", "NUL"),
            ("/run/machine-config-daemon-force", "force file"),
            ("/etc/machine-config-daemon/state", "agent's own state"),
            (
                "/etc/machine-config-daemon/state/journal",
                "agent's own state",
            ),
            ("/etc/machine-config-daemon", "agent's own state"),
            (long.as_str(), "256 bytes"),
            (deep.as_str(), "4800 bytes"),
        ] {
            let message = judge(path).unwrap_err();
            assert!(message.contains(words), "{path}: {message}");
        }
    }
}

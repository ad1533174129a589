//! Payload files and environment variables of the services `ConfigMap`: each stands for itself, so
//! each is judged by itself.

use std::collections::BTreeSet;

use super::elements::each;
use super::{PayloadFile, Variable, folded};
use crate::located::{Node, Value};
use crate::problem::{At, Findings};
use crate::shape::Shape::Text;
use crate::shape::{self, keys};

keys! {
    pub(super) PAYLOAD_FILE by "path" { path: Text.required(), checksum: Text.required() }
    pub(super) VARIABLE by "name" { name: Text.required(), value: Text.required() }
    pub(super) WATCHED by "name" { name: Text.required() }
}

pub(super) fn read_files(
    items: &[Node<'_>],
    at: &At<'_>,
    findings: &mut Findings,
) -> Vec<PayloadFile> {
    let mut seen = BTreeSet::new();
    let files = each(items, &PAYLOAD_FILE, at, findings, |item, at, findings| {
        let path = item.text("path").unwrap_or_default();
        let checksum = item
            .text("checksum")
            .unwrap_or_default()
            .to_ascii_lowercase();
        if item.get("path").is_some()
            && let Err(message) = judge_path(path)
        {
            findings.problem(at, message);
        }
        if !path.is_empty() && !seen.insert(folded(path)) {
            findings.problem(
                at,
                "the same path is listed twice (case-insensitive): keep one",
            );
        }
        if item.get("checksum").is_some()
            && (checksum.len() != 64 || !checksum.bytes().all(|digit| digit.is_ascii_hexdigit()))
        {
            findings.problem(at, "checksum is not a SHA-256: write 64 hex digits");
        }
        PayloadFile {
            path: path.to_owned(),
            checksum,
        }
    });
    files.into_iter().map(|(file, _)| file).collect()
}

fn judge_path(path: &str) -> Result<(), String> {
    let mut start = path.chars();
    let rooted = path.starts_with(['\\', '/']);
    let on_drive = start
        .next()
        .is_some_and(|drive| drive.is_ascii_alphabetic())
        && start.next() == Some(':')
        && start
            .next()
            .is_some_and(|slash| slash == '\\' || slash == '/');
    if path.is_empty() {
        return Err("path is empty: give one".to_owned());
    }
    if !rooted && !on_drive {
        return Err(r"path is relative: begin it with a drive, for example C:\k\".to_owned());
    }
    if path.split(['\\', '/']).any(|component| component == "..") {
        return Err("path has a component \"..\": remove it".to_owned());
    }
    if path.chars().any(char::is_control) {
        return Err(r"path has a control character: in JSON a backslash is written \\".to_owned());
    }
    Ok(())
}

pub(super) fn read_environment(
    items: &[Node<'_>],
    at: &At<'_>,
    findings: &mut Findings,
) -> Vec<Variable> {
    let mut seen = BTreeSet::new();
    let variables = each(items, &VARIABLE, at, findings, |item, at, findings| {
        let name = item.text("name").unwrap_or_default();
        if item.get("name").is_some() {
            judge_variable(name, at, findings);
        }
        if !name.is_empty() && !seen.insert(folded(name)) {
            findings.problem(
                at,
                "the same variable is listed twice (case-insensitive): keep one",
            );
        }
        Variable {
            name: name.to_owned(),
            value: item.text("value").unwrap_or_default().to_owned(),
        }
    });
    variables
        .into_iter()
        .map(|(variable, _)| variable)
        .collect()
}

/// A watched variable is `{name}`, or just the name.
pub(super) fn read_watched(
    items: &[Node<'_>],
    at: &At<'_>,
    findings: &mut Findings,
) -> Vec<String> {
    let mut names = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let here = at.index(index, item.line);
        let name = if let Some(name) = item.as_text() {
            Some(name)
        } else {
            if item.value == Value::Null {
                findings.problem(&here, "the element is empty: remove it or fill it in");
            }
            shape::check(item, &WATCHED, 0, &here, findings);
            item.text("name")
        };
        if let Some(name) = name {
            judge_variable(name, &here.called(name), findings);
            names.push(name.to_owned());
        }
    }
    names
}

fn judge_variable(name: &str, at: &At<'_>, findings: &mut Findings) {
    if name.trim().is_empty() {
        findings.problem(at, "name is empty: give one");
    } else if name.contains(['=', '\0']) {
        findings.problem(
            at,
            "name has an equals sign or a NUL, which Windows does not allow: remove it",
        );
    }
}

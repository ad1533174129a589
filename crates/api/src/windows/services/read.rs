//! From the data of a `ConfigMap` to [`Services`]: every key, every element, every rule, and all
//! that is wrong with them.

use std::collections::{BTreeMap, BTreeSet};

use super::elements::each;
use super::payload::{self, PAYLOAD_FILE, VARIABLE, WATCHED};
use super::rules::{self, Draft};
use super::{NodeVariable, PowershellVariable, Service, Services, command, key};
use crate::located::{Node, Value};
use crate::problem::{At, Findings, Problems, Warning};
use crate::shape::Shape::{Flag, Integer, OneOrMany, Text};
use crate::shape::{self, Shape, TEXTS, keys};

keys! {
    pub(super) SERVICE by "name" {
        name: Text.required(), command: Text.required(), dependencies: TEXTS,
        nodeVariablesinCommand: OneOrMany(NODE_VARIABLE),
        powershellVariablesinCommand: OneOrMany(POWERSHELL_VARIABLE), bootstrap: Flag.required(),
        priority: Integer.required(),
    }
    NODE_VARIABLE by "name" { name: Text.required(), jsonPathNodeObject: Text.required() }
    POWERSHELL_VARIABLE by "name" { name: Text.required(), path: Text.required() }
}

/// The keys of the data, whether they must be there, and their elements.
const KEYS: [(&str, bool, &Shape); 4] = [
    (key::SERVICES, true, &SERVICE),
    (key::FILES, true, &PAYLOAD_FILE),
    (key::ENVIRONMENT, false, &VARIABLE),
    (key::WATCHED, false, &WATCHED),
];

const MAX_SERVICE_NAME: usize = 256;

/// One key of the data with its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) key: &'a str,
    pub(crate) text: &'a str,
    /// The key's line; 0 if it is not known.
    pub(crate) line: u32,
    /// Whether the text's lines follow the key's, one by one.
    pub(crate) block: bool,
}

impl Services {
    /// Reads the `data` of a `ConfigMap`. `source` is what problems call it.
    pub fn from_data(
        source: &str,
        data: &BTreeMap<String, String>,
    ) -> Result<(Self, Vec<Warning>), Problems> {
        let mut findings = Findings::of(source);
        let entries = data.iter().map(|(key, text)| Entry {
            key,
            text,
            line: 0,
            block: false,
        });
        let entries: Vec<_> = entries.collect();
        let services = read_entries(&entries, &At::top(None), &mut findings);
        findings.finish(services)
    }
}

pub(crate) fn read_entries(
    entries: &[Entry<'_>],
    at: &At<'_>,
    findings: &mut Findings,
) -> Services {
    let mut services = Services::default();
    let mut found = BTreeSet::new();
    for entry in entries {
        let here = at.key(entry.key, entry.line);
        let known = KEYS
            .iter()
            .find(|(name, ..)| name.eq_ignore_ascii_case(entry.key));
        let Some((name, _, element)) = known else {
            let message = shape::unknown_key(entry.key, KEYS.iter().map(|(name, ..)| *name));
            findings.problem(&here, message);
            continue;
        };
        if !found.insert(*name) {
            findings.problem(
                &here,
                format!("{} is set twice (case-insensitive): keep one", entry.key),
            );
        }
        let Some(elements) = elements(entry, element, &here, findings) else {
            continue;
        };
        let items = elements.items();
        match *name {
            key::SERVICES => services.services = read_services(items, &here, findings),
            key::FILES => services.files = payload::read_files(items, &here, findings),
            key::ENVIRONMENT => {
                services.environment = payload::read_environment(items, &here, findings);
            }
            _ => services.watched = payload::read_watched(items, &here, findings),
        }
    }
    for (name, ..) in KEYS
        .iter()
        .filter(|(name, needed, _)| *needed && !found.contains(name))
    {
        findings.problem(
            at,
            format!("the key {name:?} is missing: add it ([] for none)"),
        );
    }
    services.sorted()
}

/// The JSON text as a list of elements, their keys spelt as ours.
fn elements<'a>(
    entry: &Entry<'a>,
    element: &'static Shape,
    at: &At<'_>,
    findings: &mut Findings,
) -> Option<Node<'a>> {
    let Entry {
        text, line, block, ..
    } = *entry;
    if text.trim().is_empty() {
        findings.problem(at, format!("{} is empty: write [] for none", entry.key));
        return None;
    }
    let place = move |inner: u32| if block { line + inner } else { line };
    let mut node = match Node::parse_json(text, place) {
        Ok(node) => node,
        Err(malformed) => {
            let place = malformed.line.map_or(*at, |line| at.on_line(line));
            findings.problem(
                &place,
                format!("{} is not JSON: {}", entry.key, malformed.message),
            );
            return None;
        }
    };
    match node.value {
        Value::List(_) => {}
        Value::Map(_) => {
            node = Node {
                line: node.line,
                value: Value::List(vec![node]),
            };
        }
        _ => {
            let message = format!(
                "{} must be a list or an object, found {}",
                entry.key,
                node.kind()
            );
            findings.problem(at, message);
            return None;
        }
    }
    if let Value::List(items) = &mut node.value {
        for (index, item) in items.iter_mut().enumerate() {
            let here = at.index(index, item.line);
            shape::restore_case(item, element, &here, findings);
        }
    }
    Some(node)
}

pub(super) fn read_services(
    items: &[Node<'_>],
    at: &At<'_>,
    findings: &mut Findings,
) -> Vec<Service> {
    let drafts = each(items, &SERVICE, at, findings, read_service);
    let drafts: Vec<Draft> = drafts
        .into_iter()
        .map(|(service, whole)| Draft { service, whole })
        .collect();
    let lines: Vec<u32> = items.iter().map(|item| item.line).collect();
    for (index, message) in rules::violations(&drafts) {
        let here = at.index(index, lines[index]);
        findings.problem(&here.called(&drafts[index].service.name), message);
    }
    for (index, message) in rules::doubts(&drafts) {
        let here = at.index(index, lines[index]);
        findings.warning(&here.called(&drafts[index].service.name), message);
    }
    drafts.into_iter().map(|draft| draft.service).collect()
}

fn read_service(item: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Service {
    let text = |key: &str| item.text(key).unwrap_or_default().to_owned();
    let service = Service {
        name: text("name"),
        command: text("command"),
        dependencies: item
            .list("dependencies")
            .iter()
            .filter_map(Node::as_text)
            .map(str::to_owned)
            .collect(),
        node_variables: read_node_variables(item, at, findings),
        powershell_variables: read_powershell_variables(item, at, findings),
        bootstrap: item.flag("bootstrap").unwrap_or_default(),
        priority: read_priority(item, at, findings),
    };
    if item.get("name").is_some()
        && let Err(message) = judge_name(&service.name)
    {
        findings.problem(at, message);
    }
    if item.get("command").is_some() && service.command.trim().is_empty() {
        findings.problem(
            at,
            "command is empty: write the command that the service runs",
        );
    }
    if command::has_open_quote(&service.command) {
        findings.problem(at, "command has an unclosed quotation mark: close it");
    }
    if service
        .dependencies
        .iter()
        .any(|name| name.trim().is_empty())
    {
        findings.problem(at, "dependencies has an empty name: remove it");
    }
    if service.bootstrap && !service.node_variables.is_empty() {
        let names = service
            .node_variables
            .iter()
            .map(|variable| variable.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let name = &service.name;
        findings.problem(
            at,
            format!("bootstrap service {name} has node variables ({names}), but it starts before the Node exists: remove them, or set bootstrap to false"),
        );
    }
    let variables = service.node_variables.iter().map(|variable| &variable.name);
    let variables = variables.chain(
        service
            .powershell_variables
            .iter()
            .map(|variable| &variable.name),
    );
    let mut seen = BTreeSet::new();
    for name in variables {
        if name.is_empty() {
            findings.problem(
                at,
                "a variable has an empty name: give the text in the command that it replaces",
            );
        } else if !seen.insert(name) {
            findings.problem(at, format!("variable {name} is listed twice: keep one"));
        }
    }
    service
}

fn read_priority(item: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> u32 {
    let Some(priority) = item.integer("priority") else {
        return 0;
    };
    u32::try_from(priority).unwrap_or_else(|_| {
        let message = if priority < 0 {
            format!("priority {priority} is negative: give 0 or more")
        } else {
            format!(
                "priority {priority} is above {}: give a lower one",
                u32::MAX
            )
        };
        findings.problem(at, message);
        0
    })
}

/// One object or a list of them.
fn one_or_many<'n, 'a>(item: &'n Node<'a>, key: &str) -> &'n [Node<'a>] {
    match item.get(key) {
        Some(node) if matches!(node.value, Value::Map(_)) => std::slice::from_ref(node),
        Some(node) => node.items(),
        None => &[],
    }
}

fn read_node_variables(item: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Vec<NodeVariable> {
    let mut variables = Vec::new();
    for node in one_or_many(item, "nodeVariablesinCommand") {
        let (Some(name), Some(path)) = (node.text("name"), node.text("jsonPathNodeObject")) else {
            continue;
        };
        let json_path = command::json_path(path).unwrap_or_else(|message| {
            let list = at.key("nodeVariablesinCommand", node.line);
            findings.problem(&list, format!("variable {name}: {message}"));
            String::new()
        });
        variables.push(NodeVariable {
            name: name.to_owned(),
            json_path,
        });
    }
    variables
}

fn read_powershell_variables(
    item: &Node<'_>,
    at: &At<'_>,
    findings: &mut Findings,
) -> Vec<PowershellVariable> {
    let mut variables = Vec::new();
    for node in one_or_many(item, "powershellVariablesinCommand") {
        let (Some(name), Some(path)) = (node.text("name"), node.text("path")) else {
            continue;
        };
        if path.trim().is_empty() {
            let list = at.key("powershellVariablesinCommand", node.line);
            findings.problem(
                &list,
                format!("variable {name} has an empty path: give the script"),
            );
        }
        variables.push(PowershellVariable {
            name: name.to_owned(),
            path: path.to_owned(),
        });
    }
    variables
}

fn judge_name(name: &str) -> Result<(), String> {
    let length = name.chars().count();
    if name.trim().is_empty() {
        return Err("name is empty: give one".to_owned());
    }
    if length > MAX_SERVICE_NAME {
        return Err(format!(
            "name has {length} characters: the limit is {MAX_SERVICE_NAME}"
        ));
    }
    if name.contains(['/', '\\']) {
        return Err(
            "name has a slash or a backslash, which Windows does not allow: remove it".to_owned(),
        );
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Err("name has a control character, or white space around it: remove it".to_owned());
    }
    Ok(())
}

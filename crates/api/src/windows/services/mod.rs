//! The services `ConfigMap`: which Windows services, payload files and environment variables an
//! instance is to have. Here are its types, the text we write for them, and the hash by which
//! operator and agent speak of the same contents.

mod command;
mod elements;
mod payload;
mod read;
mod rules;
mod template;

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::machine::ignition::data_url::to_hex;

pub(crate) use read::{Entry, read_entries};
pub use template::{KUBELET_ARGUMENTS, Template};

/// What an instance is to have. Only readings that passed every rule give one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Services {
    /// Windows services: bootstrap first, then by priority, then by name.
    pub services: Vec<Service>,
    /// Payload files by path.
    pub files: Vec<PayloadFile>,
    /// Environment variables of the machine by name.
    pub environment: Vec<Variable>,
    /// Names of the variables that are watched; every declared one is among them.
    pub watched: Vec<String>,
}

/// A Windows service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// What it runs, with variables still in it.
    pub command: String,
    /// Services that must run before it, of ours or of Windows.
    pub dependencies: Vec<String>,
    /// Texts in the command that stand for a field of the instance's Node.
    #[serde(rename = "nodeVariablesinCommand")]
    pub node_variables: Vec<NodeVariable>,
    /// Texts in the command that stand for what a script prints.
    #[serde(rename = "powershellVariablesinCommand")]
    pub powershell_variables: Vec<PowershellVariable>,
    /// Whether it starts before there is a Node.
    pub bootstrap: bool,
    /// Its place in the order of creation; 0 is first.
    pub priority: u32,
}

/// A text in a command that stands for a field of the Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeVariable {
    /// The text.
    pub name: String,
    /// The field, always written `{.metadata.name}`.
    #[serde(rename = "jsonPathNodeObject")]
    pub json_path: String,
}

/// A text in a command that stands for what a script prints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PowershellVariable {
    /// The text.
    pub name: String,
    /// The script.
    pub path: String,
}

/// A file of the payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PayloadFile {
    /// Where it is on the instance.
    pub path: String,
    /// SHA-256, 64 lower-case hex digits.
    pub checksum: String,
}

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its name; case makes no difference.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The keys of the `ConfigMap`'s data.
pub mod key {
    /// Windows services; required.
    pub const SERVICES: &str = "services";
    /// Payload files; required.
    pub const FILES: &str = "files";
    /// Environment variables.
    pub const ENVIRONMENT: &str = "environmentVars";
    /// Watched environment variables.
    pub const WATCHED: &str = "watchedEnvironmentVars";
}

/// What a command says that its Node is called.
pub fn hostname_override(command: &str) -> Option<&str> {
    let mut words = command.split_whitespace();
    words.find_map(|word| word.trim_matches('"').strip_prefix("--hostname-override="))
}

impl Services {
    /// The `data` of the `ConfigMap` as we write it: all four keys, each a JSON list without white
    /// space, sorted, with every field there. Equal values give equal text.
    pub fn canonical(&self) -> BTreeMap<String, String> {
        #[derive(Serialize)]
        struct Watched<'a> {
            name: &'a str,
        }
        let sorted = self.clone().sorted();
        let watched: Vec<_> = sorted.watched.iter().map(|name| Watched { name }).collect();
        [
            (key::SERVICES, json(&sorted.services)),
            (key::FILES, json(&sorted.files)),
            (key::ENVIRONMENT, json(&sorted.environment)),
            (key::WATCHED, json(&watched)),
        ]
        .into_iter()
        .map(|(key, text)| (key.to_owned(), text))
        .collect()
    }

    /// SHA-256 in lower-case hex over [`Self::canonical`], written as one JSON object without white
    /// space whose keys are sorted by their bytes.
    pub fn hash(&self) -> String {
        to_hex(&Sha256::digest(json(&self.canonical())))
    }

    /// The script that says what a machine's Node is called: the one whose output a bootstrap service has as
    /// `--hostname-override`.
    pub fn node_name_script(&self) -> Option<&str> {
        let services = self.services.iter().filter(|service| service.bootstrap);
        let mut scripts = services.flat_map(|service| {
            let name = hostname_override(&service.command);
            let all = service.powershell_variables.iter();
            all.filter(move |it| Some(it.name.as_str()) == name)
        });
        scripts.next().map(|script| script.path.as_str())
    }

    /// The services in the order in which they are created: bootstrap first, then by priority, and
    /// within one priority what others depend on before them.
    pub fn creation_order(&self) -> Vec<&Service> {
        let mut pending: Vec<&Service> = self.services.iter().collect();
        pending.sort_by_cached_key(|service| service.rank());
        let mut order: Vec<&Service> = Vec::with_capacity(pending.len());
        while !pending.is_empty() {
            let free = pending.iter().position(|service| {
                let waits_for = |other: &&Service| {
                    other.name != service.name
                        && other.group() == service.group()
                        && service.depends_on(&other.name)
                };
                !pending.iter().any(waits_for)
            });
            order.push(pending.remove(free.unwrap_or_default()));
        }
        order
    }

    /// Whether a variable is watched, whatever its case.
    pub fn is_watched(&self, variable: &str) -> bool {
        let same = |name: &String| same_name(name, variable);
        self.watched.iter().any(same)
    }

    /// The normal form: sorted, nothing twice, declared names watched.
    fn sorted(mut self) -> Self {
        for service in &mut self.services {
            service.dependencies.sort_by_cached_key(|name| folded(name));
            service
                .dependencies
                .dedup_by(|left, right| same_name(left, right));
            service.node_variables.sort();
            service.powershell_variables.sort();
        }
        self.services.sort_by_cached_key(Service::rank);
        self.files.sort_by_cached_key(|file| folded(&file.path));
        self.environment
            .sort_by_cached_key(|variable| folded(&variable.name));
        let declared = self
            .environment
            .iter()
            .map(|variable| variable.name.clone());
        let mut watched: Vec<String> = declared.chain(self.watched).collect();
        watched.sort_by_cached_key(|name| folded(name));
        watched.dedup_by(|left, right| same_name(left, right));
        self.watched = watched;
        self
    }
}

impl Service {
    /// Whether it depends on a service of this name, whatever its case.
    pub fn depends_on(&self, name: &str) -> bool {
        self.dependencies
            .iter()
            .any(|dependency| same_name(dependency, name))
    }

    fn group(&self) -> (bool, u32) {
        (!self.bootstrap, self.priority)
    }

    fn rank(&self) -> ((bool, u32), String) {
        (self.group(), folded(&self.name))
    }
}

/// Names of services, variables and files on Windows are the same whatever their case.
fn folded(name: &str) -> String {
    name.to_lowercase()
}

fn same_name(left: &str, right: &str) -> bool {
    folded(left) == folded(right)
}

/// These types have only text, numbers and lists, which JSON always takes.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

//! The template of the services `ConfigMap`, as it stands in a payload: the same services and variables,
//! in YAML for people, with a text in commands that stands for what only the cluster knows.

use super::payload::{VARIABLE, WATCHED, read_environment, read_watched};
use super::read::{SERVICE, read_services};
use super::{PayloadFile, Services, Variable, same_name};
use crate::located::Node;
use crate::names::proxy;
use crate::problem::{At, Findings, Problems, Warning};
use crate::shape::Shape::List;
use crate::shape::{self, TEXTS, keys};

/// What stands in a command for the kubelet's arguments from the worker Ignition.
pub const KUBELET_ARGUMENTS: &str = "${KUBELET_ARGUMENTS}";

keys! {
    TEMPLATE {
        services: List(SERVICE).required(), environmentVars: List(VARIABLE),
        watchedEnvironmentVars: List(WATCHED), folders: TEXTS,
    }
}

/// What every services `ConfigMap` is made from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Template {
    /// Services and variables; there are no files in it.
    services: Services,
    /// Folders that an instance must have before its services start, for their logs.
    pub folders: Vec<String>,
}

impl Template {
    /// Reads a template. `source` is what problems call it.
    pub fn read(source: &str, text: &str) -> Result<(Self, Vec<Warning>), Problems> {
        let mut findings = Findings::of(source);
        let mut template = Self::default();
        match Node::parse_all(text) {
            Err(malformed) => findings.problem(&At::top(malformed.line), malformed.message),
            Ok(nodes) => match nodes.as_slice() {
                [node] => template = read_template(node, &mut findings),
                _ => findings.problem(
                    &At::top(None),
                    "not a template: write one YAML document with the key \"services\"",
                ),
            },
        }
        findings.finish(template)
    }

    /// The services, where a kubelet has these `arguments`, and an instance these `files` and the variables of
    /// this `proxy`, which are watched also where there is none.
    pub fn filled(
        &self,
        arguments: &[String],
        files: Vec<PayloadFile>,
        proxy: Vec<Variable>,
    ) -> Services {
        let arguments = arguments.join(" ");
        let mut services = self.services.clone();
        for service in &mut services.services {
            // Without any, the space before them goes, too.
            if arguments.is_empty() {
                let with_space = format!(" {KUBELET_ARGUMENTS}");
                service.command = service.command.replace(&with_space, "");
            }
            service.command = service.command.replace(KUBELET_ARGUMENTS, &arguments);
        }
        services.files = files;
        services.environment.extend(proxy);
        let names = proxy::ALL.map(str::to_owned);
        services.watched.extend(names);
        services.sorted()
    }

    /// Every file in `folder` that a service runs, reads or asks a script of, with the service's name. What a
    /// service writes itself has no ending or is in another folder.
    pub fn needs(&self, folder: &str) -> Vec<(&str, String)> {
        let folder = folder.to_ascii_lowercase();
        let mut needs = Vec::new();
        for service in &self.services.services {
            let words = service
                .command
                .split(|it: char| it.is_whitespace() || matches!(it, '"' | '=' | ','));
            let scripts = service.powershell_variables.iter();
            for word in words.chain(scripts.map(|script| script.path.as_str())) {
                let path = word.to_ascii_lowercase();
                let has_ending = path.rsplit('\\').next().is_some_and(|it| it.contains('.'));
                if path.starts_with(&folder) && has_ending {
                    needs.push((service.name.as_str(), word.to_owned()));
                }
            }
        }
        needs
    }
}

fn read_template(node: &Node<'_>, findings: &mut Findings) -> Template {
    let at = At::top(Some(node.line));
    shape::check(node, &TEMPLATE, 0, &at, findings);
    let line = |key: &str| node.get(key).map_or(node.line, |it| it.line);
    let services = read_services(
        node.list("services"),
        &at.key("services", line("services")),
        findings,
    );
    for (index, service) in services.iter().enumerate() {
        let unknown = service.command.replace(KUBELET_ARGUMENTS, "");
        if let Some((_, rest)) = unknown.split_once("${") {
            let name = rest.split('}').next().unwrap_or_default();
            let list = at.key("services", line("services"));
            findings.problem(
                &list.index(index, 0).called(&service.name),
                format!("unknown placeholder ${{{name}}}: only {KUBELET_ARGUMENTS} is supported"),
            );
        }
    }
    let environment = read_environment(
        node.list("environmentVars"),
        &at.key("environmentVars", line("environmentVars")),
        findings,
    );
    for (index, variable) in environment.iter().enumerate() {
        if proxy::ALL.iter().any(|it| same_name(it, &variable.name)) {
            let list = at.key("environmentVars", line("environmentVars"));
            findings.problem(
                &list.index(index, 0).called(&variable.name),
                "the operator sets this variable, from the proxy of the cluster or of the chart: remove it",
            );
        }
    }
    let watched = read_watched(
        node.list("watchedEnvironmentVars"),
        &at.key("watchedEnvironmentVars", line("watchedEnvironmentVars")),
        findings,
    );
    let folders = node.list("folders").iter().filter_map(Node::as_text);
    Template {
        folders: folders.map(str::to_owned).collect(),
        services: Services {
            services,
            environment,
            watched,
            ..Services::default()
        },
    }
}

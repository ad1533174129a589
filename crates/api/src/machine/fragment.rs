//! One MachineConfig of several that are merged, as it was written. What it does not say is not filled
//! in: a lower one may say it. Only what is merged has defaults.

use serde_json::{Value as Json, json};

use crate::located::Node;
use crate::machine::ignition::{self, merge};
use crate::machine::machine_config::MachineConfig;
use crate::machine::machine_config::spec::read_spec;
use crate::names::{group, linux};
use crate::problem::{Findings, Problems};
use crate::shape;

/// A MachineConfig, or a bare Ignition config, that is valid by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragment {
    /// `metadata.name`, where there is one: the order of merging follows from it.
    pub name: Option<String>,
    spec: Json,
}

/// Something at a path: the section that it stands in, and the path.
pub type AtPath = (&'static str, String);

impl Fragment {
    /// A MachineConfig with this name and `spec`.
    pub(crate) fn of(name: Option<&str>, spec: Option<&Node<'_>>) -> Self {
        Self {
            name: name.map(str::to_owned),
            spec: spec.map_or_else(|| json!({}), shape::without_nulls),
        }
    }

    /// A bare Ignition config.
    pub(crate) fn of_ignition(config: &Node<'_>) -> Self {
        Self {
            name: None,
            spec: json!({ "config": shape::without_nulls(config) }),
        }
    }

    /// It as the object that it was.
    pub fn to_document(&self) -> Json {
        json!({
            "apiVersion": format!("{}/v1", group::MACHINE_CONFIGURATION),
            "kind": "MachineConfig",
            "metadata": self.name.as_ref().map_or(json!({}), |name| json!({ "name": name })),
            "spec": self.spec,
        })
    }

    /// Whether it is written in Ignition 2.2, which has other words than 3.x.
    pub fn is_of_two(&self) -> bool {
        self.spec["config"]["ignition"]["version"] == "2.2.0"
    }

    /// Every path that it speaks of.
    pub fn paths(&self) -> Vec<AtPath> {
        let config = &self.spec["config"];
        let mut paths = Vec::new();
        for (section, list) in [
            ("storage.files", "files"),
            ("storage.links", "links"),
            ("storage.directories", "directories"),
        ] {
            let elements = config["storage"][list].as_array().into_iter().flatten();
            let named = elements.filter_map(|element| element["path"].as_str());
            paths.extend(named.map(|path| (section, path.to_owned())));
        }
        let has_text = |it: &Json| it["contents"].as_str().is_some_and(|it| !it.is_empty());
        for unit in config["systemd"]["units"].as_array().into_iter().flatten() {
            let name = unit["name"].as_str().unwrap_or_default();
            let path = format!("{}/{name}", linux::UNITS);
            for drop_in in unit["dropins"].as_array().into_iter().flatten() {
                if has_text(drop_in) {
                    let drop_in = drop_in["name"].as_str().unwrap_or_default();
                    paths.push(("systemd.units", format!("{path}.d/{drop_in}")));
                }
            }
            if has_text(unit) || unit["mask"] == true {
                paths.push(("systemd.units", path));
            }
        }
        paths
    }
}

/// What all of them say together, each over those before it; or what is wrong with that, although
/// nothing is with any of them.
pub fn merged(fragments: Vec<Fragment>) -> Result<MachineConfig, Problems> {
    let mut config = json!({});
    let mut merged = MachineConfig::default();
    for mut fragment in fragments {
        add_spec(&mut merged, &fragment.spec);
        if let Some(higher) = fragment.spec.get_mut("config").map(Json::take) {
            config = merge::merge(config, merge::translated(higher));
        }
    }
    let mut findings = Findings::of("");
    ignition::read_merged(&Node::from_json(&config), &mut merged, &mut findings);
    findings.finish(merged).map(|(merged, _)| merged)
}

/// The fields of `spec` besides its Ignition config, as OpenShift's machine-config operator takes them
/// together: an argument that a lower one gives is not given again, the last image counts, lists
/// grow. FIPS and a kernel, once asked for, stay: only what is no default is ever said.
fn add_spec(merged: &mut MachineConfig, spec: &Json) {
    let mut higher = MachineConfig::default();
    read_spec(&Node::from_json(spec), &mut higher);
    let before = merged.kernel_arguments.clone();
    let arguments = higher.kernel_arguments.into_iter();
    merged
        .kernel_arguments
        .extend(arguments.filter(|argument| !before.contains(argument)));
    if !higher.os_image_url.is_empty() {
        merged.os_image_url = higher.os_image_url;
    }
    for (section, value) in higher.unsupported {
        let value = match (merged.unsupported.remove(&section), value) {
            (Some(Json::Array(mut all)), Json::Array(more)) => {
                for value in more {
                    if !all.contains(&value) {
                        all.push(value);
                    }
                }
                Json::Array(all)
            }
            (_, value) => value,
        };
        merged.unsupported.insert(section, value);
    }
}

//! The one way in: bytes that somebody wrote become documents. Whether it is YAML or JSON, and
//! which kind, is told by the contents and never by a file's name.

use std::borrow::Cow;

use crate::fleet::rollout_policy::{self, RolloutPolicySpec};
use crate::located::{self, Node, Value};
use crate::machine::disruption_policy::DisruptionPolicy;
use crate::machine::fragment::Fragment;
use crate::machine::ignition;
use crate::machine::machine_config::MachineConfig;
use crate::machine::machine_config::spec::{SPEC, read_spec};
use crate::names::{annotation, group, label, object as object_name};
use crate::problem::{At, Findings, Problems, Warning};
use crate::readiness::{self, ReadinessRule};
use crate::shape::Shape::{Anything, Flag, Text, Texts};
use crate::shape::{self, keys};
use crate::windows::services::{self, Services};
use crate::windows::trust_bundle::BundleMap;
use crate::windows::version::Version;
use crate::windows::windows_instances::{self, WindowsInstances};

pub use crate::located::MAX_BYTES;
pub use crate::machine::ignition::data_url::MAX_CONTENTS;

/// Something that we read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// A `MachineConfig`, or a bare Ignition config.
    MachineConfig(MachineConfig),
    /// A services `ConfigMap`.
    Services {
        /// `metadata.name`, where there is one.
        name: Option<String>,
        /// What it says.
        services: Services,
    },
    /// The `ConfigMap` `windows-instances`.
    WindowsInstances(WindowsInstances),
    /// The `ConfigMap` `trusted-ca`. Its certificates are not judged yet: that takes a clock.
    TrustBundle(BundleMap),
    /// A `NodeReadinessRule`.
    ReadinessRule(ReadinessRule),
    /// A `RolloutPolicy`. Its times are not judged yet: that takes a calendar.
    RolloutPolicy(RolloutPolicySpec),
}

impl Document {
    /// What kind it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::MachineConfig(_) => "machine configuration",
            Self::Services { .. } => "services ConfigMap",
            Self::WindowsInstances(_) => "windows-instances ConfigMap",
            Self::TrustBundle(_) => "trusted-ca ConfigMap",
            Self::ReadinessRule(_) => "readiness rule",
            Self::RolloutPolicy(_) => "rollout policy",
        }
    }
}

/// The kinds that we read, for a sentence.
const READABLE: &str = "a MachineConfig, a bare Ignition config, a services ConfigMap, the ConfigMap windows-instances, the ConfigMap trusted-ca, a NodeReadinessRule or a RolloutPolicy";

keys! {
    MACHINE_CONFIG {
        apiVersion: Text.required(), kind: Text.required(), metadata: Anything,
        spec: SPEC.required(), status: Anything,
    }
    CONFIG_MAP {
        apiVersion: Text.required(), kind: Text.required(), metadata: Anything, data: Texts,
        immutable: Flag,
    }
}

/// Reads everything in a file, or tells everything that is wrong with it.
pub fn read(file: &str, bytes: &[u8]) -> Result<(Vec<Document>, Vec<Warning>), Problems> {
    let (found, warnings) = read_all(file, bytes, Found::default())?;
    Ok((found.documents, warnings))
}

/// The MachineConfigs and bare Ignition configs in a file as they are written, to be merged with others;
/// or everything that is wrong with the file.
pub fn fragments(file: &str, bytes: &[u8]) -> Result<Vec<Fragment>, Problems> {
    let found = Found {
        fragments: Some(Vec::new()),
        ..Found::default()
    };
    let (found, _) = read_all(file, bytes, found)?;
    Ok(found.fragments.unwrap_or_default())
}

/// The one MachineConfig or bare Ignition config that a machine was provisioned from, as somebody keeps it:
/// its name, and the sections that cannot change on a running machine.
///
/// It need not say its kind, which OpenShift leaves out on its nodes. Nothing else of it is read or judged: it was carried
/// out already, by a program that may understand more of it.
pub fn provisioned_from(file: &str, bytes: &[u8]) -> Result<MachineConfig, Problems> {
    let found = Found {
        sections_only: true,
        ..Found::default()
    };
    let (found, _) = read_all(file, bytes, found)?;
    let mut findings = Findings::of(file);
    let config = match found.documents.as_slice() {
        [Document::MachineConfig(config)] => config.clone(),
        [other] => {
            let message = format!("found a {}: write {PROVISIONED}", other.kind());
            findings.problem(&At::top(None), message);
            MachineConfig::default()
        }
        several => {
            let message = format!("found {} objects: write {PROVISIONED}", several.len());
            findings.problem(&At::top(None), message);
            MachineConfig::default()
        }
    };
    let (config, _) = findings.finish(config)?;
    Ok(config)
}

/// What a machine can be provisioned from, for a sentence.
const PROVISIONED: &str =
    "the one MachineConfig or Ignition config that the machine was provisioned from";

/// What a file holds.
#[derive(Debug, Default)]
struct Found {
    documents: Vec<Document>,
    /// Of a MachineConfig only its name and the sections that cannot change are read.
    sections_only: bool,
    /// Only where they are asked for: they hold all contents once more.
    fragments: Option<Vec<Fragment>>,
}

fn read_all(file: &str, bytes: &[u8], mut found: Found) -> Result<(Found, Vec<Warning>), Problems> {
    let mut findings = Findings::of(file);
    let top = At::top(None);
    match located::text(bytes) {
        Err(message) => findings.problem(&top, message),
        Ok(text) => match Node::parse_all(text) {
            Err(malformed) => findings.problem(&At::top(malformed.line), malformed.message),
            Ok(nodes) => {
                if nodes.iter().all(|node| node.value == Value::Null) {
                    findings.problem(&top, format!("the file is empty: write {READABLE}"));
                }
                for node in nodes.iter().filter(|node| node.value != Value::Null) {
                    let at = At::top(Some(node.line));
                    read_object(node, text, &at, &mut found, &mut findings);
                }
            }
        },
    }
    findings.finish(found)
}

fn read_object(
    node: &Node<'_>,
    source: &str,
    at: &At<'_>,
    found: &mut Found,
    findings: &mut Findings,
) {
    if !matches!(node.value, Value::Map(_)) {
        findings.problem(
            at,
            format!(
                "found {} instead of an object: write {READABLE}",
                node.kind()
            ),
        );
        return;
    }
    if found.sections_only
        && let Some(config) = read_sections(node, at, findings)
    {
        found.documents.push(Document::MachineConfig(config));
        return;
    }
    match (node.text("kind"), node.text("apiVersion")) {
        (Some("List" | "MachineConfigList"), _) => {
            let list = at.key("items", node.line);
            for (index, item) in node.list("items").iter().enumerate() {
                let here = list.index(index, item.line).as_base();
                read_object(item, source, &here, found, findings);
            }
        }
        (Some("MachineConfig"), version) => {
            expect_version(
                version,
                &format!("{}/v1", group::MACHINE_CONFIGURATION),
                at,
                findings,
            );
            let config = read_machine_config(node, at, findings);
            if let Some(fragments) = &mut found.fragments {
                fragments.push(Fragment::of(config.name.as_deref(), node.get("spec")));
            }
            found.documents.push(Document::MachineConfig(config));
        }
        (Some("NodeReadinessRule"), version) => {
            expect_version(
                version,
                &format!("{}/v1alpha1", group::EVENKEEL),
                at,
                findings,
            );
            shape::check(node, &readiness::RULE, 0, at, findings);
            let rule = readiness::read_rule(node, at, findings);
            found.documents.extend(rule.map(Document::ReadinessRule));
        }
        (Some(rollout_policy::KIND), version) => {
            let wanted = format!("{}/{}", group::EVENKEEL, rollout_policy::VERSION);
            expect_version(version, &wanted, at, findings);
            shape::check(node, &rollout_policy::POLICY, 0, at, findings);
            let spec = rollout_policy::read(node);
            found.documents.push(Document::RolloutPolicy(spec));
        }
        (Some("ConfigMap"), version) => {
            expect_version(version, "v1", at, findings);
            let map = read_config_map(node, source, at, findings);
            found.documents.extend(map);
        }
        (None, None) if node.get("ignition").is_some() => {
            let mut config = MachineConfig::default();
            ignition::read(node, at, &mut config, findings);
            if let Some(fragments) = &mut found.fragments {
                fragments.push(Fragment::of_ignition(node));
            }
            found.documents.push(Document::MachineConfig(config));
        }
        (None, None) if node.get("variant").is_some() => findings.problem(
            at,
            "this is a Butane config: translate it to Ignition first",
        ),
        (None, _) => findings.problem(
            at,
            format!("the object has no kind and is not a bare Ignition config: write {READABLE}"),
        ),
        (Some(kind), version) => {
            let version = version.map_or(String::new(), |version| format!(" ({version})"));
            findings.problem(
                at,
                format!("kind {kind}{version} is not supported: write {READABLE}"),
            );
        }
    }
}

fn expect_version(found: Option<&str>, wanted: &str, at: &At<'_>, findings: &mut Findings) {
    // That it is missing is for the check of the object's shape.
    if let Some(found) = found.filter(|found| *found != wanted) {
        findings.problem(
            at,
            format!("apiVersion {found:?} is not supported: write {wanted}"),
        );
    }
}

fn name_of<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    node.get("metadata")?
        .text("name")
        .filter(|name| !name.is_empty())
}

fn read_machine_config(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> MachineConfig {
    shape::check(node, &MACHINE_CONFIG, 0, at, findings);
    let mut config = MachineConfig {
        name: name_of(node).map(str::to_owned),
        ..MachineConfig::default()
    };
    if config.name.is_none() {
        findings.warning(
            at,
            "metadata.name is missing: a cluster does not accept an object without a name",
        );
    }
    let policy = node
        .get("metadata")
        .and_then(|it| it.get("annotations"))
        .and_then(|it| it.text(annotation::DISRUPTION_POLICY));
    if let Some(policy) = policy {
        let (policy, problems) = DisruptionPolicy::parse(policy);
        config.disruption_policy = policy;
        for problem in problems {
            let name = annotation::DISRUPTION_POLICY;
            findings.warning(
                at,
                format!("annotation {name}: {problem}; such a change reboots"),
            );
        }
    }
    let Some(spec) = node.get("spec") else {
        return config;
    };
    let here = at.key("spec", spec.line);
    if let Some(ignition) = spec
        .get("config")
        .filter(|config| !config.entries().is_empty())
    {
        let base = here.key("config", ignition.line).as_base();
        ignition::read(ignition, &base, &mut config, findings);
    } else if let Some(other) = spec
        .get("config")
        .filter(|config| !matches!(config.value, Value::Map(_)))
    {
        let message = format!("config must be an object, found {}", other.kind());
        findings.problem(&here.key("config", other.line), message);
    }
    read_spec(spec, &mut config);
    config
}

/// Name and unchangeable sections of what may be a MachineConfig or a bare Ignition config.
fn read_sections(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Option<MachineConfig> {
    let spec = node.get("spec");
    let ignition = match (node.text("kind"), spec) {
        (None | Some("MachineConfig"), Some(spec)) => spec.get("config"),
        (None, None) if node.get("ignition").is_some() => Some(node),
        _ => return None,
    };
    let mut config = MachineConfig {
        name: name_of(node).map(str::to_owned),
        ..MachineConfig::default()
    };
    if let Some(ignition) = ignition.filter(|it| !it.entries().is_empty()) {
        ignition::read_sections(ignition, at, &mut config, findings);
    }
    if let Some(spec) = spec {
        read_spec(spec, &mut config);
    }
    Some(config)
}

fn read_config_map(
    node: &Node<'_>,
    source: &str,
    at: &At<'_>,
    findings: &mut Findings,
) -> Option<Document> {
    shape::check(node, &CONFIG_MAP, 0, at, findings);
    let name = name_of(node);
    let data = node.get("data");
    let entries = data.map_or(&[][..], Node::entries);
    let here = at
        .key("data", data.map_or(node.line, |data| data.line))
        .as_base();
    if name == Some(object_name::WINDOWS_INSTANCES) {
        let entries = entries
            .iter()
            .filter_map(|(key, value)| Some((key.as_ref(), value.as_text()?, value.line)));
        let instances = windows_instances::read_entries(entries, &here, findings);
        return Some(Document::WindowsInstances(instances));
    }
    let labels = node
        .get("metadata")
        .and_then(|metadata| metadata.get("labels"));
    let is_services = name.is_some_and(|name| name.starts_with(object_name::SERVICES_PREFIX))
        || labels.is_some_and(|labels| labels.get(label::SERVICES).is_some())
        || entries
            .iter()
            .any(|(key, _)| key.eq_ignore_ascii_case(services::key::SERVICES));
    let bundle = data.and_then(|data| data.get(object_name::TRUSTED_CA_FILE));
    if name == Some(object_name::TRUSTED_CA) || !is_services && bundle.is_some() {
        let bundle = read_bundle(name, entries, source, &here, findings);
        return Some(Document::TrustBundle(bundle));
    }
    if !is_services {
        let name = name.unwrap_or("without a name");
        findings.problem(
            at,
            format!("ConfigMap {name} is not supported: write {READABLE}"),
        );
        return None;
    }
    if let Some(name) = name
        && let Err(error) = Version::from_config_map_name(name)
    {
        findings.warning(
            at,
            format!("agents do not read a services ConfigMap with this name: {error}"),
        );
    }
    let entries: Vec<_> = entries
        .iter()
        .filter_map(|(key, value)| {
            let text = value.as_text()?;
            Some(services::Entry {
                key,
                text,
                line: value.line,
                block: is_block(source, value.line, text),
            })
        })
        .collect();
    Some(Document::Services {
        name: name.map(str::to_owned),
        services: services::read_entries(&entries, &here, findings),
    })
}

/// Reads the trust bundle of a `ConfigMap` with these entries.
fn read_bundle(
    name: Option<&str>,
    entries: &[(Cow<'_, str>, Node<'_>)],
    source: &str,
    at: &At<'_>,
    findings: &mut Findings,
) -> BundleMap {
    let (wanted, key) = (object_name::TRUSTED_CA, object_name::TRUSTED_CA_FILE);
    if name != Some(wanted) {
        let name = name.unwrap_or("without a name");
        findings.warning(
            at,
            format!("agents do not read a trust bundle from ConfigMap {name}: name it {wanted}"),
        );
    }
    let mut bundle = BundleMap::default();
    for (other, value) in entries {
        let text = value.as_text().unwrap_or_default();
        bundle.size += text.len();
        if other == key {
            text.clone_into(&mut bundle.text);
            bundle.line = value.line;
            bundle.is_block = is_block(source, value.line, text);
        } else {
            let here = at.key(other, value.line);
            findings.warning(
                &here,
                format!("agents do not read this key: put the bundle in {key}"),
            );
        }
    }
    if bundle.text.trim().is_empty() {
        findings.warning(
            at,
            format!(
                "{key} is empty: nodes keep the certificates that they trust until it is filled in"
            ),
        );
    }
    bundle
}

/// Whether a text stands in the source below its key, line by line.
fn is_block(source: &str, key_line: u32, text: &str) -> bool {
    let line = usize::try_from(key_line).unwrap_or(usize::MAX);
    let below = source.lines().nth(line).map(str::trim);
    below
        .is_some_and(|below| !below.is_empty() && text.lines().next().map(str::trim) == Some(below))
}

//! What a machine was provisioned from: with that its first configuration of ours is compared, where a section
//! cannot change on a running machine. Whose word counts is decided here; the files are read by the host.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_api::machine::machine_config::{MachineConfig, Section};
use evenkeel_api::names::{annotation, linux};
use evenkeel_api::{Problems, document};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// OpenShift fills this in when it renders. It says where extensions would come from, and nothing about the machine.
const NOT_ABOUT_THE_MACHINE: &str = "spec.baseOSExtensionsContainerImage";

/// How much of a configuration somebody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Extent {
    /// All of it.
    Whole,
    /// All but its Ignition config.
    WithoutIgnition,
    /// Its name.
    Name,
}

/// The files in which OpenShift's machine-config operator says it on a machine. The first one that says anything
/// counts: what its daemon brought the machine to comes before what the machine was booted with first.
pub fn files() -> impl Iterator<Item = (&'static str, Extent)> {
    let whole = [linux::THEIR_CURRENT_CONFIG, linux::THEIR_SERVED_CONFIG];
    let whole = whole.map(|path| (path, Extent::Whole));
    let encapsulated = linux::THEIR_ENCAPSULATED_CONFIG;
    let encapsulated = encapsulated.map(|path| (path, Extent::WithoutIgnition));
    let annotations = linux::THEIR_FIRST_ANNOTATIONS;
    let annotations = annotations.map(|path| (path, Extent::Name));
    whole.into_iter().chain(encapsulated).chain(annotations)
}

/// One of [`files`] that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvisionFile {
    /// Where.
    pub path: &'static str,
    /// How much it says.
    pub extent: Extent,
    /// Its text, or why it cannot be read.
    pub text: Result<Vec<u8>, String>,
}

/// What a machine was provisioned from, as far as is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provision {
    /// Who says so.
    pub basis: Basis,
    /// The sections that cannot change.
    pub sections: BTreeMap<Section, Value>,
}

/// Who says what a machine was provisioned from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// The one that counts; nobody says anything if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ProvisionSource>,
    /// What may say it and cannot be read, each with why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Who counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvisionSource {
    /// A file on the machine, or one that a person gave, or an object of the cluster.
    pub place: String,
    /// The configuration's name, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// How much of it is said.
    pub extent: Extent,
}

/// The machine has a configuration of ours, and is compared with that one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this machine has {} of Evenkeel already, and is compared with that: adopt a machine before its first configuration",
    called(.0.as_deref())
)]
pub struct Managed(pub Option<String>);

fn called(config: Option<&str>) -> String {
    config.map_or_else(
        || "a configuration".to_owned(),
        |name| format!("configuration {name}"),
    )
}

impl Managed {
    /// The Event reason and metric label of this error.
    pub const fn category(&self) -> &'static str {
        "AlreadyManaged"
    }
}

impl Provision {
    /// What the machine's own files say.
    pub fn of_files(kept: &[ProvisionFile]) -> Self {
        let mut unread = Vec::new();
        for file in kept {
            let read = file.text.as_deref().map_err(Clone::clone);
            match read.and_then(|text| said(file.path, file.extent, text)) {
                Ok(Some(config)) => {
                    let mut provision = Self::of(config, file.path, file.extent);
                    provision.basis.unread = unread;
                    return provision;
                }
                Ok(None) => {}
                Err(why) => unread.push(why),
            }
        }
        Self {
            basis: Basis {
                source: None,
                unread,
            },
            sections: BTreeMap::new(),
        }
    }

    /// What a whole configuration at `place` says.
    pub fn read(place: &str, text: &[u8]) -> Result<Self, Problems> {
        let config = document::provisioned_from(place, text)?;
        Ok(Self::of(config, place, Extent::Whole))
    }

    fn of(config: MachineConfig, place: &str, extent: Extent) -> Self {
        let mut sections = config.unsupported;
        sections.retain(|section, _| section.name != NOT_ABOUT_THE_MACHINE);
        let source = ProvisionSource {
            place: place.to_owned(),
            config: config.name,
            extent,
        };
        Self {
            basis: Basis {
                source: Some(source),
                unread: Vec::new(),
            },
            sections,
        }
    }

    /// The source for people; nothing if nobody says anything.
    pub fn words(&self) -> String {
        let source = self.basis.source.as_ref();
        source.map(ToString::to_string).unwrap_or_default()
    }

    /// The configuration that says the rest, where only its name is known.
    pub fn named(&self) -> Option<&str> {
        let source = self.basis.source.as_ref()?;
        let rest = source.extent != Extent::Whole;
        source.config.as_deref().filter(|_| rest)
    }
}

/// What a file says; nothing if it is empty.
fn said(path: &str, extent: Extent, text: &[u8]) -> Result<Option<MachineConfig>, String> {
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    if extent != Extent::Name {
        let config = document::provisioned_from(path, text);
        return config.map(Some).map_err(|problems| problems.to_string());
    }
    let annotations: BTreeMap<String, String> =
        serde_json::from_slice(text).map_err(|error| format!("{path}: {error}"))?;
    let name = annotations.get(annotation::CURRENT_CONFIG);
    Ok(name.filter(|name| !name.is_empty()).map(|name| {
        let name = Some(name.clone());
        MachineConfig {
            name,
            ..MachineConfig::default()
        }
    }))
}

impl ProvisionSource {
    /// Whether it says what this section was.
    fn covers(&self, section: &Section) -> bool {
        match self.extent {
            Extent::Whole => true,
            Extent::WithoutIgnition => section.name.starts_with("spec."),
            Extent::Name => false,
        }
    }
}

impl fmt::Display for ProvisionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.config {
            Some(name) => write!(f, "MachineConfig {name} ({})", self.place),
            None => f.write_str(&self.place),
        }
    }
}

impl Basis {
    /// Whether the first configuration may say of this section what it likes.
    pub(crate) fn leaves_open(&self, section: &Section) -> bool {
        let source = self.source.as_ref();
        section.name == NOT_ABOUT_THE_MACHINE && source.is_some_and(|it| it.covers(section))
    }

    /// What people should know of where a section was compared that is refused, and what would help.
    pub(crate) fn advice(&self, section: &Section) -> String {
        let source = self.source.as_ref();
        if let Some(source) = source.filter(|source| source.covers(section)) {
            return format!("; it was provisioned from {source}");
        }
        let config = source.and_then(|source| source.config.as_deref());
        let config = config.map_or_else(
            || "the configuration that says so".to_owned(),
            |name| format!("MachineConfig {name}"),
        );
        let unread = match self.unread.as_slice() {
            [] => String::new(),
            unread => format!(" (unreadable: {})", unread.join("; ")),
        };
        format!(
            "; if it was provisioned with it, run `evenkeel adopt -f FILE` on it, with {config}{unread}"
        )
    }
}

#[cfg(test)]
mod tests;

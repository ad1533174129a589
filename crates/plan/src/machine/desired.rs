//! What a machine is to be, small enough to keep: a configuration with its contents set aside.

use std::collections::BTreeMap;

use evenkeel_api::machine::disruption_policy::DisruptionPolicy;
use evenkeel_api::machine::machine_config::{MachineConfig, Owner, Section};
use serde_json::Value;

use crate::machine::entry::Hash;
use crate::machine::units::Install;

/// Bytes by their hash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents(BTreeMap<Hash, Vec<u8>>);

impl Contents {
    /// Keeps `bytes` and returns their hash.
    pub fn keep(&mut self, bytes: Vec<u8>) -> Hash {
        let hash = Hash::of(&bytes);
        self.0.entry(hash).or_insert(bytes);
        hash
    }

    /// The bytes with this hash, if they are here.
    pub fn get(&self, hash: Hash) -> Option<&[u8]> {
        self.0.get(&hash).map(Vec::as_slice)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Hash, &[u8])> {
        self.0.iter().map(|(hash, bytes)| (*hash, bytes.as_slice()))
    }

    /// Takes over everything that `other` has.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// A configuration without its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The configuration's name, where it has one.
    pub name: Option<String>,
    /// Files by path.
    pub files: BTreeMap<String, DesiredFile>,
    /// Units by name.
    pub units: BTreeMap<String, DesiredUnit>,
    /// The authorised keys of user `core`, as one file; `None` if there are none.
    pub ssh_keys: Option<Hash>,
    /// The operating system's image; empty for none.
    pub os_image_url: String,
    /// The kernel's arguments.
    pub kernel_arguments: Vec<String>,
    /// What may stand but not change.
    pub unsupported: BTreeMap<Section, Value>,
    /// What changes need around them, where it is not what they need anyway.
    pub disruption_policy: DisruptionPolicy,
}

/// A file without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredFile {
    /// Of its contents.
    pub hash: Hash,
    /// Permission bits.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
}

/// A unit without its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredUnit {
    /// Its own file, if the configuration brings it.
    pub contents: Option<Hash>,
    /// What its own file and drop-ins say of enabling it.
    pub install: Install,
    /// Whether it starts at boot; `None` leaves it to the presets.
    pub enabled: Option<bool>,
    /// Whether it may not be started at all.
    pub masked: bool,
    /// Drop-ins by file name.
    pub drop_ins: BTreeMap<String, Hash>,
}

impl Desired {
    /// Sets the bytes of `config` aside.
    pub fn of(config: MachineConfig) -> (Self, Contents) {
        let mut contents = Contents::default();
        let units = config
            .units
            .into_iter()
            .map(|(name, unit)| {
                let texts = unit
                    .contents
                    .as_deref()
                    .into_iter()
                    .chain(unit.drop_ins.values().map(String::as_str));
                let install = Install::read(texts);
                let desired = DesiredUnit {
                    install,
                    contents: unit.contents.map(|text| contents.keep(text.into_bytes())),
                    enabled: unit.enabled,
                    masked: unit.masked,
                    drop_ins: unit
                        .drop_ins
                        .into_iter()
                        .map(|(name, text)| (name, contents.keep(text.into_bytes())))
                        .collect(),
                };
                (name, desired)
            })
            .collect();
        let files = config
            .files
            .into_iter()
            .map(|(path, file)| {
                let hash = contents.keep(file.contents);
                (
                    path,
                    DesiredFile {
                        hash,
                        mode: file.mode,
                        user: file.user,
                        group: file.group,
                    },
                )
            })
            .collect();
        let ssh_keys = (!config.ssh_keys.is_empty()).then(|| {
            let mut text = config.ssh_keys.join("\n");
            text.push('\n');
            contents.keep(text.into_bytes())
        });
        let desired = Self {
            name: config.name,
            files,
            units,
            ssh_keys,
            os_image_url: config.os_image_url,
            kernel_arguments: config.kernel_arguments,
            unsupported: config.unsupported,
            disruption_policy: config.disruption_policy,
        };
        (desired, contents)
    }
}

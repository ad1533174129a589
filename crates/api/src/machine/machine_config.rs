//! A machine's configuration as the engine knows it, whatever Ignition version it was written in.
//!
//! Defaults are filled in and encodings undone, so that two configurations which mean the same are
//! equal. How it is read is next door; what to do about it is for `evenkeel-plan`.

pub(crate) mod spec;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::machine::disruption_policy::DisruptionPolicy;

/// What a machine is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineConfig {
    /// `metadata.name`, where there is one: a bare Ignition config has none.
    pub name: Option<String>,
    /// Files by their absolute path.
    pub files: BTreeMap<String, File>,
    /// systemd units by their name, with its suffix.
    pub units: BTreeMap<String, Unit>,
    /// Authorised SSH keys of user `core`, in order, without duplicates.
    pub ssh_keys: Vec<String>,
    /// The operating system's image; empty if none is asked for.
    pub os_image_url: String,
    /// Kernel arguments, in order.
    pub kernel_arguments: Vec<String>,
    /// What was said and is not ours to do. It may stand as long as it does not change.
    pub unsupported: BTreeMap<Section, Value>,
    /// What changes need around them, where it is not what they need anyway. It says nothing about the machine.
    pub disruption_policy: DisruptionPolicy,
}

/// Where something unsupported stands: `storage.disks` and `/dev/sda`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Section {
    /// The section's path in the configuration, for example `passwd.users`.
    pub name: String,
    /// Which element of it: a path, a device, a user; empty for a section that has none.
    pub identity: String,
}

/// A regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// All of its bytes, decoded and decompressed.
    pub contents: Vec<u8>,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
}

impl File {
    /// The mode of a file that says none.
    pub const DEFAULT_MODE: u32 = 0o644;
}

/// A user or a group: by number, or by a name that the machine knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// A number.
    Id(u32),
    /// A name, looked up on the machine.
    Name(String),
}

impl Default for Owner {
    fn default() -> Self {
        Self::Id(0)
    }
}

/// A systemd unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unit {
    /// The unit's own file; `None` for one that the operating system brings.
    pub contents: Option<String>,
    /// Whether it starts at boot; `None` leaves it to the machine's presets.
    pub enabled: Option<bool>,
    /// Whether it may not be started at all.
    pub masked: bool,
    /// Drop-ins by their file name.
    pub drop_ins: BTreeMap<String, String>,
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.identity.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{} {}", self.name, self.identity)
        }
    }
}

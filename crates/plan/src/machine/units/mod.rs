//! systemd units as paths: what enabling, disabling, masking and presetting one means on disk.

pub mod install;
pub mod preset;

use std::collections::BTreeMap;

pub use install::{Install, UNIT_FOLDER};

/// What the machine knows of a unit that the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitFacts {
    /// The unit's file that the operating system brings, if it does.
    pub vendor: Option<Vendor>,
    /// Whether the machine's presets enable it.
    pub preset: Preset,
    /// Links below [`UNIT_FOLDER`] that enable it now: path → target.
    pub links: BTreeMap<String, String>,
}

/// A unit's file outside [`UNIT_FOLDER`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vendor {
    /// Where it is.
    pub path: String,
    /// What enabling it asks for.
    pub install: Install,
}

/// What the machine's presets say of a unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Preset {
    /// There is no machine to ask: two configurations are compared.
    #[default]
    Unknown,
    /// It is to be enabled.
    Enable,
    /// It is to be disabled.
    Disable,
}

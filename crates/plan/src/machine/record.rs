//! What the journal remembers once a plan is done: which paths are ours, and what stood there before
//! we came.
//!
//! It has a version on disk: a program that does not know all that is remembered would forget a part of
//! it, and what was there before us could never come back.

use std::collections::BTreeMap;

use evenkeel_api::machine::machine_config::Section;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::attributes::Attributes;
use crate::machine::desired::Desired;
use crate::machine::entry::{Entry, Hash};
use crate::machine::os::deployment::{Deployment, has_arrived, is_about};
use crate::machine::provision::{Basis, Managed, Provision};
use crate::machine::resource::Resource;
use crate::machine::step::Step;
use crate::machine::targets::{Part, Target, Targets};

/// How often a machine is told to boot for what does not arrive.
const MOST_BOOTS: u32 = 2;

/// The version of what is kept on a machine, record and journal alike. The first one has none in its
/// record; the second has extended attributes.
pub(crate) const VERSION: u32 = 2;

/// What is kept on a machine cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It does not parse.
    #[error("it cannot be read: {0}")]
    Broken(String),
    /// A newer program wrote it.
    #[error(
        "this machine was configured by a newer evenkeel (its record has version {0}, this program supports {VERSION}): run that version of evenkeel here, or a later one; nothing was changed"
    )]
    Newer(u32),
}

/// The version of a text that was kept, if it is newer than all that we know.
pub fn newer(text: &[u8]) -> Option<Unreadable> {
    #[derive(Deserialize)]
    struct Versioned {
        version: Option<u32>,
    }
    let version = serde_json::from_slice(text).map(|it: Versioned| it.version);
    let version = version.ok().flatten()?;
    (version > VERSION).then_some(Unreadable::Newer(version))
}

pub(crate) fn broken(error: &serde_json::Error) -> Unreadable {
    Unreadable::Broken(error.to_string())
}

/// The configuration a machine was brought to, and what is ours on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The configuration's name, where it has one.
    pub config: Option<String>,
    /// Our paths.
    pub owned: BTreeMap<String, Owned>,
    /// The operating system's image; empty for none.
    pub os_image_url: String,
    /// The image before us, if it had a name: it comes back when the configuration names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_image_before: Option<String>,
    /// The kernel's arguments.
    pub kernel_arguments: Vec<String>,
    /// Those of them that were there before us, and stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_arguments_before: Vec<String>,
    /// What stands in the configuration and may not change.
    pub unsupported: Vec<Standing>,
    /// Before the first configuration: who says that this is what stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// The security labels of what stood at our paths before us, where it had one.
    #[serde(default, skip_serializing_if = "SecurityLabels::is_empty")]
    pub labels: SecurityLabels,
    /// Their extended attributes, access lists among them, as they come back with them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Attributes>,
    /// The boot in which it was written, if it is current only after the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_in: Option<BootId>,
    /// What was staged for that boot, until it has arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staged: Vec<Step>,
    /// How often the machine was told to boot for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub boots: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Security labels, by path.
pub type SecurityLabels = BTreeMap<String, String>;

/// One run of a machine's kernel: another boot has another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootId(pub String);

/// A path of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// The resource it belongs to.
    pub resource: Resource,
    /// What it is for that resource.
    pub part: Part,
    /// What we keep there.
    pub entry: Entry,
    /// What stood there before us, and comes back when the path is no longer ours.
    pub before: Entry,
}

/// A section that may not change, with what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    section: String,
    identity: String,
    value: Value,
}

impl Standing {
    fn all(sections: &BTreeMap<Section, Value>) -> Vec<Self> {
        let standing = sections.iter().map(|(section, value)| Self {
            section: section.name.clone(),
            identity: section.identity.clone(),
            value: value.clone(),
        });
        standing.collect()
    }
}

impl Record {
    /// Reads what [`Record::text`] wrote.
    pub fn read(text: &[u8]) -> Result<Self, Unreadable> {
        match newer(text) {
            Some(newer) => Err(newer),
            None => serde_json::from_slice(text).map_err(|error| broken(&error)),
        }
    }

    /// The record as it stands on disk.
    pub fn text(&self) -> Result<Vec<u8>, Unreadable> {
        #[derive(Serialize)]
        struct Versioned<'a> {
            version: u32,
            #[serde(flatten)]
            record: &'a Record,
        }
        let versioned = Versioned {
            version: VERSION,
            record: self,
        };
        serde_json::to_vec(&versioned).map_err(|error| broken(&error))
    }

    /// Everything of `desired` but the paths.
    pub(crate) fn about(desired: &Desired) -> Self {
        Self {
            config: desired.name.clone(),
            owned: BTreeMap::new(),
            os_image_url: desired.os_image_url.clone(),
            os_image_before: None,
            kernel_arguments: desired.kernel_arguments.clone(),
            kernel_arguments_before: Vec::new(),
            unsupported: Standing::all(&desired.unsupported),
            basis: None,
            labels: SecurityLabels::new(),
            attributes: BTreeMap::new(),
            written_in: None,
            staged: Vec::new(),
            boots: 0,
        }
    }

    /// Whether the machine has no configuration of ours yet, and nobody said what it was provisioned from.
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }

    /// The same machine, which was provisioned from this. Only one without a configuration of ours is.
    pub fn adopting(self, provision: &Provision) -> Result<Self, Managed> {
        if self.basis.is_none() && !self.is_new() {
            return Err(Managed(self.config));
        }
        Ok(Self {
            unsupported: Standing::all(&provision.sections),
            basis: Some(provision.basis.clone()),
            ..self
        })
    }

    /// Whether anything of the operating system is ours, or on its way.
    pub fn concerns_os(&self) -> bool {
        !self.os_image_url.is_empty()
            || !self.kernel_arguments.is_empty()
            || !self.staged.is_empty()
    }

    /// What is to be remembered when the boot that this waited for has happened, on a machine that
    /// runs `booted`; and whether something was lost on the way and must be staged once more.
    ///
    /// A staged deployment is written down for good only by an orderly shutdown: a power cut loses
    /// it. If it was lost in a boot that we asked for, one more is tried; what then has not arrived is
    /// kept, and shows as a difference.
    #[must_use]
    pub fn after_boot(mut self, booted: Option<&Deployment>) -> (Self, bool) {
        let arrived =
            booted.is_none_or(|booted| self.staged.iter().all(|step| has_arrived(step, booted)));
        let lost = self.written_in.is_some() && !arrived && self.boots < MOST_BOOTS;
        if !lost {
            self.written_in = None;
            self.boots = 0;
        }
        if arrived {
            self.staged.clear();
        }
        (self, lost)
    }

    /// Whether the `next` boot would not bring all that is staged: an earlier boot lost a part of it, and
    /// an unfinished run went on without that part.
    #[must_use]
    pub fn is_lost_to(&self, next: &Deployment) -> bool {
        !self.staged.iter().all(|step| has_arrived(step, next))
    }

    /// What is to be remembered when the `steps` of a journal were undone in this `boot`, on a machine that runs
    /// `booted`; nothing new if that is what ran before.
    ///
    /// A boot on the way may have brought what was staged. Then what ran before is staged again, and
    /// waits for a boot like anything else that is staged.
    #[must_use]
    pub fn after_going_back(
        &self,
        steps: &[Step],
        booted: &Deployment,
        boot: BootId,
    ) -> Option<Self> {
        let staged = steps.iter().filter(|step| is_about(step));
        let undone = staged.map(Step::undone);
        let missing: Vec<Step> = undone
            .filter(|step| !has_arrived(step, booted) && !self.staged.contains(step))
            .collect();
        if missing.is_empty() {
            return None;
        }
        let mut after = self.clone();
        after.staged.extend(missing);
        after.written_in = Some(boot);
        after.boots = 0;
        Some(after)
    }

    /// Whether the machine must still boot before this configuration is current.
    pub fn awaits_boot(&self, now: &BootId) -> bool {
        self.written_in.as_ref() == Some(now)
    }

    /// What must stand where while this is the configuration, folders on the way apart: those may
    /// be shared.
    pub fn targets(&self) -> Targets {
        self.owned
            .iter()
            .filter(|(_, owned)| owned.part != Part::Folder)
            .map(|(path, owned)| {
                let target = Target {
                    resource: owned.resource.clone(),
                    part: owned.part.clone(),
                    entry: owned.entry.clone(),
                };
                (path.clone(), target)
            })
            .collect()
    }

    /// The record of a machine that is exactly at `desired`, which we brought there from nothing.
    pub fn imagined(desired: &Desired, targets: &Targets) -> Self {
        let owned = targets.iter().map(|(path, target)| {
            let owned = Owned {
                resource: target.resource.clone(),
                part: target.part.clone(),
                entry: target.entry.clone(),
                before: Entry::Absent,
            };
            (path.clone(), owned)
        });
        Self {
            owned: owned.collect(),
            os_image_before: (!desired.os_image_url.is_empty()).then(String::new),
            ..Self::about(desired)
        }
    }

    /// The sections that may not change.
    pub(crate) fn standing(&self) -> BTreeMap<Section, Value> {
        let section = |standing: &Standing| Section {
            name: standing.section.clone(),
            identity: standing.identity.clone(),
        };
        self.unsupported
            .iter()
            .map(|standing| (section(standing), standing.value.clone()))
            .collect()
    }

    /// The contents that must be kept: what we put there, and what comes back one day.
    pub fn contents(&self) -> impl Iterator<Item = Hash> {
        self.owned
            .values()
            .flat_map(|owned| [&owned.entry, &owned.before])
            .filter_map(Entry::hash)
    }
}

//! The journal's format, and what a start does with one that it finds.
//!
//! A plan is written down before its first step. While the journal is there, the machine is on its
//! way: forward until the last step and action are done, or back to where it was. Steps are
//! idempotent, so whoever finds a journal does all of it again in its direction.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::Plan;
use crate::machine::attributes::Attributes;
use crate::machine::disruption::UnitAction;
use crate::machine::entry::{Entry, Hash};
use crate::machine::record::{BootId, Record, SecurityLabels, Unreadable, VERSION, broken, newer};
use crate::machine::step::Step;

/// A plan on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    direction: Direction,
    steps: Vec<Step>,
    actions: Vec<UnitAction>,
    record: Record,
    /// The security labels of what stood at the paths of the steps.
    #[serde(default, skip_serializing_if = "SecurityLabels::is_empty")]
    labels: SecurityLabels,
    /// Those of what comes back at paths that are ours no longer.
    #[serde(default, skip_serializing_if = "SecurityLabels::is_empty")]
    returning: SecurityLabels,
    /// The extended attributes of what stood at the paths of the steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, Attributes>,
    /// Those of what comes back at paths that are ours no longer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    returning_attributes: BTreeMap<String, Attributes>,
}

/// What stood at paths before anything was done there, besides what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stood {
    /// Security labels.
    pub labels: SecurityLabels,
    /// Extended attributes; without any, an empty set.
    pub attributes: BTreeMap<String, Attributes>,
}

/// One thing to do: what shall stand at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move<'a> {
    /// The step it belongs to.
    pub step: &'a Step,
    /// What shall stand there.
    pub entry: &'a Entry,
    /// What stands there before that.
    pub replaced: &'a Entry,
    /// The security label it had when it last stood there. Without one, what is put there has that
    /// of what it replaces.
    pub label: Option<&'a str>,
    /// The extended attributes that it had then, if they are known.
    pub attributes: Option<&'a Attributes>,
}

impl Move<'_> {
    /// Whether only the machine's policy can tell the label of what is put there: it has none from
    /// before, and replaces nothing of its kind.
    pub const fn is_labelled_by_policy(&self) -> bool {
        match self.entry {
            Entry::File { .. } => {
                self.label.is_none() && !matches!(self.replaced, Entry::File { .. })
            }
            Entry::Link { .. } | Entry::Directory { .. } => self.label.is_none(),
            _ => false,
        }
    }
}

/// Which way the machine is going.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the new configuration.
    Forward,
    /// A step failed: back to the old one.
    Back,
}

impl Journal {
    /// Writes `plan` down, to be carried out on a machine with this `record`, where this `stood` at
    /// the paths of the steps.
    pub fn open(plan: &Plan, stood: Stood, record: &Record) -> Self {
        let mut after = plan.record.clone();
        let is_new = |after: &Record, path: &String| {
            after.owned.contains_key(path) && !record.owned.contains_key(path)
        };
        for (path, label) in &stood.labels {
            if is_new(&after, path) {
                after.labels.insert(path.clone(), label.clone());
            }
        }
        for (path, attributes) in &stood.attributes {
            if is_new(&after, path) {
                after.attributes.insert(path.clone(), attributes.clone());
            }
        }
        let mut returning = record.labels.clone();
        returning.retain(|path, _| !after.owned.contains_key(path));
        let mut returning_attributes = record.attributes.clone();
        returning_attributes.retain(|path, _| !after.owned.contains_key(path));
        Self {
            version: VERSION,
            direction: Direction::Forward,
            steps: plan.steps.clone(),
            actions: plan.actions.clone(),
            record: after,
            labels: stood.labels,
            returning,
            attributes: stood.attributes,
            returning_attributes,
        }
    }

    /// Reads what [`Journal::text`] wrote.
    pub fn read(text: &[u8]) -> Result<Self, Unreadable> {
        match newer(text) {
            Some(newer) => Err(newer),
            None => serde_json::from_slice(text).map_err(|error| broken(&error)),
        }
    }

    /// The journal as it stands on disk.
    pub fn text(&self) -> Result<Vec<u8>, Unreadable> {
        serde_json::to_vec(self).map_err(|error| broken(&error))
    }

    /// Which way it goes.
    pub const fn direction(&self) -> Direction {
        self.direction
    }

    /// Writes down that what `record` has staged, and did not come with a boot, is staged once more.
    pub fn stage_again(record: &Record, boot: BootId) -> Self {
        Self {
            version: VERSION,
            direction: Direction::Forward,
            steps: record.staged.clone(),
            actions: Vec::new(),
            record: Record {
                written_in: Some(boot),
                ..record.clone()
            },
            labels: SecurityLabels::new(),
            returning: SecurityLabels::new(),
            attributes: BTreeMap::new(),
            returning_attributes: BTreeMap::new(),
        }
    }

    /// A step failed: from here on, back.
    pub fn turn_back(&mut self) {
        self.direction = Direction::Back;
    }

    /// It is taken up in this boot: what only counts after a boot waits for the next one.
    pub fn taken_up_in(&mut self, boot: BootId) {
        if let Some(written_in) = &mut self.record.written_in {
            *written_in = boot;
        }
    }

    /// What is still to be done, in order.
    pub fn moves(&self) -> Vec<Move<'_>> {
        let forward = |step| Move {
            step,
            entry: &step.after,
            replaced: &step.before,
            label: self.returning.get(&step.path).map(String::as_str),
            attributes: self.returning_attributes.get(&step.path),
        };
        let back = |step| Move {
            step,
            entry: &step.before,
            replaced: &step.after,
            label: self.labels.get(&step.path).map(String::as_str),
            attributes: self.attributes.get(&step.path),
        };
        match self.direction {
            Direction::Forward => self.steps.iter().map(forward).collect(),
            Direction::Back => self.steps.iter().rev().map(back).collect(),
        }
    }

    /// The steps as they were planned.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What happens around the steps.
    pub fn actions(&self) -> &[UnitAction] {
        &self.actions
    }

    /// What is to be remembered when the way forward is done; the way back leaves what was.
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Contents that must be at hand to go either way.
    pub fn contents(&self) -> impl Iterator<Item = Hash> {
        self.steps
            .iter()
            .flat_map(|step| [&step.before, &step.after])
            .filter_map(Entry::hash)
    }

    /// Whether units must be read again by systemd afterwards.
    pub fn touches_units(&self) -> bool {
        self.actions.contains(&UnitAction::DaemonReload)
            || self
                .steps
                .iter()
                .any(|step| step.path.starts_with(crate::machine::units::UNIT_FOLDER))
    }
}

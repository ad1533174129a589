//! The journal's format, and what a start does with one that it finds.
//!
//! A plan is written down before its first step. While the journal is there, the machine is on its
//! way: forward until the last step and action are done, or back to where it was. Steps are
//! idempotent, so whoever finds a journal does all of it again in its direction.

use serde::{Deserialize, Serialize};

use crate::disruption::Action;
use crate::entry::{Entry, Hash};
use crate::machine::Plan;
use crate::record::{BootId, Labels, Record};
use crate::step::Step;

const VERSION: u32 = 1;

/// A plan on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    direction: Direction,
    steps: Vec<Step>,
    actions: Vec<Action>,
    record: Record,
    /// The security labels of what stood at the paths of the steps.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    /// Those of what comes back at paths that are ours no longer.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    returning: Labels,
}

/// One thing to do: what shall stand at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move<'a> {
    /// The step it belongs to.
    pub step: &'a Step,
    /// What shall stand there.
    pub entry: &'a Entry,
    /// The security label it had when it last stood there. Without one, what is put there has that
    /// of what it replaces.
    pub label: Option<&'a str>,
}

impl<'a> Move<'a> {
    fn new(step: &'a Step, entry: &'a Entry, labels: &'a Labels) -> Self {
        let label = labels.get(&step.path).map(String::as_str);
        Self { step, entry, label }
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

/// The text is no journal of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It does not parse.
    #[error("the journal cannot be read: {0}")]
    Broken(String),
    /// A newer program wrote it.
    #[error(
        "the journal is of version {0}, this program knows {VERSION}: finish with the program that wrote it"
    )]
    Newer(u32),
}

impl Journal {
    /// Writes `plan` down, to be carried out on a machine with this `record`, where what stands at
    /// the paths of the steps has these `labels`.
    pub fn open(plan: &Plan, labels: Labels, record: &Record) -> Self {
        let mut after = plan.record.clone();
        for (path, label) in &labels {
            if after.owned.contains_key(path) && !record.owned.contains_key(path) {
                after.labels.insert(path.clone(), label.clone());
            }
        }
        let mut returning = record.labels.clone();
        returning.retain(|path, _| !after.owned.contains_key(path));
        Self {
            version: VERSION,
            direction: Direction::Forward,
            steps: plan.steps.clone(),
            actions: plan.actions.clone(),
            record: after,
            labels,
            returning,
        }
    }

    /// Reads what [`Journal::text`] wrote.
    pub fn read(text: &[u8]) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let broken = |error: serde_json::Error| Unreadable::Broken(error.to_string());
        match serde_json::from_slice::<Versioned>(text)
            .map_err(broken)?
            .version
        {
            VERSION => serde_json::from_slice(text).map_err(broken),
            newer => Err(Unreadable::Newer(newer)),
        }
    }

    /// The journal as it stands on disk.
    pub fn text(&self) -> Result<Vec<u8>, Unreadable> {
        serde_json::to_vec(self).map_err(|error| Unreadable::Broken(error.to_string()))
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
            labels: Labels::new(),
            returning: Labels::new(),
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
        match self.direction {
            Direction::Forward => self
                .steps
                .iter()
                .map(|step| Move::new(step, &step.after, &self.returning))
                .collect(),
            Direction::Back => self
                .steps
                .iter()
                .rev()
                .map(|step| Move::new(step, &step.before, &self.labels))
                .collect(),
        }
    }

    /// The steps as they were planned.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What happens around the steps.
    pub fn actions(&self) -> &[Action] {
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
        self.steps
            .iter()
            .any(|step| step.path.starts_with(crate::units::UNIT_FOLDER))
    }
}

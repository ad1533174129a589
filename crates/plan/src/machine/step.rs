//! The smallest thing that is done to a machine: one path goes from one state to another.

use serde::{Deserialize, Serialize};

use crate::machine::entry::Entry;
use crate::machine::resource::Resource;
use crate::machine::targets::Part;

/// Brings one path from `before` to `after`. Undoing it is the same with the two exchanged, and
/// doing it twice is doing it once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The resource it is done for.
    pub resource: Resource,
    /// What the path is for that resource.
    pub part: Part,
    /// The path.
    pub path: String,
    /// What stood there.
    pub before: Entry,
    /// What shall stand there.
    pub after: Entry,
}

impl Step {
    /// The step that undoes this one.
    #[must_use]
    pub fn undone(&self) -> Self {
        Self {
            before: self.after.clone(),
            after: self.before.clone(),
            ..self.clone()
        }
    }

    /// The kind of step, for counting: `write file`, `remove link`.
    pub fn kind(&self) -> &'static str {
        match (&self.before, &self.after) {
            (Entry::Absent, Entry::File { .. }) => "create file",
            (_, Entry::File { .. }) => "replace with file",
            (_, Entry::Link { .. }) => "make link",
            (_, Entry::Directory { .. }) => "make directory",
            (Entry::Directory { .. }, Entry::Absent) => "remove directory",
            (Entry::Link { .. }, Entry::Absent) => "remove link",
            (_, Entry::Service(_)) => "configure service",
            (Entry::Service(_), Entry::Absent) => "remove service",
            (_, Entry::Variable { .. }) => "set variable",
            (Entry::Variable { .. }, Entry::Absent) => "remove variable",
            (_, Entry::Image { .. }) => "stage image",
            (_, Entry::Arguments { .. }) => "stage kernel arguments",
            (_, Entry::Absent) => "remove file",
            (_, Entry::Other) => "leave alone",
        }
    }
}

//! A field of an object that is not valid, of whatever object.

use std::fmt;

/// A field that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// Which: `spec.maxUnavailable`.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl FieldProblem {
    /// All of them in one line; nothing if there are none.
    pub fn listed(problems: &[Self]) -> Option<String> {
        let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

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

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

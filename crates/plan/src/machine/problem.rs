//! Why a machine may not go to a configuration.

use std::fmt;

/// One reason, with the section and the identity it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineProblem {
    /// The section of the configuration: `storage.files`.
    pub section: String,
    /// Which element of it: a path, a unit, a user.
    pub identity: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl MachineProblem {
    /// A problem with its place.
    pub fn new(section: &str, identity: &str, message: impl Into<String>) -> Self {
        Self {
            section: section.to_owned(),
            identity: identity.to_owned(),
            message: message.into(),
        }
    }
}

impl fmt::Display for MachineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.section)?;
        if !self.identity.is_empty() {
            write!(f, " {}", self.identity)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// All the reasons at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub Vec<MachineProblem>);

impl Refused {
    /// The Event reason and metric label of this error.
    pub const fn category(&self) -> &'static str {
        "ConfigRefused"
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this machine cannot be updated to that configuration")?;
        self.0
            .iter()
            .try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Refused {}

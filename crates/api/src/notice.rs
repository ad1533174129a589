//! What people should hear: a line of the log and an Event on the object that it is about.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Whether somebody should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Severity {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// What people should hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whether somebody should look.
    pub severity: Severity,
    /// One word in `PascalCase` for what it is: the Event's reason, and a label in metrics.
    pub category: Cow<'static, str>,
    /// The sentence, with the cure if there is one.
    pub message: String,
}

impl Notice {
    /// Something is as it should be.
    pub fn normal(category: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Normal,
            category: category.into(),
            message: message.into(),
        }
    }

    /// Somebody should look.
    pub fn warning(category: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::normal(category, message)
        }
    }
}

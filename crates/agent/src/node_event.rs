//! Something that people are told of a node's life, as an Event on its Node and in the log. What there is to
//! tell is said by each system for itself.

use evenkeel_daemon::{Event, Events, Severity};
use evenkeel_host::verify::Finding;
use k8s_openapi::api::core::v1::ObjectReference;

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeEvent {
    severity: Severity,
    /// The category of an error, or one word for what happened.
    reason: &'static str,
    action: &'static str,
    note: String,
}

impl NodeEvent {
    pub(crate) fn good(reason: &'static str, action: &'static str, note: String) -> Self {
        Self {
            severity: Severity::Normal,
            reason,
            action,
            note,
        }
    }

    pub(crate) fn bad(reason: &'static str, action: &'static str, note: String) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::good(reason, action, note)
        }
    }

    /// One word for what happened.
    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }

    /// Says it in the log and on `object`.
    pub(crate) fn tell(self, object: ObjectReference, events: &Events) {
        match self.severity {
            Severity::Normal => tracing::info!(reason = self.reason, "{}", self.note),
            Severity::Warning => tracing::warn!(reason = self.reason, "{}", self.note),
        }
        events.publish(Event {
            object,
            severity: self.severity,
            reason: self.reason.to_owned(),
            action: self.action.to_owned(),
            note: self.note,
        });
    }
}

/// What is not as it should be and why, in one line.
pub(crate) fn shown(finding: &Finding) -> String {
    format!("{}: {}", finding.resource, finding.why)
}

//! An Event on a Node, which is also a line of the log. Which Events there are is up to each system.

use evenkeel_api::notice::Notice;
use evenkeel_daemon::Events;
use evenkeel_host::verify::Finding;
use k8s_openapi::api::core::v1::ObjectReference;

/// An Event on this machine's Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeEvent {
    notice: Notice,
    /// One word for what was being done.
    action: &'static str,
}

impl NodeEvent {
    pub(crate) fn normal(category: &'static str, action: &'static str, message: String) -> Self {
        let notice = Notice::normal(category, message);
        Self { notice, action }
    }

    pub(crate) fn warning(category: &'static str, action: &'static str, message: String) -> Self {
        let notice = Notice::warning(category, message);
        Self { notice, action }
    }

    /// One word for what happened.
    pub(crate) fn category(&self) -> &str {
        &self.notice.category
    }

    /// Says it in the log and on `object`.
    pub(crate) fn tell(self, object: ObjectReference, events: &Events) {
        events.notify(object, self.action, self.notice);
    }
}

/// What is not as it should be and why, in one line.
pub(crate) fn shown(finding: &Finding) -> String {
    format!("{}: {}", finding.resource, finding.why)
}

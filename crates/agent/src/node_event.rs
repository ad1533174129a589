//! An Event on a Node, which is also a line of the log. Which Events there are is up to each system.

use evenkeel_api::notice::Notice;
use evenkeel_daemon::Events;
use evenkeel_host::verify::Finding;
use evenkeel_plan::machine::phase::Phase;
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

    /// The node has come to `phase`, if both systems say so alike; `done` and `applying` are the system's own categories,
    /// and `what` is what its nodes are brought to.
    pub(crate) fn of_phase(
        phase: &Phase,
        (done, applying): (&'static str, &'static str),
        what: &str,
    ) -> Option<Self> {
        Some(match phase {
            Phase::Done { config } => {
                let message = format!("the node is up to date with {what} {config}");
                Self::normal(done, "Update", message)
            }
            Phase::Degraded(reason) => {
                Self::warning(reason.category, "Update", reason.text.clone())
            }
            Phase::AwaitDrain { target, changes } => {
                let message =
                    format!("drain requested for the update to {what} {target}: {changes}");
                Self::normal("DrainRequested", "Drain", message)
            }
            Phase::Apply { target, changes } => {
                let message = format!("updating to {what} {target}: {changes}");
                Self::normal(applying, "Update", message)
            }
            Phase::Unmanaged | Phase::Heal { .. } | Phase::Reboot => return None,
        })
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

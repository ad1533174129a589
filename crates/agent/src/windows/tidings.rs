//! What people are told of a Windows node's life, as Events on its Node and in the log.

use evenkeel_daemon::{Event, Events, Severity};
use evenkeel_host::verify::Finding;
use evenkeel_host::watch;
use evenkeel_plan::phase::Phase;
use k8s_openapi::api::core::v1::ObjectReference;

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tiding {
    severity: Severity,
    reason: &'static str,
    action: &'static str,
    note: String,
}

impl Tiding {
    fn good(reason: &'static str, action: &'static str, note: String) -> Self {
        Self {
            severity: Severity::Normal,
            reason,
            action,
            note,
        }
    }

    fn bad(reason: &'static str, action: &'static str, note: String) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::good(reason, action, note)
        }
    }

    /// The node has come to `phase`.
    pub(crate) fn of(phase: &Phase) -> Option<Self> {
        match phase {
            Phase::Unmanaged | Phase::Heal { .. } => None,
            Phase::Done { config } => Some(Self::good(
                "ServicesDone",
                "Update",
                format!("this node runs the services {config}"),
            )),
            Phase::Degraded(reason) => {
                Some(Self::bad(reason.category, "Update", reason.text.clone()))
            }
            Phase::AwaitDrain { target, changes } => Some(Self::good(
                "DrainRequested",
                "Drain",
                format!("pods are asked to leave, to go to the services {target}: {changes}"),
            )),
            Phase::Apply { target, changes } => Some(Self::good(
                "ServicesApplying",
                "Update",
                format!("going to the services {target}: {changes}"),
            )),
            Phase::Reboot => Some(Self::good(
                "Rebooting",
                "Reboot",
                "environment variables have changed, the machine boots".to_owned(),
            )),
        }
    }

    /// What became of something that drifted, if people should hear of it.
    pub(crate) fn drift(event: &watch::Event) -> Option<Self> {
        match event {
            // What was found is told with how it ended.
            watch::Event::Drifted { .. } => None,
            watch::Event::Recovered { finding } => Some(Self::good(
                "DriftRecovered",
                "Watch",
                format!("right again, and it was not us: {}", shown(finding)),
            )),
            watch::Event::Healed { finding, .. } => Some(Self::good(
                "DriftHealed",
                "Heal",
                format!("put back: {}", shown(finding)),
            )),
            watch::Event::HealFailed {
                finding,
                error,
                again_in,
            } => Some(Self::bad(
                "DriftHealFailed",
                "Heal",
                format!(
                    "cannot be put back, tried again in {} s: {}: {}",
                    again_in.as_secs_f32(),
                    shown(finding),
                    error.with_causes()
                ),
            )),
            watch::Event::Fought {
                finding,
                times,
                wait,
            } => Some(Self::bad(
                "DriftFought",
                "Watch",
                format!(
                    "{times} times in a row, left alone for {} s from now on: {}",
                    wait.as_secs_f32(),
                    shown(finding)
                ),
            )),
        }
    }

    /// The reason of its Event.
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

/// What is wrong where, in words.
pub(crate) fn shown(finding: &Finding) -> String {
    format!("{}: {}", finding.resource, finding.why)
}

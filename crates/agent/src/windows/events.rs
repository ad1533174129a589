//! What people are told of a Windows node's life, as Events on its Node and in the log.

use evenkeel_host::watch;
use evenkeel_plan::phase::Phase;

use crate::node_event::{NodeEvent, shown};

impl NodeEvent {
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
}

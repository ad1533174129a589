//! The Events on a Windows node's Node, which are also lines of the log.

use evenkeel_host::watch;
use evenkeel_plan::machine::phase::Phase;

use crate::node_event::{NodeEvent, shown};

impl NodeEvent {
    /// The node has come to `phase`.
    pub(crate) fn of(phase: &Phase) -> Option<Self> {
        match phase {
            Phase::Reboot => Some(Self::normal(
                "Rebooting",
                "Reboot",
                "rebooting, because environment variables have changed".to_owned(),
            )),
            phase => Self::of_phase(phase, ("ServicesDone", "ServicesApplying"), "services"),
        }
    }

    /// What became of something that drifted, if there is an Event for it.
    pub(crate) fn drift(event: &watch::Event) -> Option<Self> {
        match event {
            // What was found is in the Event of how it ended.
            watch::Event::Drifted { .. } => None,
            watch::Event::Recovered { finding } => Some(Self::normal(
                "DriftRecovered",
                "Watch",
                format!(
                    "drift is gone, and the agent did not heal it: {}",
                    shown(finding)
                ),
            )),
            watch::Event::Healed { finding, .. } => Some(Self::normal(
                "DriftHealed",
                "Heal",
                format!("healed drift of {}", shown(finding)),
            )),
            watch::Event::HealFailed {
                finding,
                error,
                again_in,
            } => Some(Self::warning(
                "DriftHealFailed",
                "Heal",
                format!(
                    "cannot heal drift of {}: {}; retrying in {} s",
                    shown(finding),
                    error.with_causes(),
                    again_in.as_secs_f32()
                ),
            )),
            watch::Event::Fought {
                finding,
                times,
                wait,
            } => Some(Self::warning(
                "DriftFought",
                "Watch",
                format!(
                    "drift came back {times} times in a row, and is left alone for {} s: {}",
                    wait.as_secs_f32(),
                    shown(finding)
                ),
            )),
        }
    }
}

//! What a Node says of its agent, on either system: one word, and why.

use std::collections::BTreeMap;

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::annotation;

use crate::machine::phase::Phase;

/// Longer reasons are cut: an annotation is for the first look.
const LONGEST_REASON: usize = 1024;

/// The state of a node in `phase`; none if it is nobody's.
pub fn of(phase: &Phase) -> Option<NodeState> {
    Some(match phase {
        Phase::Unmanaged => return None,
        Phase::Done { .. } => NodeState::Done,
        Phase::Degraded(_) => NodeState::Degraded,
        Phase::Heal { .. } | Phase::AwaitDrain { .. } | Phase::Apply { .. } | Phase::Reboot => {
            NodeState::Working
        }
    })
}

/// Why a node is in the state of its phase, for people. `current` is what it was brought to.
pub(crate) fn why(phase: &Phase, current: Option<&str>) -> String {
    cut(match phase {
        Phase::Unmanaged | Phase::Done { .. } => String::new(),
        Phase::Degraded(reason) => reason.text.clone(),
        Phase::Heal { target } => format!("repairing drift before the update to {target}"),
        Phase::AwaitDrain { target, changes } => {
            format!("waiting for the drain before the update to {target}: {changes}")
        }
        Phase::Apply { target, changes } => format!("updating to {target}: {changes}"),
        Phase::Reboot => format!(
            "{} is written; the machine reboots",
            current.unwrap_or("the configuration")
        ),
    })
}

/// Whether a Node may go on saying `said` while its agent would say `why`: that its pods take long to leave is
/// the operator's word, and says more than that they are waited for.
pub(crate) fn may_stay(
    annotations: &BTreeMap<String, String>,
    why: &str,
    waits_for_pods: bool,
) -> bool {
    let said = annotations.get(annotation::REASON);
    let is_overdue = said.is_some() && said == annotations.get(annotation::DRAIN_OVERDUE);
    said.map_or("", String::as_str) == why || (waits_for_pods && is_overdue)
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST_REASON {
        let end = (0..=LONGEST_REASON)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}

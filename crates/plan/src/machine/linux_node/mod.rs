//! What a Linux Node says about itself in a phase: the agent's annotations, and nothing that is there
//! already. What comes next is decided in `phase`.

use std::collections::BTreeMap;

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_api::names::annotation;

use crate::machine::phase::{AgentSnapshot, Drain, Phase, Reason};
use crate::machine::state;

/// The longest name that the API takes.
const LONGEST_NAME: usize = 253;

/// What the agent's annotations shall say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The configuration that the machine runs; `None` leaves the annotation alone.
    pub current: Option<String>,
    /// The state.
    pub state: NodeState,
    /// Why, for people.
    pub reason: String,
    /// What is asked of the operator; `None` leaves the annotation alone.
    pub drain: Option<String>,
}

impl Report {
    /// What is to be said in `phase`; nothing about a node that is nobody's.
    pub fn of(phase: &Phase, snapshot: &AgentSnapshot<'_>) -> Option<Self> {
        let state = state::of(phase)?;
        let reason = state::why(phase, snapshot.current);
        let drain = match phase {
            Phase::AwaitDrain { target, .. } => Some(Drain::request(target)),
            Phase::Done { config } => snapshot.drain.held_for().map(|_| Drain::release(config)),
            Phase::Degraded(_) if snapshot.returns_permit() => {
                snapshot.drain.held_for().map(Drain::release)
            }
            _ => None,
        };
        let current = snapshot.current.filter(|_| !snapshot.awaits_boot);
        Some(Self {
            current: current.map(str::to_owned),
            state,
            reason,
            drain,
        })
    }

    /// The annotations that do not say so yet: one patch, or none.
    pub fn changes(&self, annotations: &BTreeMap<String, String>) -> BTreeMap<&'static str, &str> {
        let wanted = [
            (annotation::CURRENT_CONFIG, self.current.as_deref()),
            (annotation::STATE, Some(self.state.as_str())),
            (annotation::REASON, Some(self.reason.as_str())),
            (annotation::DESIRED_DRAIN, self.drain.as_deref()),
        ];
        let asks = self.drain.as_deref().is_some_and(Drain::is_request);
        wanted
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .filter(|(name, value)| {
                if *name == annotation::REASON {
                    !state::may_stay(annotations, value, asks)
                } else {
                    annotations.get(*name).map_or("", String::as_str) != *value
                }
            })
            .collect()
    }
}

impl Reason {
    /// The named configuration is not in the cluster.
    pub fn missing(name: &str) -> Self {
        Self::new(
            "ConfigMissing",
            format!(
                "MachineConfig {name} does not exist: create it, or set desiredConfig to one that does; the node keeps its configuration"
            ),
        )
    }

    /// What `desiredConfig` says can be no object's name; `None` if it can.
    pub fn misnamed(name: &str) -> Option<Self> {
        let plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
        let is_part = |part: &str| {
            part.starts_with(plain)
                && part.ends_with(plain)
                && part.chars().all(|letter| plain(letter) || letter == '-')
        };
        let is_name = name.len() <= LONGEST_NAME && name.split('.').all(is_part);
        (!is_name).then(|| {
            Self::new(
                "ConfigMisnamed",
                format!(
                    "desiredConfig is {name:?}, which is not a valid object name: write the name of a rendered MachineConfig"
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests;

//! What a Linux Node says about itself in a phase: the agent's annotations, and nothing that is there
//! already. What comes next is decided in `phase`.

use std::collections::BTreeMap;

use evenkeel_api::names::annotation;

use crate::phase::{Drain, Phase, Reason, Sight};

/// Longer reasons are cut: an annotation is for the first look.
const LONGEST_REASON: usize = 1024;
/// The longest name that the API takes.
const LONGEST_NAME: usize = 253;

/// The three states of seed 003.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The node is as it shall be.
    Done,
    /// It is on its way.
    Working,
    /// It cannot go on.
    Degraded,
}

impl State {
    /// The annotation's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Working => "Working",
            Self::Degraded => "Degraded",
        }
    }
}

/// What the agent's annotations shall say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The configuration that the machine runs; `None` leaves the annotation alone.
    pub current: Option<String>,
    /// The state.
    pub state: State,
    /// Why, for people.
    pub reason: String,
    /// What is asked of the operator; `None` leaves the annotation alone.
    pub drain: Option<String>,
}

impl Report {
    /// What is to be said in `phase`; nothing about a node that is nobody's.
    pub fn of(phase: &Phase, sight: &Sight<'_>) -> Option<Self> {
        let (state, reason) = match phase {
            Phase::Unmanaged => return None,
            Phase::Done { .. } => (State::Done, String::new()),
            Phase::Degraded(reason) => (State::Degraded, reason.text.clone()),
            Phase::Heal { target } => (
                State::Working,
                format!("putting back what drifted, before going to {target}"),
            ),
            Phase::AwaitDrain { target, changes } => (
                State::Working,
                format!("waiting until pods have left, to go to {target}: {changes}"),
            ),
            Phase::Apply { target, changes } => {
                (State::Working, format!("going to {target}: {changes}"))
            }
            Phase::Reboot => (
                State::Working,
                format!(
                    "{} is written and the machine boots",
                    sight.current.unwrap_or("the configuration")
                ),
            ),
        };
        let drain = match phase {
            Phase::AwaitDrain { target, .. } => Some(Drain::request(target)),
            Phase::Done { config } => sight.drain.held_for().map(|_| Drain::release(config)),
            Phase::Degraded(_) if sight.gives_up_its_leave() => {
                sight.drain.held_for().map(Drain::release)
            }
            _ => None,
        };
        let current = sight.current.filter(|_| !sight.awaits_boot);
        Some(Self {
            current: current.map(str::to_owned),
            state,
            reason: cut(reason),
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
        wanted
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .filter(|(name, value)| annotations.get(*name).map_or("", String::as_str) != *value)
            .collect()
    }
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

impl Reason {
    /// The named configuration is not in the cluster.
    pub fn missing(name: &str) -> Self {
        Self::new(
            "ConfigMissing",
            format!(
                "MachineConfig {name} does not exist: create it, or let desiredConfig name one that does; \
                 this node keeps what it has"
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
                    "desiredConfig is {name:?}, which can be no object's name: \
                     write the name of a rendered MachineConfig"
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests;

//! How much a change disturbs the machine it is made on, and what must happen around it.

mod registries;
pub mod rules;

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a change needs around it, from the least to the greatest.
///
/// The order is the meaning: a plan disrupts as much as the greatest of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Disruption {
    /// Written, and nothing else happens.
    #[default]
    None,
    /// A service is told to read its configuration again.
    Reload,
    /// A service is stopped and started.
    Restart,
    /// Pods leave the node first.
    Drain,
    /// Pods leave the node, and the machine boots anew.
    Reboot,
}

impl Disruption {
    /// All of them, from the least to the greatest.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Reload,
        Self::Restart,
        Self::Drain,
        Self::Reboot,
    ];

    /// The word that people and programs read, in every output of ours.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Reload => "reload",
            Self::Restart => "restart",
            Self::Drain => "drain",
            Self::Reboot => "reboot",
        }
    }
}

impl fmt::Display for Disruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something that happens around the writes. The order is the order in which it happens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnitAction {
    /// Before the writes: pods leave the node.
    Drain,
    /// After them: systemd reads its units again.
    #[serde(rename = "daemon-reload")]
    DaemonReload,
    /// After them: a unit reads its configuration again.
    Reload(String),
    /// After them: a unit is stopped and started.
    Restart(String),
    /// After them: the machine boots anew.
    Reboot,
}

impl UnitAction {
    /// How much this disturbs.
    pub const fn disruption(&self) -> Disruption {
        match self {
            Self::Drain => Disruption::Drain,
            Self::DaemonReload | Self::Reload(_) => Disruption::Reload,
            Self::Restart(_) => Disruption::Restart,
            Self::Reboot => Disruption::Reboot,
        }
    }
}

impl fmt::Display for UnitAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain => f.write_str("drain"),
            Self::DaemonReload => f.write_str("daemon-reload"),
            Self::Reload(unit) => write!(f, "reload {unit}"),
            Self::Restart(unit) => write!(f, "restart {unit}"),
            Self::Reboot => f.write_str("reboot"),
        }
    }
}

/// Several changes together: each action once, in order; a reboot makes reloads and restarts
/// needless, a restart of a unit makes its reload needless.
pub(crate) fn together(actions: impl IntoIterator<Item = UnitAction>) -> Vec<UnitAction> {
    let all: std::collections::BTreeSet<_> = actions.into_iter().collect();
    let needless = |action: &UnitAction| match action {
        UnitAction::Reload(unit) => {
            all.contains(&UnitAction::Reboot) || all.contains(&UnitAction::Restart(unit.clone()))
        }
        UnitAction::DaemonReload | UnitAction::Restart(_) => all.contains(&UnitAction::Reboot),
        UnitAction::Drain | UnitAction::Reboot => false,
    };
    all.iter()
        .filter(|action| !needless(action))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Disruption::{Drain, None, Reboot, Reload, Restart};
    use super::{UnitAction, together};

    #[test]
    fn actions_happen_once_in_order_and_a_reboot_spares_the_rest() {
        let reload = |unit: &str| UnitAction::Reload(unit.to_owned());
        let restart = |unit: &str| UnitAction::Restart(unit.to_owned());
        for (given, expected) in [
            (vec![], vec![]),
            (
                vec![reload("b"), UnitAction::Drain, reload("b")],
                vec![UnitAction::Drain, reload("b")],
            ),
            (
                vec![
                    reload("a"),
                    UnitAction::Reboot,
                    restart("b"),
                    UnitAction::Drain,
                ],
                vec![UnitAction::Drain, UnitAction::Reboot],
            ),
            (
                vec![reload("a"), restart("a"), reload("b")],
                vec![reload("b"), restart("a")],
            ),
        ] {
            assert_eq!(together(given), expected);
        }
    }

    #[test]
    fn disruptions_are_ordered_from_nothing_to_a_reboot() {
        assert!(None < Reload && Reload < Restart && Restart < Drain && Drain < Reboot);
        assert_eq!([Reload, Reboot, None].into_iter().max(), Some(Reboot));
    }
}

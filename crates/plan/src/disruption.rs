//! How much a change disturbs the machine it is made on.

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

impl std::fmt::Display for Disruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Disruption::{Drain, None, Reboot, Reload, Restart};

    #[test]
    fn disruptions_are_ordered_from_nothing_to_a_reboot() {
        assert!(None < Reload && Reload < Restart && Restart < Drain && Drain < Reboot);
        assert_eq!([Reload, Reboot, None].into_iter().max(), Some(Reboot));
    }
}

//! Whether a node is told by us what to run. OpenShift's machine-config operator tells its nodes with the
//! same annotation; ours writes a second one with it, the voucher. Whoever obeys or answers a node asks here.

/// What `desiredConfig` of a Node says, and whose word that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesiredConfig<'a> {
    /// Nobody says anything.
    Unset,
    /// Our operator says this.
    Vouched(&'a str),
    /// Somebody else says this: it is not ours to obey.
    Foreign(&'a str),
}

impl<'a> DesiredConfig<'a> {
    /// What the two annotations say together.
    pub fn of(desired: Option<&'a str>, voucher: Option<&'a str>) -> Self {
        match desired.filter(|name| !name.is_empty()) {
            None => Self::Unset,
            Some(name) if voucher == Some(name) => Self::Vouched(name),
            Some(name) => Self::Foreign(name),
        }
    }

    /// The configuration to obey, if there is one.
    pub fn vouched(self) -> Option<&'a str> {
        match self {
            Self::Vouched(name) => Some(name),
            Self::Unset | Self::Foreign(_) => None,
        }
    }

    /// For people: why nothing is done for a node that is told this; nothing if it is our word.
    pub fn refusal(self) -> Option<String> {
        match self {
            Self::Unset | Self::Vouched(_) => None,
            Self::Foreign(name) => Some(format!(
                "desiredConfig {name} is foreign: no annotation {} vouches for it, so Evenkeel changes nothing on this node",
                evenkeel_api::names::annotation::VOUCHER
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers O01.
    #[test]
    fn only_a_voucher_of_the_same_name_makes_a_desired_config_ours() {
        for (desired, voucher, expected) in [
            (None, None, DesiredConfig::Unset),
            (None, Some("a"), DesiredConfig::Unset),
            (Some(""), Some(""), DesiredConfig::Unset),
            (Some("a"), None, DesiredConfig::Foreign("a")),
            (Some("a"), Some(""), DesiredConfig::Foreign("a")),
            (Some("a"), Some("b"), DesiredConfig::Foreign("a")),
            (Some("a"), Some("a"), DesiredConfig::Vouched("a")),
        ] {
            assert_eq!(DesiredConfig::of(desired, voucher), expected);
        }
        let said = DesiredConfig::Foreign("rendered-worker-1").refusal();
        assert_eq!(
            said.as_deref(),
            Some(
                "desiredConfig rendered-worker-1 is foreign: no annotation evenkeel.dev/desired-config vouches for it, so Evenkeel changes nothing on this node"
            )
        );
    }
}

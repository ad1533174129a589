//! Whether a version may follow another at all: the cluster must be young enough for it, no major version is skipped,
//! and what is no version follows nothing.

use std::fmt;

use evenkeel_api::windows::version::{StatedVersion, Version};

use crate::windows::windows_pool::trouble::PoolFailure;

/// The oldest Kubernetes that nodes are upgraded on.
pub const MINIMUM: Kubernetes = Kubernetes {
    major: 1,
    minor: 33,
};

/// A release of Kubernetes, as far as it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kubernetes {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
}

impl Kubernetes {
    /// Reads `v1.34.2`, `1.34` or `v1.34.2+abc`.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
        let major = parts.next()?.parse().ok()?;
        let minor: String = parts
            .next()?
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let minor = minor.parse().ok()?;
        Some(Self { major, minor })
    }
}

impl fmt::Display for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why no node is upgraded on a cluster whose API server says that it is `running`, if it must be `minimum`.
pub fn of_cluster(running: &str, minimum: Kubernetes) -> Option<PoolFailure> {
    let note = match Kubernetes::read(running) {
        Some(running) if running >= minimum => return None,
        Some(running) => format!(
            "the cluster runs Kubernetes {running}, but this version needs {minimum} or newer: Windows nodes keep their version. Upgrade the cluster first"
        ),
        None => format!(
            "the cluster's version {running:?} cannot be compared with {minimum}: Windows nodes keep their version"
        ),
    };
    Some(PoolFailure {
        category: OLD_KUBERNETES,
        note,
    })
}

/// The word for a cluster that is too old.
pub const OLD_KUBERNETES: &str = "KubernetesTooOld";
/// The word for versions that may not follow one another.
pub const SKIPS_MAJOR: &str = "MajorVersionSkipped";

/// The word for a node that nobody can lay hands on.
pub const NOT_LISTED: &str = "NodeNotListed";

/// The word for a node of OpenShift's operator that the owner does not say to take over.
pub const NOT_TAKEN_OVER: &str = "NotTakenOver";

/// The word for a node of OpenShift's operator that lacks something, or whose machine does.
pub const TAKE_OVER_REFUSED: &str = "TakeOverRefused";

/// The words for nodes that stay at what they run, and that say nothing about the version that others go to.
pub const OF_THE_NODE: [&str; 3] = [NOT_LISTED, NOT_TAKEN_OVER, TAKE_OVER_REFUSED];

/// All words for nodes that stay at what they run.
pub const REFUSALS: [&str; 5] = [
    OLD_KUBERNETES,
    SKIPS_MAJOR,
    NOT_LISTED,
    NOT_TAKEN_OVER,
    TAKE_OVER_REFUSED,
];

/// Why a node that runs `from` does not go to `to`. What nobody can read is nobody's version: it goes to one of
/// ours.
pub fn between(from: &StatedVersion, to: &Version) -> Option<String> {
    let from = from.version().ok()?;
    (to.major > from.major.saturating_add(1)).then(|| {
        format!(
            "it runs {from}, but {to} would skip major version {}: install a version {}.x first",
            from.major.saturating_add(1),
            from.major.saturating_add(1)
        )
    })
}

/// The version of a node, for people.
pub fn shown(version: Option<&StatedVersion>) -> String {
    version.map_or_else(|| "no version".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_is_too_old_or_says_nothing_readable_upgrades_nobody() {
        for (running, is_open) in [
            ("v1.33.0", true),
            ("v1.37.2-eks-abc", true),
            ("1.40", true),
            ("v2.0.0", true),
            ("v1.33+", true),
            ("v1.32.9", false),
            ("v0.0.0-master", false),
            ("", false),
            ("latest", false),
        ] {
            let closed = of_cluster(running, MINIMUM);
            assert_eq!(closed.is_none(), is_open, "{running}: {closed:?}");
            if let Some(trouble) = closed {
                assert_eq!(trouble.category, OLD_KUBERNETES);
                assert!(trouble.note.contains("1.33"), "{}", trouble.note);
            }
        }
    }

    #[test]
    fn no_major_version_is_skipped_upwards() {
        for (from, to, is_open) in [
            ("1.0.0-aaaaaaa", "1.9.0-bbbbbbb", true),
            ("1.0.0-aaaaaaa", "2.0.0-bbbbbbb", true),
            ("1.9.0-aaaaaaa", "3.0.0-bbbbbbb", false),
            // After an uninstall an older one converges.
            ("5.0.0-aaaaaaa", "1.0.0-bbbbbbb", true),
            ("rubbish", "3.0.0-bbbbbbb", true),
        ] {
            let why = between(&from.to_owned().into(), &to.parse().unwrap());
            assert_eq!(why.is_none(), is_open, "{from} {to}: {why:?}");
            if let Some(why) = why {
                assert!(why.contains("install a version 2.x first"), "{why}");
            }
        }
    }
}

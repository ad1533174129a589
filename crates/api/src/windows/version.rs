//! The version of a Windows payload, `1.2.3-abc1234`, and the name of its services `ConfigMap`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names::object::SERVICES_PREFIX;

/// A release and the commit that it was built from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    /// Changes on incompatible changes.
    pub major: u32,
    /// Changes on additions.
    pub minor: u32,
    /// Changes on repairs.
    pub patch: u32,
    commit: String,
}

/// A version as somebody wrote it on an object. What is no version is kept as it is: it is still something that stands there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum StatedVersion {
    /// A version.
    Version(Version),
    /// Something else, or nothing.
    Other(Box<str>),
}

impl StatedVersion {
    /// The version, if it is one.
    pub fn version(&self) -> Result<&Version, NotAVersion> {
        match self {
            Self::Version(version) => Ok(version),
            Self::Other(text) => Err(NotAVersion(text.to_string())),
        }
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for StatedVersion {
    fn default() -> Self {
        Self::Other(Box::default())
    }
}

impl From<String> for StatedVersion {
    fn from(text: String) -> Self {
        text.parse()
            .map_or_else(|_| Self::Other(text.into()), Self::Version)
    }
}

impl From<StatedVersion> for String {
    fn from(stated: StatedVersion) -> Self {
        stated.to_string()
    }
}

impl From<Version> for StatedVersion {
    fn from(version: Version) -> Self {
        Self::Version(version)
    }
}

impl PartialEq<Version> for StatedVersion {
    fn eq(&self, other: &Version) -> bool {
        matches!(self, Self::Version(it) if it == other)
    }
}

impl fmt::Display for StatedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => version.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// A text that is no version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAVersion(String);

impl Version {
    /// The commit: 7 to 40 lower-case hex digits.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// The name of its services `ConfigMap`: `services-1-2-3-abc1234`.
    pub fn config_map_name(&self) -> String {
        let Self {
            major,
            minor,
            patch,
            commit,
        } = self;
        format!("{SERVICES_PREFIX}{major}-{minor}-{patch}-{commit}")
    }

    /// The version that a services `ConfigMap` of this name is for.
    pub fn from_config_map_name(name: &str) -> Result<Self, NotAVersion> {
        let refused = || NotAVersion(name.to_owned());
        let rest = name.strip_prefix(SERVICES_PREFIX).ok_or_else(refused)?;
        Self::from_parts(rest.split('-').collect::<Vec<_>>().as_slice()).ok_or_else(refused)
    }

    /// Which release is newer. Two commits of one release are neither.
    pub fn compare_release(&self, other: &Self) -> Ordering {
        let release = |version: &Self| (version.major, version.minor, version.patch);
        release(self).cmp(&release(other))
    }

    fn from_parts(parts: &[&str]) -> Option<Self> {
        let [major, minor, patch, commit] = parts else {
            return None;
        };
        Some(Self {
            major: number(major)?,
            minor: number(minor)?,
            patch: number(patch)?,
            commit: Some(*commit).filter(|text| is_commit(text))?.to_owned(),
        })
    }
}

/// A number as it is written back: no sign, no leading zero.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn is_commit(text: &str) -> bool {
    (7..=40).contains(&text.len())
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('-').and_then(|(release, commit)| {
            let mut parts: Vec<_> = release.split('.').collect();
            parts.push(commit);
            Self::from_parts(&parts)
        });
        parts.ok_or_else(|| NotAVersion(text.to_owned()))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
            commit,
        } = self;
        write!(f, "{major}.{minor}.{patch}-{commit}")
    }
}

impl NotAVersion {
    /// The word for it in Events, metrics and logs.
    pub fn category(&self) -> &'static str {
        "InvalidVersion"
    }
}

impl fmt::Display for NotAVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            f,
            "{text:?} is not a version: write 1.2.3-abc1234 (the commit has 7 to 40 lower-case hex digits), \
             in the name of a ConfigMap services-1-2-3-abc1234"
        )
    }
}

impl std::error::Error for NotAVersion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_and_its_config_map_name_lead_to_each_other() {
        let version: Version = "10.2.3-abc1234".parse().unwrap();
        assert_eq!(version.to_string(), "10.2.3-abc1234");
        assert_eq!(version.commit(), "abc1234");
        assert_eq!(version.config_map_name(), "services-10-2-3-abc1234");
        assert_eq!(
            Version::from_config_map_name("services-10-2-3-abc1234"),
            Ok(version)
        );
    }

    #[test]
    fn what_is_no_version_is_refused() {
        let forty_one = format!("1.2.3-{}", "a".repeat(41));
        for text in [
            "",
            "1.2.3",
            "1.2-abc1234",
            "1.2.3.4-abc1234",
            "1.2.3-abc123",
            "1.2.3-ABC1234",
            "1.2.3-abcdefg",
            "01.2.3-abc1234",
            "+1.2.3-abc1234",
            "v1.2.3-abc1234",
            "1.2.3-abc1234 ",
            forty_one.as_str(),
        ] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
        for name in ["1-2-3-abc1234", "services-1-2-3", "services-1.2.3-abc1234"] {
            assert!(Version::from_config_map_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn releases_are_ordered_by_number_and_not_by_commit() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        let older = version("1.9.0-fffffff");
        let newer = version("1.10.0-0000000");
        assert_eq!(older.compare_release(&newer), Ordering::Less);
        assert_eq!(
            newer.compare_release(&version("1.10.0-abcdef0")),
            Ordering::Equal
        );
    }

    #[test]
    fn what_somebody_wrote_is_kept_and_is_a_version_only_if_it_is_one() {
        let own: Version = "1.2.3-abc1234".parse().unwrap();
        for (text, is_own) in [
            ("1.2.3-abc1234", true),
            ("1.2.4-abc1234", false),
            ("rubbish", false),
            ("", false),
        ] {
            let stated = StatedVersion::from(text.to_owned());
            assert_eq!(stated == own, is_own, "{text}");
            assert_eq!(stated.version().is_ok(), text.starts_with('1'), "{text}");
            assert_eq!(stated.is_empty(), text.is_empty());
            assert_eq!(String::from(stated), text);
        }
    }
}

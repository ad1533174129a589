//! What can stand at a path of a machine, small enough to keep in memory and in the journal:
//! contents are known by their hash, the bytes stay on disk.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_api::machine::machine_config::Owner;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// SHA-256 of some contents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// From a digest that was computed while reading.
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hash is 64 hexadecimal digits")]
pub struct NotAHash;

impl std::str::FromStr for Hash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(NotAHash);
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| NotAHash)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NotAHash)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Who owns a path, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ids {
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.user, self.group)
    }
}

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Entry {
    /// Nothing.
    Absent,
    /// A regular file.
    File {
        /// Of its contents.
        hash: Hash,
        /// Permission bits.
        mode: u32,
        /// Who owns it.
        owner: Ids,
    },
    /// A symbolic link.
    Link {
        /// Where it points, as written.
        target: String,
    },
    /// A directory. What is in it are paths of their own.
    Directory {
        /// Permission bits.
        mode: u32,
        /// Who owns it.
        owner: Ids,
    },
    /// A Windows service. Its place is its name.
    Service(ServiceEntry),
    /// An environment variable of a Windows machine. Its place is its name.
    Variable {
        /// What it is set to.
        value: String,
        /// Names of other variables in it, between percent signs, stand for their values.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        expands: bool,
    },
    /// The image of the operating system. There is one, and it has no path.
    Image {
        /// As a configuration names it; empty for none.
        reference: String,
    },
    /// The arguments of the kernel. There is one list, and it has no path.
    Arguments {
        /// All of them, those of the machine too.
        arguments: Vec<String>,
    },
    /// A device, a socket or a pipe: never ours.
    Other,
}

/// A Windows service as its manager keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ServiceEntry {
    /// What it runs.
    pub command: String,
    /// Services that must run before it.
    pub dependencies: Vec<String>,
    /// What in the command is found out on each machine, and how; empty on a machine, where it is
    /// found out already.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// When it starts.
    #[serde(default)]
    pub start: Start,
    /// What people read about it.
    #[serde(default)]
    pub description: String,
    /// Who it runs as.
    #[serde(default)]
    pub account: String,
    /// Whether it runs.
    #[serde(default)]
    pub activity: Activity,
}

/// When a service starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// With the machine.
    #[default]
    Automatic,
    /// When somebody asks for it.
    Manual,
    /// Never.
    Disabled,
    /// As a driver does; the manager's number for it.
    Driver(u32),
}

/// Whether a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// It does.
    #[default]
    Running,
    /// It was stopped, or never started.
    Stopped,
    /// It ended by itself, with this code where it is known.
    Ended(Option<u32>),
}

impl ServiceEntry {
    /// Whether a running service must start again to be as `desired`.
    pub fn needs_restart_for(&self, desired: &Self) -> bool {
        self.command != desired.command
            || self.variables != desired.variables
            || !self.account.eq_ignore_ascii_case(&desired.account)
    }

    fn differs_from(&self, desired: &Self) -> String {
        let differences = [
            (self.command != desired.command, "command differs"),
            (
                self.dependencies != desired.dependencies,
                "dependencies differ",
            ),
            (
                self.variables != desired.variables,
                "variables in the command differ",
            ),
            (self.start != desired.start, self.start.wrong()),
            (
                self.description != desired.description,
                "description differs",
            ),
            (self.account != desired.account, "account differs"),
        ];
        let words = differences
            .iter()
            .filter(|(differs, _)| *differs)
            .map(|(_, word)| (*word).to_owned());
        let activity = (self.activity != desired.activity).then(|| self.activity.to_string());
        words.chain(activity).collect::<Vec<_>>().join("; ")
    }
}

impl Start {
    const fn wrong(self) -> &'static str {
        match self {
            Self::Automatic => "starts automatically",
            Self::Manual => "starts only manually",
            Self::Disabled => "is disabled",
            Self::Driver(_) => "starts as a driver",
        }
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("runs"),
            Self::Stopped => f.write_str("is stopped"),
            Self::Ended(None) => f.write_str("ended by itself"),
            Self::Ended(Some(code)) => write!(f, "ended by itself with code {code}"),
        }
    }
}

impl Entry {
    /// Why `self`, which was seen, is not `desired`; `None` if it is.
    pub fn differs_from(&self, desired: &Self) -> Option<String> {
        let (seen_meta, desired_meta) = match (self, desired) {
            (seen, desired) if seen == desired => return None,
            (Self::Absent, _) => return Some("missing".to_owned()),
            (_, Self::Absent) => return Some("should not be there".to_owned()),
            (
                Self::File {
                    hash: seen,
                    mode: seen_mode,
                    owner: seen_owner,
                },
                Self::File { hash, mode, owner },
            ) => {
                let first = (seen != hash).then(|| "contents differ".to_owned());
                return Some(join(
                    first,
                    meta((*seen_mode, *seen_owner), (*mode, *owner)),
                ));
            }
            (Self::Link { target: seen }, Self::Link { target }) => {
                return Some(format!("points to {seen}, should point to {target}"));
            }
            (
                Self::Directory {
                    mode: seen_mode,
                    owner: seen_owner,
                },
                Self::Directory { mode, owner },
            ) => ((*seen_mode, *seen_owner), (*mode, *owner)),
            (Self::Service(seen), Self::Service(desired)) => {
                return Some(seen.differs_from(desired));
            }
            // Values may hold credentials of a proxy.
            (Self::Variable { .. }, Self::Variable { .. }) => {
                return Some("value differs".to_owned());
            }
            (seen, desired) => {
                return Some(format!("is {}, should be {}", seen.noun(), desired.noun()));
            }
        };
        Some(join(None, meta(seen_meta, desired_meta)))
    }

    /// What it is, with its article.
    pub const fn noun(&self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::File { .. } => "a file",
            Self::Link { .. } => "a symbolic link",
            Self::Directory { .. } => "a directory",
            Self::Service(_) => "a service",
            Self::Variable { .. } => "an environment variable",
            Self::Image { .. } => "an image",
            Self::Arguments { .. } => "kernel arguments",
            Self::Other => "a device, socket or pipe",
        }
    }

    /// The contents it has, if it is a file.
    pub const fn hash(&self) -> Option<Hash> {
        match self {
            Self::File { hash, .. } => Some(*hash),
            _ => None,
        }
    }
}

fn meta(seen: (u32, Ids), desired: (u32, Ids)) -> Vec<String> {
    let mode = (seen.0 != desired.0)
        .then(|| format!("mode is {:04o}, should be {:04o}", seen.0, desired.0));
    let owner =
        (seen.1 != desired.1).then(|| format!("owner is {}, should be {}", seen.1, desired.1));
    mode.into_iter().chain(owner).collect()
}

fn join(first: Option<String>, rest: Vec<String>) -> String {
    first.into_iter().chain(rest).collect::<Vec<_>>().join("; ")
}

/// The numbers behind the names that a configuration may use, as the machine knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Users by name.
    pub users: BTreeMap<String, u32>,
    /// Groups by name.
    pub groups: BTreeMap<String, u32>,
}

impl Names {
    /// The numbers of `user` and `group`, or a sentence that names the one that is unknown.
    pub fn ids(&self, user: &Owner, group: &Owner) -> Result<Ids, String> {
        let find = |owner: &Owner, known: &BTreeMap<String, u32>, what: &str| match owner {
            Owner::Id(id) => Ok(*id),
            Owner::Name(name) if name == "root" => Ok(0),
            Owner::Name(name) => known.get(name).copied().ok_or_else(|| {
                format!(
                    "{what} {name} does not exist on this machine: create it, or give its number"
                )
            }),
        };
        Ok(Ids {
            user: find(user, &self.users, "user")?,
            group: find(group, &self.groups, "group")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(contents: &str, mode: u32) -> Entry {
        Entry::File {
            hash: Hash::of(contents.as_bytes()),
            mode,
            owner: Ids::default(),
        }
    }

    #[test]
    fn a_difference_says_everything_that_differs() {
        let link = Entry::Link {
            target: "/dev/null".to_owned(),
        };
        for (seen, desired, why) in [
            (file("a", 0o644), file("a", 0o644), None),
            (Entry::Absent, file("a", 0o644), Some("missing")),
            (file("a", 0o644), Entry::Absent, Some("should not be there")),
            (
                file("a", 0o600),
                file("b", 0o644),
                Some("contents differ; mode is 0600, should be 0644"),
            ),
            (
                link.clone(),
                file("a", 0o644),
                Some("is a symbolic link, should be a file"),
            ),
            (
                link,
                Entry::Link { target: "x".into() },
                Some("points to /dev/null, should point to x"),
            ),
        ] {
            assert_eq!(
                seen.differs_from(&desired).as_deref(),
                why,
                "{seen:?} and {desired:?}"
            );
        }
    }

    #[test]
    fn a_hash_survives_being_written_and_read() {
        let hash = Hash::of(b"evenkeel");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!("12".parse::<Hash>(), Err(NotAHash));
    }
}

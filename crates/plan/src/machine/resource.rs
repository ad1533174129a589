//! The things of a machine that a configuration can name, and what people call them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A resource's identity. Its `Display` is its name in plans, Events, logs and errors.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", content = "name", rename_all = "lowercase")]
pub enum Resource {
    /// A directory, by path.
    Directory(String),
    /// A file, by path.
    File(String),
    /// A systemd unit with its drop-ins, by name.
    Unit(String),
    /// The authorised SSH keys of a user.
    AuthorisedKeys(String),
    /// An environment variable of a Windows machine, by name.
    Variable(String),
    /// A Windows service, by name.
    Service(String),
    /// The kernel's arguments.
    KernelArguments,
    /// The operating system's image.
    OsImage,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "directory {path}"),
            Self::File(path) => write!(f, "file {path}"),
            Self::Unit(name) => write!(f, "unit {name}"),
            Self::AuthorisedKeys(user) => write!(f, "authorised keys {user}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Service(name) => write!(f, "service {name}"),
            Self::KernelArguments => f.write_str("kernel arguments"),
            Self::OsImage => f.write_str("os image"),
        }
    }
}

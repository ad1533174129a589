//! Which program of ours this is, as logs, requests and metrics name it.

/// Which program this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its name, as in `evenkeel-agent`.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
}

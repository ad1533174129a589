//! The release that is installed: made for this machine, or the one that is given.

use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_testbed::Result;
use evenkeel_testbed::process::run;
use evenkeel_testbed::scratch::Scratch;

/// A release: the one in the folder that `EVENKEEL_RELEASE` names, or one for this machine's architecture, quickly built.
pub(crate) enum Release {
    Given(PathBuf),
    Made(Scratch),
}

impl Release {
    pub(crate) fn make() -> Result<Self> {
        if let Some(folder) = std::env::var_os("EVENKEEL_RELEASE") {
            return Ok(Self::Given(folder.into()));
        }
        Self::build()
    }

    pub(crate) fn build() -> Result<Self> {
        let scratch = Scratch::new("release")?;
        let made = run(Command::new(env!("CARGO_BIN_EXE_evenkeel-xtask"))
            .args(["release", "--profile", "dev", "--allow-changes"])
            .args(["--target", "x86_64-unknown-linux-musl", "--out"])
            .arg(scratch.path()))?;
        println!("{made}");
        Ok(Self::Made(scratch))
    }

    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::Given(folder) => folder,
            Self::Made(scratch) => scratch.path(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// The chart that Helm installs.
    pub(crate) fn chart(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let path = self.path(&format!("chart/evenkeel-{version}.tgz"));
        path.display().to_string()
    }

    pub(crate) fn images(&self) -> Vec<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        ["operator", "agent"]
            .map(|it| self.path(&format!("images/evenkeel-{it}-{version}.oci.tar")))
            .into()
    }
}

//! The machine that a command works on: this one, or a directory tree.

pub(crate) mod adopt;
pub(crate) mod apply;
pub(crate) mod demo;
pub(crate) mod markdown;
pub(crate) mod plan;
pub(crate) mod render;
pub(crate) mod verify;
pub(crate) mod watch;

use std::path::PathBuf;

use anyhow::Result;
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_api::names::linux::OWN_STATE;
use evenkeel_host::execute::State;
use evenkeel_host::linux::LinuxHost;
use evenkeel_host::{Error, observe};
use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::{MachineSnapshot, Plan};

use crate::arguments::RootArguments;

/// A host with where its state is.
pub(crate) struct Machine {
    pub(crate) host: LinuxHost,
    pub(crate) state: State,
}

/// What is wanted, and its bytes.
pub(crate) struct Wanted {
    pub(crate) desired: Desired,
    pub(crate) contents: Contents,
}

impl Wanted {
    /// The configuration that `files` hold.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self> {
        crate::input::machine_config(files).map(Self::of)
    }

    /// One that was read already.
    pub(crate) fn of(config: MachineConfig) -> Self {
        let (desired, contents) = Desired::of(config);
        Self { desired, contents }
    }
}

/// What would be done, and what was seen, with the bytes of what differs.
pub(crate) struct Compared {
    pub(crate) plan: Plan,
    pub(crate) seen: MachineSnapshot,
}

impl Machine {
    pub(crate) fn at(tree: &RootArguments) -> Result<Self> {
        let host = match &tree.root {
            None => LinuxHost::live(),
            Some(root) => LinuxHost::offline(root),
        };
        Ok(Self {
            host: host.map_err(explain)?,
            state: State::at(OWN_STATE),
        })
    }

    /// What would bring this machine to what is wanted. Reads only.
    pub(crate) fn compare(&self, wanted: &Wanted) -> Result<Compared> {
        let compared = observe::compare(&self.host, &self.state, &wanted.desired, &wanted.contents);
        let (plan, seen) = compared.map_err(explain)?;
        Ok(Compared { plan, seen })
    }

    /// Whether a run was interrupted.
    pub(crate) fn is_unfinished(&self) -> Result<bool> {
        let unfinished = self.state.unfinished(&self.host).map_err(explain)?;
        Ok(unfinished.is_some())
    }

    /// Tells people of a run that was interrupted.
    pub(crate) fn warn_if_unfinished(&self) -> Result<()> {
        if self.is_unfinished()? {
            crate::output::warn([
                "an earlier apply was interrupted; the next `evenkeel apply` finishes or undoes it first",
            ]);
        }
        Ok(())
    }
}

/// Adds the cure where the operating system only says no.
pub(crate) fn explain(error: Error) -> anyhow::Error {
    let denied = matches!(&error, Error::Path { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied);
    if denied {
        return anyhow::Error::new(error)
            .context("this command needs root: run it with sudo, or give a directory tree of your own with --root");
    }
    anyhow::Error::new(error)
}

//! The machine that a command works on: this one, or a tree.

use anyhow::Result;
use evenkeel_api::machine_config::MachineConfig;
use evenkeel_api::names::linux::OWN_STATE;
use evenkeel_host::execute::State;
use evenkeel_host::linux::LinuxHost;
use evenkeel_host::{Error, observe};
use evenkeel_plan::desired::{Contents, Desired};
use evenkeel_plan::machine::{Plan, Seen};

use crate::arguments::Place;

/// A host with where its state is.
pub(crate) struct Machine {
    pub(crate) host: LinuxHost,
    pub(crate) state: State,
}

/// A configuration set against what a machine looks like.
pub(crate) struct Compared {
    pub(crate) plan: Plan,
    /// The bytes of the configuration.
    pub(crate) contents: Contents,
    /// What was seen, with the bytes of what differs.
    pub(crate) seen: Seen,
}

impl Machine {
    pub(crate) fn at(place: &Place) -> Result<Self> {
        let host = match &place.root {
            None => LinuxHost::live(),
            Some(root) => LinuxHost::offline(root),
        };
        Ok(Self {
            host: host.map_err(explain)?,
            state: State::at(OWN_STATE),
        })
    }

    /// What would bring this machine to `config`. Reads only.
    pub(crate) fn compare(&self, config: MachineConfig) -> Result<Compared> {
        let (desired, contents) = Desired::of(config);
        let (plan, seen) =
            observe::plan(&self.host, &self.state, &desired, &contents).map_err(explain)?;
        Ok(Compared {
            plan,
            contents,
            seen,
        })
    }

    /// Tells people of a run that was interrupted.
    pub(crate) fn warn_if_unfinished(&self) -> Result<()> {
        let unfinished = self.state.unfinished(&self.host).map_err(explain)?;
        if unfinished.is_some() {
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
            .context("this needs root: run it with sudo, or give --root a tree of your own");
    }
    anyhow::Error::new(error)
}

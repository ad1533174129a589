//! The machine, as the worker uses it: every method may wait for a disk or for the service manager, and is called
//! from a thread that may. What only one system has is in its own `machine.rs`.

use evenkeel_host::disk::Host;
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::verify::{self, Finding};
use evenkeel_host::{Error, Result};
use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::journal::Direction;
use evenkeel_plan::machine::phase::Reason;
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::Targets;

/// A machine with where our state is.
#[derive(Debug)]
pub(crate) struct Machine<H> {
    pub(crate) host: H,
    pub(crate) state: State,
}

/// What a machine is at.
#[derive(Debug)]
pub(crate) struct Standing {
    /// What it was brought to, once all of it is there.
    pub(crate) config: Option<String>,
    pub(crate) awaits_boot: bool,
    /// The boot that it waited for has happened, and nobody had taken note of it yet.
    pub(crate) has_booted: bool,
    /// That boot brought another image, whose own files took the place of those that were as the image before had them.
    #[cfg_attr(windows, expect(dead_code, reason = "no image is staged there"))]
    pub(crate) has_new_image: bool,
    /// What must stand where for it to be so.
    pub(crate) targets: Targets,
    /// What is not so and cannot be put back while the machine runs.
    pub(crate) lasting: Vec<String>,
}

impl<H: Host> Machine<H> {
    /// Finishes or undoes what an earlier run left in the middle, takes note of a boot, and says
    /// where that leads.
    pub(crate) fn settle(&self) -> Result<Standing> {
        let claim = Claim::take(&self.host, &self.state)?;
        match claim.resumed() {
            Some(Direction::Forward) => {
                tracing::warn!("finished an update that was interrupted");
            }
            Some(Direction::Back) => {
                tracing::warn!("undid a failed update that was interrupted");
            }
            None => {}
        }
        let boot = self.host.boot_id()?;
        let before = claim.record()?;
        let has_booted = before.written_in.is_some() && !before.awaits_boot(&boot);
        let mut staged = before.staged.iter();
        let has_new_image = has_booted && staged.any(|it| it.resource == Resource::OsImage);
        claim.take_note_of_boot()?;
        let record = claim.record()?;
        claim.keep_payload(&record.targets())?;
        Ok(Standing {
            awaits_boot: record.awaits_boot(&boot),
            has_booted,
            has_new_image,
            targets: record.targets(),
            lasting: Vec::new(),
            config: record.config,
        })
    }

    /// What is not as `targets` say.
    pub(crate) fn drift(&self, targets: &Targets) -> Vec<Finding> {
        verify::verify(&self.host, targets, &Contents::default())
    }
}

/// What the machine said, for people.
pub(crate) fn reason(error: &Error) -> Reason {
    Reason::new(error.category(), error.with_causes())
}

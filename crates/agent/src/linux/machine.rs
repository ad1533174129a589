//! The machine, as the worker uses it: every method may wait for a disk or for systemd, and is called
//! from a thread that may.

use std::path::{Path, PathBuf};

use evenkeel_api::names::linux::{FORCE_FILE, OWN_STATE};
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, Progress, State};
use evenkeel_host::linux::LinuxHost;
use evenkeel_host::verify::Finding;
use evenkeel_host::{Result, observe, verify, watch};
use evenkeel_plan::desired::{Contents, Desired};
use evenkeel_plan::entry::Entry;
use evenkeel_plan::journal::Direction;
use evenkeel_plan::machine::Plan;
use evenkeel_plan::os::{self, Sight};
use evenkeel_plan::targets::Targets;

use super::update_history::UpdateHistory;

/// Beside the journal.
const LOGBOOK: &str = "logbook";

/// A machine with where our state is.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) host: LinuxHost,
    pub(crate) state: State,
    /// Where its root is, for this program.
    pub(crate) root: PathBuf,
}

/// What a machine is at.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) config: Option<String>,
    pub(crate) awaits_boot: bool,
    /// The boot that it waited for has happened, and nobody had taken note of it yet.
    pub(crate) has_booted: bool,
    /// What must stand where for it to be so.
    pub(crate) targets: Targets,
    /// What is not so and cannot be put back while the machine runs.
    pub(crate) lasting: Vec<String>,
}

/// A configuration to go to, and its bytes.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) desired: Desired,
    pub(crate) contents: Contents,
}

impl Machine {
    /// The machine whose root is at `root`.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let host = if root == Path::new("/") {
            LinuxHost::live()?
        } else {
            LinuxHost::mounted(root)?
        };
        Ok(Self {
            host,
            state: State::at(OWN_STATE),
            root: root.to_path_buf(),
        })
    }

    /// Finishes or undoes what an earlier run left in the middle, takes note of a boot, and says
    /// where that leads.
    pub(crate) fn settle(&self) -> Result<Standing> {
        let claim = Claim::take(&self.host, &self.state)?;
        match claim.resumed() {
            Some(Direction::Forward) => {
                tracing::warn!("an update was interrupted; it was finished");
            }
            Some(Direction::Back) => {
                tracing::warn!("an update had failed and was interrupted; it was undone");
            }
            None => {}
        }
        let boot = self.host.boot_id()?;
        let before = claim.record()?;
        let has_booted = before.written_in.is_some() && !before.awaits_boot(&boot);
        claim.take_note_of_boot()?;
        let record = claim.record()?;
        Ok(Standing {
            awaits_boot: record.awaits_boot(&boot),
            has_booted,
            targets: record.targets(),
            lasting: Vec::new(),
            config: record.config,
        })
    }

    /// What is not as the record says and cannot be put back while the machine runs: what it booted,
    /// and what systemd makes of its units.
    pub(crate) fn lasting(&self) -> Result<Vec<String>> {
        let record = self.state.record(&self.host)?;
        let mut lasting = Vec::new();
        if record.concerns_os() {
            let untold = |why: &str| vec![format!("what is booted cannot be told: {why}")];
            lasting = match self.host.os() {
                Ok(Sight::Deployments { booted, .. }) => os::differences(&record, &booted),
                Ok(Sight::Beyond(why)) => untold(&why),
                Err(error) => untold(&error.with_causes()),
            };
        }
        match self.host.unit_differences(&record.targets()) {
            Ok(differences) => lasting.extend(differences),
            Err(error) => lasting.push(error.with_causes()),
        }
        Ok(lasting)
    }

    /// Whether a person wants everything written again.
    pub(crate) fn is_forced(&self) -> Result<bool> {
        Ok(self.host.disk().look(FORCE_FILE)? != Entry::Absent)
    }

    /// What is not as `targets` say.
    pub(crate) fn drift(&self, targets: &Targets) -> Vec<Finding> {
        verify::verify(&self.host, targets, &Contents::default())
    }

    /// Puts the path of `finding` back.
    pub(crate) fn put_back(&self, finding: &Finding) -> Result<()> {
        watch::put_back(&self.host, &self.state, finding).map(|_| ())
    }

    /// What somebody changed, as lines; empty where that cannot be shown.
    pub(crate) fn difference(&self, finding: &Finding) -> String {
        verify::difference(&self.host, &self.state, finding)
            .iter()
            .fold(String::new(), |text, line| format!("{text}\n{line}"))
    }

    /// What would bring this machine to `config`.
    pub(crate) fn plan(&self, config: &Config, forced: bool) -> Result<Plan> {
        let (desired, contents) = (&config.desired, &config.contents);
        let plan = observe::plan(&self.host, &self.state, desired, contents)?;
        let plan = if forced { plan.forced() } else { plan };
        Ok(plan.carried_out_in(self.host.boot_id()?))
    }

    /// Carries `plan` out if it is still what leads to `config`; `false` if the machine has changed.
    /// Every step is told before it begins.
    pub(crate) fn apply(
        &self,
        plan: &Plan,
        config: &Config,
        forced: bool,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<bool> {
        let claim = Claim::take(&self.host, &self.state)?;
        if self.plan(config, forced)? != *plan {
            return Ok(false);
        }
        claim.apply(plan, &config.contents, &mut |now| progress(&now))?;
        Ok(true)
    }

    /// What was written down of earlier updates; a new page where that cannot be read.
    pub(crate) fn logbook(&self) -> UpdateHistory {
        match self.state.note(&self.host, LOGBOOK) {
            Ok(text) => UpdateHistory::read(&text.unwrap_or_default()),
            Err(error) => {
                tracing::warn!("{}", error.with_causes());
                UpdateHistory::default()
            }
        }
    }

    /// Writes it down. It is for people who look at numbers: what cannot be written is lost.
    pub(crate) fn keep(&self, logbook: &UpdateHistory) {
        let kept = self
            .state
            .keep_note(&self.host, LOGBOOK, logbook.text().as_bytes());
        if let Err(error) = kept {
            tracing::warn!("{}", error.with_causes());
        }
    }

    /// Boots the machine anew. What a force file asked for is written by now.
    pub(crate) fn reboot(&self) -> Result<()> {
        self.host.disk().remove(FORCE_FILE)?;
        let claim = Claim::take(&self.host, &self.state)?;
        self.host.reboot()?;
        claim.is_told_to_boot()
    }
}

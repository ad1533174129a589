//! What the worker asks of a Linux machine alone: what it booted, its units, the force file, the history of updates.

use std::path::Path;

use evenkeel_api::names::linux::{FORCE_FILE, OWN_STATE};
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, Progress, State};
use evenkeel_host::linux::LinuxHost;
use evenkeel_host::verify::Finding;
use evenkeel_host::{Result, observe, provision, verify, watch};
use evenkeel_plan::machine::Plan;
use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::entry::Entry;
use evenkeel_plan::machine::os::{self, OsSnapshot};
use evenkeel_plan::machine::provision::Provision;

use super::update_history::UpdateHistory;

/// The name of the note, next to the journal. It is older than the name of the type.
const UPDATE_HISTORY: &str = "logbook";

/// A Linux machine.
pub(crate) type Machine = crate::machine::Machine<LinuxHost>;

/// A configuration to go to, and its bytes.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) desired: Desired,
    pub(crate) contents: Contents,
}

impl Machine {
    /// The machine whose root is at `root`, on which images are staged even if another program drives its updates.
    pub(crate) fn open(root: &Path, bypass_driver: bool) -> Result<Self> {
        let host = if root == Path::new("/") {
            LinuxHost::live()?
        } else {
            LinuxHost::mounted(root)?
        };
        Ok(Self {
            host: host.bypassing_driver(bypass_driver),
            state: State::at(OWN_STATE),
        })
    }

    /// What is not as the record says and cannot be put back while the machine runs: what it booted,
    /// and what systemd makes of its units.
    pub(crate) fn lasting(&self) -> Result<Vec<String>> {
        let record = self.state.record(&self.host)?;
        let mut lasting = Vec::new();
        if record.concerns_os() {
            let unknown = |why: &str| vec![format!("cannot find out what is booted: {why}")];
            lasting = match self.host.os() {
                Ok(OsSnapshot::Deployments { booted, .. }) => os::differences(&record, &booted),
                Ok(OsSnapshot::Beyond(why)) => unknown(&why),
                Err(error) => unknown(&error.with_causes()),
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

    /// What the machine's own files say that it was provisioned from, while that counts: it has no configuration of
    /// ours yet, and nobody has said it otherwise.
    pub(crate) fn provision(&self) -> Result<Option<Provision>> {
        let is_new = self.state.record(&self.host)?.is_new();
        Ok(is_new.then(|| provision::found(self.host.disk())))
    }

    /// Remembers what the machine was provisioned from.
    pub(crate) fn adopt(&self, provision: &Provision) -> Result<()> {
        let claim = Claim::take(&self.host, &self.state)?;
        claim.adopt(provision).map(|_| ())
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

    /// The history of earlier updates; a new one where that cannot be read.
    pub(crate) fn history(&self) -> UpdateHistory {
        match self.state.note(&self.host, UPDATE_HISTORY) {
            Ok(text) => UpdateHistory::read(&text.unwrap_or_default()),
            Err(error) => {
                tracing::warn!("{}", error.with_causes());
                UpdateHistory::default()
            }
        }
    }

    /// Writes it down. It is for people who look at metrics: what cannot be written is lost.
    pub(crate) fn keep(&self, history: &UpdateHistory) {
        let kept = self
            .state
            .keep_note(&self.host, UPDATE_HISTORY, history.text().as_bytes());
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

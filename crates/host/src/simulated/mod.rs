//! A machine in memory: the same calls as a real one, and everything that can go wrong between two
//! of them.
//!
//! It is no kinder than a real machine, which the conformance suite checks by running on both. A
//! call can fail, the program can be killed after any change ([`SimulatedHost::stop_after`], then
//! [`SimulatedHost::reborn`]), and the power can be cut ([`SimulatedHost::cut`]).

mod accounts;
mod cut;
mod disk;
mod fault;
mod os;
mod services;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_plan::machine::entry::Entry;
use evenkeel_plan::machine::os::{Edits, OsSnapshot};
use evenkeel_plan::machine::record::BootId;
use evenkeel_plan::machine::ssh_keys::{Account, SshdSettings};

pub use accounts::SimulatedAccounts;
pub use cut::Chooser;
pub use disk::{SimulatedDisk, SimulatedLock};
pub use os::SimulatedOs;
pub use services::{ServiceCall, SimulatedServices};

use crate::Result;
use crate::disk::Host;
use fault::Faults;
use tree::{Inode, InodeTree};

/// A simulated machine. Small: thousands fit into one process.
#[derive(Debug)]
pub struct SimulatedHost {
    disk: SimulatedDisk,
    services: SimulatedServices,
    os: SimulatedOs,
    accounts: SimulatedAccounts,
    faults: Arc<Faults>,
}

impl Default for SimulatedHost {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulatedHost {
    /// A machine with an empty root, run by root.
    pub fn new() -> Self {
        let faults = Arc::new(Faults::default());
        Self {
            disk: SimulatedDisk::of(InodeTree::new(), Arc::clone(&faults)),
            services: SimulatedServices::with(Arc::clone(&faults)),
            os: SimulatedOs::with(Arc::clone(&faults)),
            accounts: SimulatedAccounts::with(Arc::clone(&faults)),
            faults,
        }
    }

    fn with(&self, tree: InodeTree) -> Self {
        let faults = Arc::new(Faults::default());
        Self {
            disk: SimulatedDisk::of(tree, Arc::clone(&faults)),
            services: self.services.again(Arc::clone(&faults)),
            os: self.os.again(Arc::clone(&faults)),
            accounts: self.accounts.again(Arc::clone(&faults)),
            faults,
        }
    }

    /// The same machine once more; from here on the two have nothing to do with each other.
    /// Nothing of it is claimed, and no fault is set.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        self.with(self.disk.tree().clone())
    }

    /// The machine after the program was killed: what was done is done, what was not durable still
    /// is not, and nobody holds a lock.
    #[must_use]
    pub fn reborn(&self) -> Self {
        self.snapshot()
    }

    /// The machine after a power cut. Of what was not durable, `choose` says what is left: it is
    /// given how many ways there are and returns one of them, counted from 0.
    #[must_use]
    pub fn cut(&self, choose: Chooser<'_>) -> Self {
        let after = self.with(cut::cut(&self.disk.tree(), choose));
        after.os.is_cut(choose);
        after
    }

    /// The machine after an orderly reboot: everything is durable, and what was staged runs.
    #[must_use]
    pub fn rebooted(&self) -> Self {
        self.settle();
        let after = self.snapshot();
        after.os.boots();
        after
    }

    /// Makes everything durable, as on a machine that has been running for a while.
    pub fn settle(&self) {
        let mut tree = self.disk.tree();
        for states in tree.named.values_mut() {
            states.drain(..states.len() - 1);
        }
        for id in tree.ids() {
            if let Some(Inode::File(file)) = tree.node_mut(id) {
                file.durable = true;
            }
            tree.settle(id);
        }
    }

    /// Lets one call fail: the one with this number, of all calls, counted from 0. Told again, it lets
    /// another one fail as well.
    pub fn fail_at(&self, call: usize) {
        self.faults.fail_at(call);
    }

    /// Kills the program after so many changes: what it calls then fails, and changes nothing. Only
    /// what changes something, or makes it durable, is counted: to be killed before a look is the
    /// same as to be killed before the change that follows it.
    pub fn stop_after(&self, changes: usize) {
        self.faults.stop_after(changes);
    }

    /// How many calls there were.
    pub fn calls(&self) -> usize {
        self.faults.calls()
    }

    /// How many of them changed something, or made it durable.
    pub fn changes(&self) -> usize {
        self.faults.changes()
    }

    /// Whether the program was killed.
    pub fn has_stopped(&self) -> bool {
        self.faults.has_stopped()
    }

    /// Its service manager.
    pub const fn services(&self) -> &SimulatedServices {
        &self.services
    }

    /// Its operating system.
    pub const fn operating_system(&self) -> &SimulatedOs {
        &self.os
    }

    /// Its users beyond those of its files, and its sshd.
    pub const fn accounts(&self) -> &SimulatedAccounts {
        &self.accounts
    }

    /// Everything that stands on it, by path.
    pub fn tree(&self) -> BTreeMap<String, Entry> {
        self.disk.tree().all()
    }
}

impl Host for SimulatedHost {
    type Disk = SimulatedDisk;

    fn disk(&self) -> &SimulatedDisk {
        &self.disk
    }

    fn account(&self, user: &str) -> Result<Option<Account>> {
        self.accounts.user(user)
    }

    fn group(&self, group: &str) -> Result<Option<u32>> {
        self.accounts.group(group)
    }

    fn sshd_settings(&self, _: &str) -> Result<Option<SshdSettings>> {
        self.accounts.sshd()
    }

    fn reload_units(&self) -> Result<()> {
        self.services.tell(ServiceCall::ReloadUnits)
    }

    fn reload(&self, unit: &str) -> Result<()> {
        self.services.tell(ServiceCall::Reload(unit.to_owned()))
    }

    fn restart(&self, unit: &str) -> Result<()> {
        self.services.tell(ServiceCall::Restart(unit.to_owned()))
    }

    fn boot_id(&self) -> Result<BootId> {
        Ok(self.os.boot_id())
    }

    fn os(&self) -> Result<OsSnapshot> {
        self.os.look()
    }

    fn stage_image(&self, image: &str) -> Result<()> {
        self.os.stage_image(image)
    }

    fn stage_arguments(&self, edits: &Edits) -> Result<()> {
        self.os.stage_arguments(edits)
    }

    fn unstage(&self) -> Result<()> {
        self.os.unstage()
    }
}

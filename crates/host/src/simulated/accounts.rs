//! A name service and an sshd that say what they were told to say.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_plan::machine::ssh_keys::{Account, SshdSettings};

use super::fault::Faults;
use crate::{Error, Result};

/// The users of a machine that no file of it knows, and its sshd. They can be combined with any disk.
#[derive(Debug, Default)]
pub struct SimulatedAccounts {
    faults: Arc<Faults>,
    inner: Mutex<AccountsState>,
}

#[derive(Debug, Clone, Default)]
struct AccountsState {
    users: Vec<Account>,
    groups: Vec<(String, u32)>,
    sshd: Option<SshdSettings>,
}

impl SimulatedAccounts {
    pub(super) fn with(faults: Arc<Faults>) -> Self {
        Self {
            faults,
            inner: Mutex::default(),
        }
    }

    /// The same users, in a program of its own.
    pub(super) fn again(&self, faults: Arc<Faults>) -> Self {
        Self {
            faults,
            inner: Mutex::new(self.inner().clone()),
        }
    }

    fn inner(&self) -> MutexGuard<'_, AccountsState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the name service knows this user.
    pub fn know_user(&self, account: Account) {
        self.inner().users.push(account);
    }

    /// From now on the name service knows this group.
    pub fn know_group(&self, name: &str, number: u32) {
        self.inner().groups.push((name.to_owned(), number));
    }

    /// From now on sshd runs, and `sshd -T` prints this.
    pub fn sshd_prints(&self, printed: &str) {
        self.inner().sshd = Some(SshdSettings::read(printed));
    }

    /// A user by name.
    pub fn user(&self, name: &str) -> Result<Option<Account>> {
        self.look("ask for a user")?;
        let inner = self.inner();
        Ok(inner.users.iter().find(|it| it.name == name).cloned())
    }

    /// A group's number.
    pub fn group(&self, name: &str) -> Result<Option<u32>> {
        self.look("ask for a group")?;
        let inner = self.inner();
        let found = inner.groups.iter().find(|(group, _)| group == name);
        Ok(found.map(|(_, number)| *number))
    }

    /// What sshd says.
    pub fn sshd(&self) -> Result<Option<SshdSettings>> {
        self.look("ask sshd")?;
        Ok(self.inner().sshd.clone())
    }

    fn look(&self, doing: &str) -> Result<()> {
        let looked = self.faults.looks();
        looked.map_err(|error| Error::os(doing, error))
    }
}

//! What goes wrong on a simulated machine, and when: counted in calls, so that a test can try them
//! all.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is to go wrong, and how far the calls are.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Count>);

#[derive(Debug, Default)]
struct Count {
    calls: usize,
    changes: usize,
    fail_at: BTreeSet<usize>,
    stop_after: Option<usize>,
    stopped: bool,
}

impl Faults {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail_at(&self, call: usize) {
        self.count().fail_at.insert(call);
    }

    pub(super) fn stop_after(&self, changes: usize) {
        self.count().stop_after = Some(changes);
    }

    pub(super) fn calls(&self) -> usize {
        self.count().calls
    }

    pub(super) fn changes(&self) -> usize {
        self.count().changes
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.count().stopped
    }

    /// Before anything is looked at.
    pub(super) fn looks(&self) -> io::Result<()> {
        self.count().call()
    }

    /// Before anything is changed, or made durable.
    pub(super) fn changes_something(&self) -> io::Result<()> {
        let mut count = self.count();
        if count.stop_after == Some(count.changes) {
            count.stopped = true;
        }
        count.call()?;
        count.changes += 1;
        Ok(())
    }
}

impl Count {
    fn call(&mut self) -> io::Result<()> {
        if self.stopped {
            return Err(io::Error::other("this program was killed"));
        }
        let call = self.calls;
        self.calls += 1;
        if self.fail_at.contains(&call) {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "this call was told to fail",
            ));
        }
        Ok(())
    }
}

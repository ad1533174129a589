//! The drift watcher of a machine: says when a path drifts and when it is as declared again, and puts
//! it back if asked to.
//!
//! Where the hints come from is the host's affair ([`Source`]); whether they mean anything is found
//! out here, by a look at that one path. Only hashes are kept in memory, contents stay in the store.

mod monitor;

use std::time::Duration;

pub use monitor::{Monitor, Watching, put_back};

use crate::verify::Finding;
use crate::{Error, Result};

/// A hint that something may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// At this path.
    Path(String),
    /// Hints were lost, or there were none yet: it can be anywhere.
    Everything,
}

/// What a [`Source`] has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Where to look; nothing if the time is over.
    Looks(Vec<Look>),
    /// Somebody wants this to end.
    Stopped,
}

/// Where the hints come from. The first is [`Look::Everything`]: what changed before there was
/// anybody to listen is found too.
pub trait Source {
    /// Waits for hints, at most for `timeout`.
    fn next(&mut self, timeout: Duration) -> Result<Heard>;
}

/// What became of a path.
#[derive(Debug)]
pub enum Event {
    /// It is not as it should be. Told once for each state it is found in, not for each write, and
    /// before it is healed: what stands there can still be shown.
    Drifted {
        /// What is wrong.
        finding: Finding,
        /// It had drifted before and was not right since.
        again: bool,
        /// How long after the first hint it was found.
        after: Duration,
    },
    /// It is as declared again, and Evenkeel did not heal it.
    Recovered {
        /// What had been wrong.
        finding: Finding,
    },
    /// We put it back.
    Healed {
        /// What had been wrong.
        finding: Finding,
        /// From the hint to when it was right, durably.
        took: Duration,
    },
    /// We could not put it back. Told once for each reason.
    HealFailed {
        /// What is wrong.
        finding: Finding,
        /// Why it stays so.
        error: Error,
        /// When it is tried again.
        again_in: Duration,
    },
    /// Somebody changes it over and over: it is looked at ever more rarely.
    Fought {
        /// What is wrong this time.
        finding: Finding,
        /// How often it has drifted without a pause.
        times: u32,
        /// How long it is left alone between two looks.
        wait: Duration,
    },
}

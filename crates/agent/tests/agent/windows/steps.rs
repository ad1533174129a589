//! Ends a program of ours between two of its steps, which it names in its log as it goes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use evenkeel_testbed::{Doing, Error, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::scene::SOON;
use super::scene::process::until_gone;

/// The steps of one run.
pub(crate) struct Steps {
    journal: PathBuf,
    log: PathBuf,
    /// How long the log was before.
    from: usize,
}

/// Where a program was ended.
#[derive(Debug)]
pub(crate) struct End {
    /// The steps that were done by then: their kinds, in their order.
    pub(crate) done: Vec<String>,
    /// Whether there was more to do.
    pub(crate) in_the_middle: bool,
}

impl Steps {
    /// Those that come from now on.
    pub(crate) fn of(journal: &Path, log: &Path) -> Self {
        let text = std::fs::read(log).unwrap_or_default();
        Self {
            journal: journal.to_owned(),
            log: log.to_owned(),
            from: text.len(),
        }
    }

    /// The kinds of those that are done.
    pub(crate) fn done(&self) -> Vec<String> {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(text.get(self.from..).unwrap_or_default()).into_owned();
        let kind = |line: &str| {
            let (_, said) = line.split_once(" is done: ")?;
            Some(said.split_once(": ")?.0.to_owned())
        };
        text.lines().filter_map(kind).collect()
    }

    /// Ends `process` as a crash does, once its journal is written and this many steps are done. Looks
    /// without a pause: the next step begins at once.
    pub(crate) fn end_after(&self, process: Option<u32>, steps: usize) -> Result<End> {
        let number = process.and_then(|it| Pid::from_raw(it.cast_signed()));
        let number = number.ok_or_else(|| Error::failed("it does not run"))?;
        let start = Instant::now();
        while !(self.journal.exists() && (steps == 0 || self.done().len() >= steps)) {
            if start.elapsed() > SOON {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                return Err(Error::failed(format!("step {steps} never came: {log}")));
            }
        }
        kill_process(number, Signal::KILL).doing(|| "cannot kill")?;
        until_gone(process)?;
        Ok(End {
            done: self.done(),
            in_the_middle: self.journal.exists(),
        })
    }
}

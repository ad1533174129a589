//! What the host of this machine, if it is a virtual one, took of its processors: a time that was measured
//! meanwhile says little of what was measured.

use std::time::Duration;

use crate::{Doing, Error, Result};

/// What the numbers count, on every machine that runs Linux.
const TICK: Duration = ticks(1);

const fn ticks(count: u64) -> Duration {
    Duration::from_millis(10 * count)
}

/// The processors' time from one moment on.
#[derive(Debug, Clone, Copy)]
pub struct Stolen {
    all: Duration,
    stolen: Duration,
}

impl Stolen {
    /// Counts from now on.
    pub fn from_now() -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").doing(|| "cannot read /proc/stat")?;
        Self::read(&stat).ok_or_else(|| Error::failed(format!("no times in /proc/stat: {stat}")))
    }

    /// The share of the time since then that was taken.
    pub fn share(&self) -> Result<f64> {
        let now = Self::from_now()?;
        let all = now.all.saturating_sub(self.all).max(TICK);
        let stolen = now.stolen.saturating_sub(self.stolen);
        Ok(stolen.div_duration_f64(all))
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are in user.
    fn read(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let counts = line.split_whitespace().map(str::parse);
        let times: Vec<Duration> = counts.map_while(|it| Some(ticks(it.ok()?))).collect();
        Some(Self {
            all: times.get(..8)?.iter().sum(),
            stolen: times[7],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eighth_number_is_what_was_taken() {
        let read = Stolen::read("cpu  10 0 5 80 1 0 0 4 7 0\ncpu0 1 2 3\n");
        assert!(read.is_some_and(|it| it.all == ticks(100) && it.stolen == ticks(4)));
        assert!(Stolen::read("cpu  1 2 3\n").is_none());
        assert!(Stolen::read("").is_none());
        let share = Stolen::from_now().and_then(|it| it.share()).unwrap();
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}

//! How soon a path is looked at and healed: at once, unless somebody keeps changing it, or a service keeps ending.

use std::time::{Duration, Instant};

use evenkeel_api::backoff::Backoff;

/// A path is looked at when it was still for this long, so that a file is not judged half written …
const STILL: Duration = Duration::from_millis(1);
/// … but not later than this after the first hint.
const LATEST: Duration = Duration::from_millis(10);

/// Drifts of one path without a pause that are as good as any; with each further so many its wait doubles.
const PATIENCE: u32 = 64;
/// Crashes of one service, one after the other, after which it is started again at once.
const RESTARTS: u32 = 5;

/// When healing that failed is tried again.
pub const HEALS_AGAIN: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_mins(1));

/// How often the paths in a folder that cannot be watched are looked at instead.
pub const LOOKS_AGAIN: Duration = Duration::from_secs(10);

/// Hints about one path that nobody followed yet.
#[derive(Debug, Clone, Copy)]
pub struct Hint {
    /// When the first one came.
    pub first: Instant,
    last: Instant,
}

impl Hint {
    /// The first one.
    pub const fn new(now: Instant) -> Self {
        Self {
            first: now,
            last: now,
        }
    }

    /// One more.
    pub const fn again(&mut self, now: Instant) {
        self.last = now;
    }

    /// When to look.
    pub fn due(&self) -> Instant {
        (self.last + STILL).min(self.first + LATEST)
    }
}

/// What comes back though it was put right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// A path drifts: somebody else writes it.
    Drift,
    /// A service ends by itself: starting it may not help.
    Crash,
}

/// How often something came back lately.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    trouble: Trouble,
    times: u32,
    last: Instant,
}

impl Pace {
    /// It did not come back yet.
    pub const fn of(trouble: Trouble, now: Instant) -> Self {
        Self {
            trouble,
            times: 0,
            last: now,
        }
    }

    /// It came back. The number of times is returned when people should hear of it: of a drift whenever the wait gets
    /// longer, of a crash at first with every longer wait, then ever more rarely.
    pub fn again(&mut self, now: Instant) -> Option<u32> {
        if self.is_over(now) {
            self.times = 0;
        }
        self.last = now;
        self.times = self.times.saturating_add(1);
        let is_news = match self.trouble {
            Trouble::Drift => self.times.is_multiple_of(PATIENCE),
            Trouble::Crash => self.times.saturating_sub(RESTARTS).is_power_of_two(),
        };
        is_news.then_some(self.times)
    }

    /// How long it is left alone after the last time.
    pub fn wait(&self) -> Duration {
        let (pauses, times) = match self.trouble {
            Trouble::Drift => (
                Backoff::new(Duration::from_millis(2), Duration::from_secs(30)),
                self.times / PATIENCE,
            ),
            Trouble::Crash => (
                Backoff::new(Duration::from_secs(1), Duration::from_mins(1)),
                self.times.saturating_sub(RESTARTS),
            ),
        };
        pauses.after(times)
    }

    /// It is left alone until then.
    pub fn not_before(&self) -> Instant {
        self.last + self.wait()
    }

    /// It did not come back for so long (and twice its wait) that this can be forgotten.
    pub fn is_over(&self, now: Instant) -> bool {
        let steady = match self.trouble {
            Trouble::Drift => Duration::from_secs(2),
            Trouble::Crash => Duration::from_secs(10),
        };
        now.duration_since(self.last) > steady.max(self.wait() * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_drifts_now_and_then_never_waits() {
        let start = Instant::now();
        let mut pace = Pace::of(Trouble::Drift, start);
        for round in 0..1_000 {
            pace.again(start + Duration::from_secs(3) * round);
            assert_eq!(pace.wait(), Duration::ZERO);
        }
    }

    #[test]
    fn a_fought_over_path_waits_ever_longer_up_to_a_limit() {
        let mut now = Instant::now();
        let mut pace = Pace::of(Trouble::Drift, now);
        let mut told = Vec::new();
        for _ in 0..10_000 {
            told.extend(pace.again(now));
            now = pace.not_before() + Duration::from_millis(1);
        }
        assert_eq!(&told[..3], [64, 128, 192]);
        assert_eq!(pace.wait(), Duration::from_secs(30));
        assert!(!pace.is_over(now));
        assert!(pace.is_over(now + Duration::from_mins(2)));
    }

    #[test]
    fn a_service_that_crashes_at_once_is_started_ever_more_rarely() {
        let mut now = Instant::now();
        let mut crashes = Pace::of(Trouble::Crash, now);
        let (mut told, mut waits) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            told.extend(crashes.again(now));
            waits.push(crashes.wait().as_secs());
            now = crashes.not_before() + Duration::from_millis(50);
        }
        assert_eq!(waits[..8], [0, 0, 0, 0, 0, 1, 2, 4]);
        assert_eq!(waits.last(), Some(&60));
        assert_eq!(told, [6, 7, 9, 13, 21, 37]);
        assert!(!crashes.is_over(now));
        let later = now + Duration::from_mins(3);
        assert!(crashes.is_over(later));
        crashes.again(later);
        assert_eq!(crashes.wait(), Duration::ZERO);
    }

    #[test]
    fn a_file_is_not_judged_while_it_is_being_written_but_not_left_waiting_either() {
        let start = Instant::now();
        let mut hint = Hint::new(start);
        assert_eq!(hint.due(), start + STILL);
        hint.again(start + STILL);
        assert_eq!(hint.due(), start + STILL * 2);
        hint.again(start + LATEST);
        assert_eq!(hint.due(), start + LATEST);
    }

    #[test]
    fn healing_that_fails_is_tried_again_within_a_minute() {
        assert_eq!(HEALS_AGAIN.after(1), Duration::from_millis(250));
        assert_eq!(HEALS_AGAIN.after(2), Duration::from_millis(500));
        assert_eq!(HEALS_AGAIN.after(1_000), Duration::from_mins(1));
    }
}

//! How soon a path is looked at and healed: at once, unless somebody keeps changing it.

use std::time::{Duration, Instant};

/// A path is looked at when it was still for this long, so that a file is not judged half written …
const STILL: Duration = Duration::from_millis(1);
/// … but not later than this after the first hint.
const LATEST: Duration = Duration::from_millis(10);

/// Drifts of one path without a pause that are as good as any.
const PATIENCE: u32 = 64;
/// The first wait between two looks at a fought-over path; it doubles with each further
/// [`PATIENCE`] drifts.
const FIRST_WAIT: Duration = Duration::from_millis(2);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A path that did not drift for this long (and twice its wait) is like any other again.
const PAUSE: Duration = Duration::from_secs(2);

/// Crashes of one service, one after the other, after which it is started again at once.
const RESTARTS: u32 = 5;
/// How long a service that crashed once more is left alone; twice as long each further time.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_mins(1);
/// A service that did not crash for this long (and twice its back-off) is like any other again.
const STEADY: Duration = Duration::from_secs(10);

const FIRST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Hints about one path that nobody followed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hint {
    pub(super) first: Instant,
    last: Instant,
}

impl Hint {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            first: now,
            last: now,
        }
    }

    pub(super) const fn again(&mut self, now: Instant) {
        self.last = now;
    }

    /// When to look.
    pub(super) fn due(&self) -> Instant {
        (self.last + STILL).min(self.first + LATEST)
    }
}

/// How often a path drifted lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    times: u32,
    last: Instant,
}

impl Pace {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            times: 0,
            last: now,
        }
    }

    /// It drifted. The number of times is returned whenever the wait gets longer.
    pub(super) fn drifted(&mut self, now: Instant) -> Option<u32> {
        if self.is_over(now) {
            self.times = 0;
        }
        self.last = now;
        self.times = self.times.saturating_add(1);
        self.times.is_multiple_of(PATIENCE).then_some(self.times)
    }

    /// How long it is left alone after a drift.
    pub(super) fn wait(&self) -> Duration {
        match self.times / PATIENCE {
            0 => Duration::ZERO,
            doublings => FIRST_WAIT
                .saturating_mul(1 << (doublings - 1).min(20))
                .min(LONGEST_WAIT),
        }
    }

    /// Not to be looked at before.
    pub(super) fn not_before(&self) -> Instant {
        self.last + self.wait()
    }

    /// The fight is over, and this can be forgotten.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.last) > PAUSE.max(self.wait() * 2)
    }
}

/// How often a service ended by itself lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crashes {
    times: u32,
    last: Instant,
}

impl Crashes {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            times: 0,
            last: now,
        }
    }

    /// It is started again. The number of times is returned when people should hear of it: at first
    /// with every longer wait, then ever more rarely.
    pub(super) fn again(&mut self, now: Instant) -> Option<u32> {
        if self.is_over(now) {
            self.times = 0;
        }
        self.last = now;
        self.times = self.times.saturating_add(1);
        let beyond = self.times.saturating_sub(RESTARTS);
        beyond.is_power_of_two().then_some(self.times)
    }

    /// How long it is left alone after the last start.
    pub(super) fn wait(&self) -> Duration {
        match self.times.saturating_sub(RESTARTS) {
            0 => Duration::ZERO,
            beyond => FIRST_BACK_OFF
                .saturating_mul(1 << (beyond - 1).min(10))
                .min(LONGEST_BACK_OFF),
        }
    }

    /// Not to be started before.
    pub(super) fn not_before(&self) -> Instant {
        self.last + self.wait()
    }

    /// It has been steady, and this can be forgotten.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.last) > STEADY.max(self.wait() * 2)
    }
}

/// How long to wait after so many failures.
pub(super) fn retry(failures: u32) -> Duration {
    FIRST_RETRY
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_drifts_now_and_then_never_waits() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for round in 0..1_000 {
            pace.drifted(start + Duration::from_secs(3) * round);
            assert_eq!(pace.wait(), Duration::ZERO);
        }
    }

    #[test]
    fn a_fought_over_path_waits_ever_longer_up_to_a_limit() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let mut told = Vec::new();
        for _ in 0..10_000 {
            told.extend(pace.drifted(now));
            now = pace.not_before() + Duration::from_millis(1);
        }
        assert_eq!(&told[..3], [64, 128, 192]);
        assert_eq!(pace.wait(), LONGEST_WAIT);
        assert!(!pace.is_over(now));
        assert!(pace.is_over(now + Duration::from_mins(2)));
    }

    #[test]
    fn a_service_that_crashes_at_once_is_started_ever_more_rarely() {
        let mut now = Instant::now();
        let mut crashes = Crashes::new(now);
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
        assert_eq!(retry(0), FIRST_RETRY);
        assert_eq!(retry(1), FIRST_RETRY * 2);
        assert_eq!(retry(1_000), LONGEST_RETRY);
    }
}

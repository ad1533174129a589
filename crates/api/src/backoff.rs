//! How long to wait before something is tried again: twice as long each time, up to a limit. Whoever waits has the
//! clock; here is only the arithmetic, so that every part of Evenkeel means the same by it.

use std::time::Duration;

/// Pauses that double, and how many there were in a row.
///
/// ```
/// use std::time::Duration;
/// use evenkeel_api::backoff::Backoff;
///
/// let mut pauses = Backoff::new(Duration::from_secs(1), Duration::from_secs(3));
/// let seconds = [(); 4].map(|()| pauses.next_pause().as_secs());
/// assert_eq!(seconds, [1, 2, 3, 3]);
/// pauses.reset();
/// assert_eq!(pauses.next_pause(), Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    times: u32,
}

impl Backoff {
    /// Pauses from `first` to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            times: 0,
        }
    }

    /// The pause after so many times in a row; none after none.
    pub fn after(self, times: u32) -> Duration {
        times.checked_sub(1).map_or(Duration::ZERO, |doublings| {
            let doubled = self.first.saturating_mul(2u32.saturating_pow(doublings));
            doubled.min(self.longest)
        })
    }

    /// The pause after one time more.
    pub fn next_pause(&mut self) -> Duration {
        self.times = self.times.saturating_add(1);
        self.after(self.times)
    }

    /// How many times there were in a row.
    pub const fn times(self) -> u32 {
        self.times
    }

    /// It went well: the next pause is the first again.
    pub const fn reset(&mut self) {
        self.times = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_reset() {
        let mut pauses = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let millis: Vec<_> = (0..8).map(|_| pauses.next_pause().as_millis()).collect();
        assert_eq!(millis, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pauses.times(), 8);
        pauses.reset();
        assert_eq!(pauses.times(), 0);
        assert_eq!(pauses.next_pause(), Duration::from_millis(100));
    }

    #[test]
    fn the_pause_of_any_number_of_failures_is_within_the_limits() {
        let pauses = Backoff::new(Duration::from_millis(2), Duration::from_secs(30));
        assert_eq!(pauses.after(0), Duration::ZERO);
        assert_eq!(pauses.after(1), Duration::from_millis(2));
        for failures in 1..10_000 {
            assert!(pauses.after(failures) <= pauses.after(failures + 1));
        }
        assert_eq!(pauses.after(u32::MAX), Duration::from_secs(30));
    }

    #[test]
    fn a_first_pause_beyond_the_longest_is_the_longest() {
        let mut pauses = Backoff::new(Duration::MAX, Duration::from_secs(1));
        assert_eq!(pauses.next_pause(), Duration::from_secs(1));
    }
}

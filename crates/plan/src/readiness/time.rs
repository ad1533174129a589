//! Time on this program's own clock, which never goes back. The clocks of other machines are only
//! ever compared with themselves, for being different.

use std::ops::Add;
use std::time::Duration;

/// A moment, as time since some beginning of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Moment(pub Duration);

impl Moment {
    /// The time from `earlier` to this one; none if it is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

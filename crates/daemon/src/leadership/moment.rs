//! The clock that leadership goes by: it goes on while the machine sleeps. The usual one stands still then, and who wakes
//! up would take itself for the leader that somebody else has been for long.

use std::ops::Add;
use std::time::Duration;

/// A moment of this machine, since it booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    #[cfg(target_os = "linux")]
    pub(super) fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(seconds, nanos))
    }

    /// On Windows the usual clock counts sleep, too.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn now() -> Self {
        use std::sync::OnceLock;
        use std::time::Instant;
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        Self(BEGIN.get_or_init(Instant::now).elapsed())
    }

    /// How long ago `earlier` was; nothing if it is still to come.
    pub(super) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    const AWAY: Duration = Duration::from_secs(1_000_000);
    const INSIDE: &str = "EVENKEEL_TEST_SLEPT";

    /// A machine that has slept for long: its clock of all time since the boot is ahead of the one that stands still meanwhile. A time
    /// namespace makes one.
    ///
    /// Covers S07.
    #[test]
    fn a_leader_counts_the_time_that_its_machine_slept() {
        let monotonic = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default())
        };
        if std::env::var_os(INSIDE).is_some() {
            let ahead = Moment::now().0.saturating_sub(monotonic());
            assert!(ahead >= AWAY, "only {ahead:?} ahead");
            return;
        }
        let this = std::env::current_exe().unwrap();
        let slept = Command::new("unshare")
            .args(["--time", "--boottime", &AWAY.as_secs().to_string()])
            .arg(this)
            .args([
                "--exact",
                "leadership::moment::tests::a_leader_counts_the_time_that_its_machine_slept",
            ])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&slept.stdout);
        let refused = String::from_utf8_lossy(&slept.stderr);
        if refused.contains("Operation not permitted") && std::env::var_os("CI").is_none() {
            println!("skipped: only root may make a time namespace");
            return;
        }
        assert!(
            slept.status.success() && said.contains("1 passed"),
            "{said}{refused}"
        );
    }
}

//! A promise about time, on a machine that others use, too. On one that is free the first measurement
//! counts; what was measured while somebody waited for a processor or a disk, or while the host of a
//! virtual machine had taken them, is measured again. Nothing passes that was not measured to be kept.
//! In a soak, where a test runs alone, whoever waits waits for us: only a host is an excuse.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::chance::is_soak;
use crate::stolen::Stolen;
use crate::{Error, Result};

/// How often something is measured at most.
const TRIES: usize = 6;
/// A machine that is busy for a larger share of the time than this tells nothing of what was slow.
const BUSY: f64 = 0.25;
/// How long a host that took the processors is waited for before something is measured again.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it is looked at.
const GLANCE: Duration = Duration::from_millis(500);

/// Measures `once` until it is as promised, and says what was measured then.
///
/// It must be possible to measure it again, and what else has to hold must hold each time. An error of
/// `once` ends it at once; the error of a promise that was not kept names all that was measured.
pub fn kept<T: Debug>(
    promise: &str,
    is_kept: impl Fn(&T) -> bool,
    mut once: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut judge = Judge::of(promise);
    loop {
        let load = Load::from_now();
        let measured = once()?;
        if is_kept(&measured) {
            return Ok(measured);
        }
        judge.again(&measured, load.share())?;
        while judge.waits() {
            std::thread::sleep(GLANCE);
        }
    }
}

/// As [`kept`], where what is measured is awaited.
pub async fn kept_async<T: Debug>(
    promise: &str,
    is_kept: impl Fn(&T) -> bool,
    mut once: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let mut judge = Judge::of(promise);
    loop {
        let load = Load::from_now();
        let measured = once().await?;
        if is_kept(&measured) {
            return Ok(measured);
        }
        judge.again(&measured, load.share())?;
        while judge.waits() {
            tokio::time::sleep(GLANCE).await;
        }
    }
}

/// Whether a promise that was not kept was broken.
struct Judge<'p> {
    promise: &'p str,
    measured: Vec<String>,
    /// Since when a host is waited for, and looked at.
    wait: Option<(Instant, Stolen)>,
}

impl<'p> Judge<'p> {
    fn of(promise: &'p str) -> Self {
        Self {
            promise,
            measured: Vec::new(),
            wait: None,
        }
    }

    /// An error if there was no excuse, or too many.
    fn again(&mut self, measured: &impl Debug, busy: f64) -> Result<()> {
        let percent = busy * 100.0;
        self.measured
            .push(format!("{measured:?} (busy for {percent:.0} % of it)"));
        let so_far = format!("{}: {}", self.promise, self.measured.join(", "));
        if busy > BUSY && self.measured.len() < TRIES {
            println!("measuring again: {so_far}");
            return Ok(());
        }
        Err(Error::failed(format!("not kept: {so_far}")))
    }

    /// Whether the host still has what it took; false at the latest when nobody waits any longer.
    fn waits(&mut self) -> bool {
        let begun = match self.wait.take() {
            Some((begun, stolen)) if begun.elapsed() > PATIENCE || !is_taken(stolen) => {
                return false;
            }
            Some((begun, _)) => begun,
            None => Instant::now(),
        };
        self.wait = Stolen::from_now().ok().map(|stolen| (begun, stolen));
        self.wait.is_some()
    }
}

fn is_taken(since: Stolen) -> bool {
    since.share().is_ok_and(|it| it > BUSY)
}

/// How long somebody waited for a processor or a disk so far, as the kernel counts it.
#[derive(Debug, Clone, Copy)]
struct Load {
    start: Instant,
    waited: Duration,
    stolen: Option<Stolen>,
}

impl Load {
    fn from_now() -> Self {
        Self {
            start: Instant::now(),
            waited: waited(),
            stolen: Stolen::from_now().ok(),
        }
    }

    /// The share of the time since then.
    fn share(&self) -> f64 {
        let waited = waited().saturating_sub(self.waited);
        let waited = waited.div_duration_f64(self.start.elapsed());
        let stolen = self.stolen.and_then(|it| it.share().ok());
        excuse(waited, stolen.unwrap_or_default(), is_soak())
    }
}

fn excuse(waited: f64, stolen: f64, is_alone: bool) -> f64 {
    let waited = if is_alone { 0.0 } else { waited };
    (waited + stolen).min(1.0)
}

fn waited() -> Duration {
    let of = |what| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{what}")).unwrap_or_default();
        some(&text).unwrap_or_default()
    };
    of("cpu") + of("io")
}

/// The first line: `some avg10=0.00 avg60=0.00 avg300=0.00 total=` and microseconds.
fn some(pressure: &str) -> Option<Duration> {
    let line = pressure.lines().find(|it| it.starts_with("some "))?;
    let total = line.split_once("total=")?.1.trim().parse().ok()?;
    Some(Duration::from_micros(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_machine_has_one_try_and_a_busy_one_several() {
        let mut judge = Judge::of("soon");
        let error = judge.again(&7, 0.02).unwrap_err().to_string();
        assert_eq!(error, "not kept: soon: 7 (busy for 2 % of it)");
        let mut judge = Judge::of("soon");
        let tries = (1..100).find(|it| judge.again(it, 0.5).is_err());
        assert_eq!(tries, Some(TRIES));
    }

    #[test]
    fn a_host_is_looked_at_and_not_waited_for_for_ever() {
        let mut judge = Judge::of("soon");
        assert!(judge.waits(), "nobody looked");
        let (begun, stolen) = judge.wait.unwrap();
        judge.wait = Some((begun.checked_sub(2 * PATIENCE).unwrap(), stolen));
        assert!(!judge.waits(), "nobody waits that long");
        assert!(judge.waits(), "the next time it is looked at again");
    }

    #[test]
    fn whoever_runs_alone_has_no_excuse_but_the_host() {
        assert!(excuse(0.6, 0.1, false) > BUSY);
        assert!(excuse(0.6, 0.1, true) < BUSY);
        assert!(excuse(0.0, 0.4, true) > BUSY);
    }

    #[tokio::test]
    async fn what_is_measured_in_the_end_was_kept() {
        let mut times = 0;
        let once = || {
            times += 1;
            Ok(times)
        };
        assert_eq!(kept("one", |it| *it == 1, once), Ok(1));
        let never = kept_async("never", |_: &i32| false, async || Ok(0)).await;
        let error = never.unwrap_err().to_string();
        assert!(
            error.starts_with("not kept: never: 0 (busy for "),
            "{error}"
        );
        let broken = kept("broken", |_: &i32| true, || Err(Error::failed("no")));
        assert!(broken.is_err());
    }

    #[test]
    fn the_kernel_says_how_long_somebody_waited() {
        let text =
            "some avg10=0.00 avg60=8.81 avg300=42.33 total=15806476\nfull avg10=0.00 total=7\n";
        assert_eq!(some(text), Some(Duration::from_micros(15_806_476)));
        assert_eq!(some(""), None);
        let share = Load::from_now().share();
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}

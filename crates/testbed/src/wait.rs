//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use std::time::{Duration, Instant};

use crate::stolen::Stolen;
use crate::{Error, Result};

const PAUSE: Duration = Duration::from_millis(10);
/// A limit from which on it is no promise, but how long somebody waits for a thing that takes its time.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many times longer that gets at most.
const LONGEST: f64 = 12.0;

/// A deadline. A long one counts only the time in which the processors were there: what the host of a virtual
/// machine takes of them is not held against what is waited for.
struct Deadline {
    limit: Duration,
    start: Instant,
    stolen: Option<Stolen>,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        let is_patient = limit >= PATIENCE;
        Self {
            limit,
            start: Instant::now(),
            stolen: is_patient.then(|| Stolen::from_now().ok()).flatten(),
        }
    }

    /// How long it still is.
    fn left(&self) -> Duration {
        let share = self.stolen.and_then(|it| it.share().ok());
        let limit = self.limit.mul_f64(stretch(share.unwrap_or_default()));
        limit.saturating_sub(self.start.elapsed())
    }
}

/// How many times longer something takes while this share of the processors is not there.
fn stretch(share: f64) -> f64 {
    (1.0 - share).recip().clamp(1.0, LONGEST)
}

/// What a look at the condition found.
#[derive(Debug)]
pub enum Look<T> {
    /// It holds; this is what was waited for.
    Found(T),
    /// Not yet; this is what was seen instead, for the message if it never comes.
    NotYet(String),
}

/// Looks again and again until `look` finds what is waited for, or `deadline` has passed.
///
/// An error of `look` ends the wait at once. The error of a passed deadline names `what` was waited
/// for and what was last seen.
pub fn until<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<Look<T>>,
) -> Result<T> {
    let end = Deadline::after(deadline);
    loop {
        match look()? {
            Look::Found(value) => return Ok(value),
            Look::NotYet(seen) if end.left().is_zero() => {
                return Err(late(what, deadline, &seen));
            }
            Look::NotYet(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// As [`until`], where a look is a request or another thing to await. A look that takes longer than
/// what is left of the deadline counts as not yet.
pub async fn until_async<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<Look<T>>,
) -> Result<T> {
    let end = Deadline::after(deadline);
    let mut last = "nothing, the first look took too long".to_owned();
    loop {
        match tokio::time::timeout(end.left(), look()).await {
            Ok(Ok(Look::Found(value))) => return Ok(value),
            Ok(Ok(Look::NotYet(seen))) => last = seen,
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
        if end.left().is_zero() {
            return Err(late(what, deadline, &last));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What `work` comes to, if it does before `deadline` has passed.
pub async fn within<T>(deadline: Duration, work: impl Future<Output = T>) -> Option<T> {
    let end = Deadline::after(deadline);
    let mut work = Box::pin(work);
    while !end.left().is_zero() {
        if let Ok(done) = tokio::time::timeout(end.left(), work.as_mut()).await {
            return Some(done);
        }
    }
    None
}

pub(crate) fn late(what: &str, deadline: Duration, seen: &str) -> Error {
    Error::failed(format!("waited {deadline:?} for {what}; last seen: {seen}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_is_over_says_what_it_last_saw() {
        let mut looks = 0;
        let error = until::<()>("the kettle", Duration::from_millis(30), || {
            looks += 1;
            Ok(Look::NotYet(format!("cold after {looks} looks")))
        })
        .unwrap_err()
        .to_string();
        assert!(
            error.starts_with("waited 30ms for the kettle; last seen: cold after "),
            "{error}"
        );
        assert!(looks > 1);
    }

    #[tokio::test]
    async fn a_look_that_hangs_does_not_outlast_the_deadline() {
        let mut looks = 0;
        let error = until_async::<()>("the kettle", Duration::from_millis(50), async || {
            looks += 1;
            if looks == 2 {
                std::future::pending::<()>().await;
            }
            Ok(Look::NotYet("cold".to_owned()))
        })
        .await
        .unwrap_err()
        .to_string();
        assert_eq!(error, "waited 50ms for the kettle; last seen: cold");
    }

    #[test]
    fn a_promise_is_not_stretched_and_patience_by_what_was_taken() {
        assert!(Deadline::after(Duration::from_secs(29)).stolen.is_none());
        let times = [0.0, 0.5, 0.75, 0.9, 1.0].map(stretch);
        let expected = [1.0, 2.0, 4.0, 10.0, LONGEST];
        let differ = times.iter().zip(expected).map(|(is, ought)| is - ought);
        assert!(differ.map(f64::abs).all(|it| it < 1e-9), "{times:?}");
    }

    #[tokio::test]
    async fn work_that_comes_to_nothing_is_not_waited_for_longer_than_that() {
        let short = Duration::from_millis(30);
        assert_eq!(within(short, std::future::pending::<()>()).await, None);
        assert_eq!(within(short, async { 1 }).await, Some(1));
    }

    #[test]
    fn a_wait_ends_as_soon_as_the_condition_holds() {
        let mut looks = 0;
        let found = until("three looks", Duration::from_mins(1), || {
            looks += 1;
            Ok(if looks == 3 {
                Look::Found(looks)
            } else {
                Look::NotYet(looks.to_string())
            })
        });
        assert_eq!(found, Ok(3));
    }
}

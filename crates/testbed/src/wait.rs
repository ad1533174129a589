//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use std::time::{Duration, Instant};

use crate::{Error, Result};

const PAUSE: Duration = Duration::from_millis(10);

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
    let start = Instant::now();
    loop {
        match look()? {
            Look::Found(value) => return Ok(value),
            Look::NotYet(seen) if start.elapsed() >= deadline => {
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
    let start = Instant::now();
    let mut last = "nothing, the first look took too long".to_owned();
    loop {
        let left = deadline.saturating_sub(start.elapsed());
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(Look::Found(value))) => return Ok(value),
            Ok(Ok(Look::NotYet(seen))) if start.elapsed() < deadline => {
                last = seen;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(Ok(Look::NotYet(seen))) => return Err(late(what, deadline, &seen)),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(late(what, deadline, &last)),
        }
    }
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

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

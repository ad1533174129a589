//! What an agent waits for, and since when. Its Node says so once that takes long: nobody has to guess why a node
//! stands still.

use std::time::Duration;

use jiff::Timestamp;

/// How long something may take before the Node says what is waited for.
const LONG: Duration = Duration::from_secs(10);

/// What is waited for, if anything is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting(Option<(String, Timestamp)>);

impl Waiting {
    /// It is `what` that is waited for now. What the Node is to say of it; or, if that is too early, how long
    /// until then.
    pub fn on(&mut self, what: &str, now: Timestamp) -> Result<String, Duration> {
        let (_, since) = match self.0.take() {
            Some(known) if known.0 == what => self.0.insert(known),
            _ => self.0.insert((what.to_owned(), now)),
        };
        // A clock that was set back begins anew: nobody has waited since tomorrow.
        *since = (*since).min(now);
        let waited = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
        match LONG.checked_sub(waited) {
            Some(left) if !left.is_zero() => Err(left),
            _ => Ok(format!(
                "waiting for {what} since {}",
                since.strftime("%Y-%m-%dT%H:%M:%SZ")
            )),
        }
    }

    /// Nothing is waited for any more.
    pub fn is_over(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_what_it_waits_for_and_since_when_but_only_once_that_takes_long() {
        let at = |seconds: i64| Timestamp::from_second(1_767_225_600 + seconds).unwrap();
        let mut waiting = Waiting::default();
        let step = "step 3 of 12 (service containerd)";
        assert_eq!(waiting.on(step, at(0)), Err(LONG));
        assert_eq!(waiting.on(step, at(9)), Err(Duration::from_secs(1)));
        let said = "waiting for step 3 of 12 (service containerd) since 2026-01-01T00:00:00Z";
        assert_eq!(waiting.on(step, at(10)), Ok(said.to_owned()));
        assert_eq!(waiting.on(step, at(300)), Ok(said.to_owned()));
        let other = "step 4 of 12 (service kubelet)";
        assert_eq!(waiting.on(other, at(300)), Err(LONG));
        waiting.is_over();
        assert_eq!(waiting.on(other, at(400)), Err(LONG));
        // A clock that is set back by an hour.
        assert_eq!(waiting.on(other, at(-3200)), Err(LONG));
        assert!(waiting.on(other, at(-3190)).is_ok());
    }
}

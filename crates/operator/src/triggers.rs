//! The loop that every controller has: what wakes it, when it reconciles again without being told to, and how long it
//! waits after a failure.

use std::fmt::Display;
use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use evenkeel_daemon::Stop;
use futures::future::{LocalBoxFuture, select_all};
use tokio::sync::watch;

/// The pauses after failures in a row, for what shall be right within a second.
const AFTER_FAILURE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Something that tells when it has changed.
trait Wakes {
    /// Waits for the next change.
    fn changed(&mut self) -> LocalBoxFuture<'_, ()>;
    /// What has changed by now is about to be looked at.
    fn mark_seen(&mut self);
}

impl<T> Wakes for watch::Receiver<T> {
    fn changed(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            // Whoever is gone tells nothing more.
            if watch::Receiver::changed(self).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    fn mark_seen(&mut self) {
        self.mark_unchanged();
    }
}

/// What wakes a controller. Whatever has changed by then is one wake.
pub(crate) struct Triggers<'s> {
    stop: &'s Stop,
    sources: Vec<Box<dyn Wakes + 's>>,
    together: Duration,
    /// Something has changed that nobody was told of yet.
    woken: bool,
    failures: Backoff,
}

impl<'s> Triggers<'s> {
    /// A controller that ends when the program is asked to stop.
    pub(crate) fn until(stop: &'s Stop) -> Self {
        Self {
            stop,
            sources: Vec::new(),
            together: Duration::ZERO,
            woken: false,
            failures: AFTER_FAILURE,
        }
    }

    /// It is woken by these changes, too.
    #[must_use]
    pub(crate) fn and<T: 's>(mut self, changes: watch::Receiver<T>) -> Self {
        self.sources.push(Box::new(changes));
        self
    }

    /// After a change, others that may come with it are waited for.
    #[must_use]
    pub(crate) fn together(mut self, together: Duration) -> Self {
        self.together = together;
        self
    }

    /// Waits until something changes, or until `pause` is over; `false` once the program is asked to stop. A wait that
    /// is given up loses no change: the next one returns for it.
    pub(crate) async fn next(&mut self, pause: Option<Duration>) -> bool {
        let changed = async {
            match self.sources.as_mut_slice() {
                _ if self.woken => {}
                [] => std::future::pending().await,
                all => _ = select_all(all.iter_mut().map(|it| it.changed())).await,
            }
        };
        tokio::select! {
            () = self.stop.stopped() => return false,
            () = changed => {}
            () = after(pause) => {}
        }
        self.woken = true;
        if !self.together.is_zero() {
            tokio::time::sleep(self.together).await;
        }
        self.mark_seen();
        true
    }

    /// What has changed by now is about to be looked at.
    pub(crate) fn mark_seen(&mut self) {
        self.woken = false;
        self.sources.iter_mut().for_each(|it| it.mark_seen());
    }

    /// Reconciles at every wake until the program is asked to stop. `reconcile` says how long to wait for a change at
    /// most. `what` it cannot do if it fails is logged, and tried again after a back-off.
    pub(crate) async fn run<E: Display>(
        mut self,
        what: &str,
        mut reconcile: impl AsyncFnMut() -> Result<Option<Duration>, E>,
    ) {
        let mut pause = None;
        while self.next(pause).await {
            pause = match reconcile().await {
                Ok(pause) => {
                    self.failures.reset();
                    pause
                }
                Err(error) => {
                    tracing::warn!("cannot {what}, will retry: {error}");
                    Some(self.failures.next_pause())
                }
            };
        }
    }
}

/// Waits for `pause`, or for ever if there is none.
pub(crate) async fn after(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn changes_that_come_together_are_one_wake_and_none_is_lost() {
        let stop = Stop::default();
        let (one, other) = (watch::Sender::new(0), watch::Sender::new("a"));
        let mut triggers = Triggers::until(&stop)
            .and(one.subscribe())
            .and(other.subscribe());
        one.send_replace(1);
        other.send_replace("b");
        assert!(triggers.next(None).await);
        let begun = Instant::now();
        let pause = Duration::from_millis(50);
        assert!(triggers.next(Some(pause)).await);
        assert!(begun.elapsed() >= pause, "both were one wake");
        other.send_replace("c");
        drop(one);
        assert!(triggers.next(None).await);
        stop.stop();
        assert!(!triggers.next(None).await);
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_loses_no_change() {
        let stop = Stop::default();
        let changes = watch::Sender::new(());
        let together = Duration::from_millis(50);
        let mut triggers = Triggers::until(&stop)
            .and(changes.subscribe())
            .together(together);
        changes.send_replace(());
        let given_up = tokio::time::timeout(together / 5, triggers.next(None)).await;
        assert!(given_up.is_err());
        let later = tokio::time::timeout(Duration::from_secs(30), triggers.next(None)).await;
        assert_eq!(later, Ok(true));
    }

    #[tokio::test]
    async fn what_fails_is_tried_again_later_and_what_succeeds_when_it_says() {
        let stop = Stop::default();
        let changes = watch::Sender::new(());
        let triggers = Triggers::until(&stop).and(changes.subscribe());
        changes.send_replace(());
        let begun = Instant::now();
        let mut at = Vec::new();
        let work = triggers.run("try", async || {
            at.push(begun.elapsed());
            match at.len() {
                1 | 2 => Err("no"),
                3 => Ok(Some(Duration::from_millis(50))),
                _ => {
                    stop.stop();
                    Ok(None)
                }
            }
        });
        work.await;
        let pauses: Vec<_> = at
            .windows(2)
            .map(|two| two[1].saturating_sub(two[0]))
            .collect();
        let least = [100, 200, 50].map(Duration::from_millis);
        assert!(
            pauses.len() == 3 && pauses.iter().zip(least).all(|(is, least)| *is >= least),
            "{pauses:?}"
        );
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let millis = |failures| AFTER_FAILURE.after(failures).as_millis();
        let pauses: Vec<_> = (1..9).map(millis).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(millis(u32::MAX), 5000);
    }
}

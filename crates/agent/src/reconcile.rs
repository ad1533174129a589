//! One reconcile of a worker: when the next one is, and what happens when one does not come to its end.

use std::time::{Duration, Instant};

use evenkeel_api::backoff::Backoff;
use evenkeel_plan::machine::phase::Reason;

/// How long after a failure it is tried again.
pub(crate) const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));
/// How long after the API server did not answer it is asked again.
pub(crate) const ASK_AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// When the worker works again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requeue {
    /// When something changes.
    OnChange,
    /// At once, after what has changed by now.
    Now,
    /// When something changes, and after this long.
    After(Duration),
}

#[cfg(windows)]
impl Requeue {
    /// The same, after `limit` at the latest.
    pub(crate) fn within(self, limit: Duration) -> Self {
        match self {
            Self::Now => self,
            Self::OnChange => Self::After(limit),
            Self::After(pause) => Self::After(pause.min(limit)),
        }
    }
}

/// Why a reconcile did not come to its end.
pub(crate) enum ReconcileError {
    /// The API server did not answer.
    Cluster(kube::Error),
    /// The machine said no.
    Machine(Reason),
}

impl From<Reason> for ReconcileError {
    fn from(reason: Reason) -> Self {
        Self::Machine(reason)
    }
}

/// A failure that is tried again later.
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    again_at: Instant,
}

impl Failure {
    /// One that is tried again after `pause`.
    pub(crate) fn tried_again_after(pause: Duration, reason: Reason) -> Self {
        Self {
            reason,
            again_at: Instant::now() + pause,
        }
    }

    /// How long until it is tried again.
    pub(crate) fn again_in(&self) -> Duration {
        self.again_at.saturating_duration_since(Instant::now())
    }

    /// Whether it is to be tried again.
    pub(crate) fn is_over(&self) -> bool {
        self.again_in().is_zero()
    }
}

/// Does what may wait, in a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Reason> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|error| {
        let text = format!("internal error in the agent (please report): {error}");
        Reason::new("Crashed", text)
    })
}

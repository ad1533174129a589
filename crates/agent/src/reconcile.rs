//! One reconcile of a worker, whatever its system: when the next one is, and what happens when one does not come
//! to its end.

use std::time::{Duration, Instant};

use evenkeel_daemon::Check;
use evenkeel_host::Error;
use evenkeel_plan::machine::phase::Reason;
use k8s_openapi::api::core::v1::ObjectReference;

/// How long after a failure it is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));
/// How long after the API server did not answer it is asked again, at first and at most.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A machine that has not gone down after this long is told again.
pub(crate) const REBOOT_AGAIN: Duration = Duration::from_mins(5);
/// How long a machine that is to boot waits at most for its Events to be sent.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(3);

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
    pub(crate) again_at: Instant,
}

impl Failure {
    /// The next one after `failures` in a row.
    pub(crate) fn after(failures: &mut u32, reason: Reason) -> Self {
        let pause = pause(RETRY, *failures);
        *failures = failures.saturating_add(1);
        Self {
            reason,
            again_at: Instant::now() + pause,
        }
    }

    /// Whether it is to be tried again.
    pub(crate) fn is_over(&self) -> bool {
        self.again_at <= Instant::now()
    }
}

/// How a reconcile ended: when the next one is, or what the machine said. `unanswered` counts how often in a row
/// the API server gave no answer.
pub(crate) fn ended(
    requeue: Result<Requeue, ReconcileError>,
    unanswered: &mut u32,
    ready: &Check,
) -> Result<Requeue, Reason> {
    match requeue {
        Ok(requeue) => {
            *unanswered = 0;
            ready.ready();
            Ok(requeue)
        }
        Err(ReconcileError::Machine(reason)) => Err(reason),
        Err(ReconcileError::Cluster(error)) => {
            let pause = pause(ASK_AGAIN, *unanswered);
            *unanswered = unanswered.saturating_add(1);
            ready.not_ready("the API server does not answer");
            tracing::warn!(%error, "a request to the API server failed; retrying in {pause:?}");
            Ok(Requeue::After(pause))
        }
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

/// What the machine said, for people.
pub(crate) fn reason(error: &Error) -> Reason {
    Reason::new(error.category(), error.with_causes())
}

/// What Events of a node are about.
pub(crate) fn about_node(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// Twice as long each time, within limits.
fn pause((first, longest): (Duration, Duration), times: u32) -> Duration {
    first.saturating_mul(1 << times.min(10)).min(longest)
}

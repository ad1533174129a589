//! A pod on a node that is drained: whether it stays, and what became of its evictions.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use evenkeel_api::backoff::Backoff;
use evenkeel_api::names::pod;
use evenkeel_api::notice::Notice;
use jiff::Timestamp;

use super::{Ours, Toleration};
use crate::fleet::node::Node;

/// The waits after refused evictions: a budget that allows one is noticed within the longest.
const WAITS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Which of all objects that ever had this name it is.
    pub uid: String,
}

/// A pod on the node, as narrow as the decision needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of all pods that ever had this name it is.
    pub uid: String,
    /// Its controller.
    pub owner: Option<Owner>,
    /// Whether it is one of ours; for the caller to fill in, by [`Installation::recognise`](super::Installation::recognise).
    pub ours: Option<Ours>,
    /// Its priority class.
    pub priority_class: Option<String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its phase.
    pub phase: Option<String>,
    /// Until when it may take its time to end, if it is being deleted.
    pub ends: Option<Timestamp>,
    /// Whether it has a volume that is lost with it.
    pub has_empty_dir: bool,
    /// Whether it may be on a node that is not ready, by our taint.
    pub tolerates_readiness: bool,
    /// The labels that a node must have to run it.
    pub node_selector: BTreeMap<String, String>,
    /// Which taints it may be with.
    pub tolerations: Vec<Toleration>,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a pod stays on a node that is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stay {
    /// The kubelet runs it from a file; what the API server has is a mirror.
    Static,
    /// Its `DaemonSet` would bring it back at once.
    DaemonSet,
    /// Its priority class is `system-node-critical`.
    NodeCritical,
    /// It has the annotation of a critical pod.
    Critical,
    /// It is our own agent.
    Agent,
    /// It is our own operator, and not one of those that go.
    Operator,
    /// It has ended, and only its object is left.
    Finished,
}

impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "static",
            Self::DaemonSet => "DaemonSet",
            Self::NodeCritical => "priority class system-node-critical",
            Self::Critical => "critical-pod annotation",
            Self::Agent => "Evenkeel agent",
            Self::Operator => "Evenkeel operator",
            Self::Finished => "finished",
        })
    }
}

impl Pod {
    /// Whether it is being deleted.
    pub fn is_ending(&self) -> bool {
        self.ends.is_some()
    }

    /// Whether nobody need wait for it at `now`: it should have ended so long ago, and for as long its node has not been
    /// ready, so that no kubelet is there to end it.
    pub(super) fn is_stuck(&self, node: &Node, bound: Duration, now: Timestamp) -> bool {
        let Some((ends, not_ready)) = self.ends.zip(node.not_ready_since) else {
            return false;
        };
        !bound.is_zero() && !node.ready && since(ends.max(not_ready), now) >= bound
    }

    /// Why it stays, if it does.
    pub fn stays(&self) -> Option<Stay> {
        let source = self.annotations.get(pod::SOURCE).map(String::as_str);
        let owner = self.owner.as_ref().map(|it| it.kind.as_str());
        if owner == Some("Node")
            || self.annotations.contains_key(pod::MIRROR)
            || source.is_some_and(|source| source != "api")
        {
            Some(Stay::Static)
        } else if self.ours == Some(Ours::Agent) {
            Some(Stay::Agent)
        } else if owner == Some("DaemonSet") {
            Some(Stay::DaemonSet)
        } else if self.priority_class.as_deref() == Some(pod::NODE_CRITICAL) {
            Some(Stay::NodeCritical)
        } else if self.annotations.contains_key(pod::CRITICAL) {
            Some(Stay::Critical)
        } else if !self.is_ending() && matches!(self.phase.as_deref(), Some("Succeeded" | "Failed"))
        {
            // One that is ending is waited for also when its containers have ended: its volumes may
            // still be in use.
            Some(Stay::Finished)
        } else {
            None
        }
    }
}

/// What became of the eviction of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// It is on its way.
    Accepted,
    /// It is gone, or the one of that name is another by now: the next list will tell.
    Gone,
    /// Not now, and not again before this time is over.
    Refused(Refusal, Duration),
}

impl Eviction {
    /// What an answer with `code` means that is no yes: `budget` is what the server says of a disruption budget, if it
    /// does, `message` its whole sentence, and `wait` how long it wants us to wait.
    pub fn refused(code: u16, budget: Option<&str>, message: &str, wait: Duration) -> Self {
        match code {
            // 404: gone already. 409: the uid is another, or somebody wrote to it just now.
            404 | 409 => Self::Gone,
            _ => Self::Refused(Refusal::of(code, budget, message), wait),
        }
    }

    /// One word for metrics.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Gone => "gone",
            Self::Refused(refusal, _) => refusal.category(),
        }
    }
}

/// Why the API server did not evict a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A disruption budget does not allow it now; in the server's words, which name the budget.
    Budget(String),
    /// It never will as things are, for example because two budgets cover the pod.
    Misconfigured(String),
    /// The server has too much to do.
    Busy(String),
    /// Something else went wrong.
    Failed(String),
}

impl Refusal {
    fn of(code: u16, budget: Option<&str>, message: &str) -> Self {
        match (code, budget) {
            (429, Some(budget)) => Self::Budget(budget.to_owned()),
            (429, None) => Self::Busy(message.to_owned()),
            // The eviction API answers so to a pod that two budgets cover.
            (500, _) => Self::Misconfigured(message.to_owned()),
            _ => Self::Failed(message.to_owned()),
        }
    }

    /// One word for metrics.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Budget(_) => "budget",
            Self::Misconfigured(_) => "misconfigured",
            Self::Busy(_) => "busy",
            Self::Failed(_) => "failed",
        }
    }
}

/// The refused evictions of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// How many there were.
    pub times: u32,
    /// When the last one was.
    pub at: Timestamp,
    /// How long the server wants us to wait, at least.
    pub wait: Duration,
    /// What it said.
    pub refusal: Refusal,
}

/// Takes note of what became of the eviction of `pod` at `now` in `attempts` (by uid), and returns what is to be said at
/// once. A budget that does not allow it now is no news before the deadline.
pub fn answered(
    attempts: &mut BTreeMap<String, Attempt>,
    pod: &Pod,
    answer: Eviction,
    now: Timestamp,
) -> Option<Notice> {
    let (refusal, wait) = match answer {
        Eviction::Accepted => {
            attempts.remove(&pod.uid);
            return None;
        }
        Eviction::Gone => return None,
        Eviction::Refused(refusal, wait) => (refusal, wait),
    };
    let notice = match &refusal {
        Refusal::Budget(_) | Refusal::Busy(_) => None,
        Refusal::Misconfigured(why) | Refusal::Failed(why) => {
            let message = format!("cannot evict pod {pod}, will retry: {why}");
            Some(Notice::warning("EvictionFailed", message))
        }
    };
    let attempt = Attempt {
        times: attempts.get(&pod.uid).map_or(0, |it| it.times) + 1,
        at: now,
        wait,
        refusal,
    };
    attempts.insert(pod.uid.clone(), attempt);
    notice
}

impl Attempt {
    /// Whether it is time for another one.
    pub fn is_over(&self, now: Timestamp) -> bool {
        let wait = WAITS.after(self.times).max(self.wait);
        // A clock that was set back must not make the wait longer.
        now < self.at || since(self.at, now) >= wait
    }
}

/// The time from `start` to `now`, none if the clock was set back.
pub(super) fn since(start: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(start)).unwrap_or_default()
}

//! Draining a node at its agent's request: cordon, evict what goes, answer, and uncordon when asked.
//!
//! All state is on the Node and in its pods, so whoever drains may be killed at any point and the next
//! one goes on. Which node may begin is not decided here, but in [`crate::fleet::budget`].

mod autoscalers;
mod candidate;
mod own_pods;
mod pod;

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::duration;
use evenkeel_api::names::{annotation, cordon};
use evenkeel_api::notice::Notice;
use jiff::Timestamp;

use crate::fleet::budget::{WaitReason, holds_permit};
use crate::fleet::node::{DrainRequest, Node, NodePatch};
use crate::listing;

pub use self::candidate::{Candidate, Taint, Toleration, is_only_node};
pub use self::own_pods::{Installation, Ours, decide, is_undecided};
use self::pod::since;
pub use self::pod::{Attempt, Eviction, Owner, Pod, Refusal, Stay, answered};

/// How long a drain may take before it is reported, unless said.
pub const TIMEOUT: Duration = Duration::from_hours(1);
/// How long it waits for pods that no kubelet ends, unless said.
pub const SKIP_WAIT_FOR_DELETE: Duration = Duration::from_mins(5);
/// How many pods a sentence names.
const NAMES: usize = 5;

/// What a pool's owner says about drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainSettings {
    /// How long a drain may take before it is reported.
    pub timeout: Duration,
    /// Whether it then goes ahead with pods still on the node, instead of trying on.
    pub proceed: bool,
    /// On a node that is not ready: how long it waits for pods that are terminating, after they should have ended. Zero is
    /// for ever.
    pub skip_wait_for_delete: Duration,
    /// Whether pods are left where they are: the node is cordoned, and nobody is evicted.
    pub keeps_pods: bool,
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            timeout: TIMEOUT,
            proceed: false,
            skip_wait_for_delete: SKIP_WAIT_FOR_DELETE,
            keeps_pods: false,
        }
    }
}

impl DrainSettings {
    /// Reads the settings as a pool's annotations or the command line have them.
    pub fn read(
        timeout: Option<&str>,
        on_timeout: Option<&str>,
        skip_wait_for_delete: Option<&str>,
    ) -> Result<Self, String> {
        let timeout = timeout.map_or(Ok(TIMEOUT), duration::parse)?;
        let skip = skip_wait_for_delete.map_or(Ok(SKIP_WAIT_FOR_DELETE), duration::parse)?;
        let proceed = match on_timeout {
            None | Some("wait") => false,
            Some("proceed") => true,
            Some(other) => {
                return Err(format!(
                    "unknown action {other:?} for a drain that takes too long: write wait or proceed"
                ));
            }
        };
        Ok(Self {
            timeout,
            proceed,
            skip_wait_for_delete: skip,
            keeps_pods: false,
        })
    }

    /// Reads whether a pool's annotation keeps pods where they are.
    pub fn keeps_pods(annotation: &str) -> Result<bool, String> {
        match annotation {
            "evict" => Ok(false),
            "never" => Ok(true),
            other => Err(format!("unknown value {other:?}: write evict or never")),
        }
    }
}

/// What comes next for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing is asked for, or it was answered.
    Nothing,
    /// It asks for a drain, and needs a permit first.
    AskForPermit,
    /// This is to be written.
    Write(NodePatch, Notice),
    /// This is to be written, and is news to nobody.
    Mark(NodePatch),
    /// Pods are to be evicted: [`evict`] says which.
    Evict,
    /// It asks for something that we do not know.
    Unknown(Notice),
}

/// What comes next for `node`.
pub fn next(node: &Node) -> Next {
    if let Some(change) = autoscalers::put_right(node) {
        return Next::Mark(change);
    }
    match node.request() {
        DrainRequest::None => Next::Nothing,
        DrainRequest::Unknown(request) => Next::Unknown(Notice::warning(
            "DrainRequestUnknown",
            format!(
                "annotation {} has the unknown value {request:?}: write drain-<target> or uncordon-<target>",
                annotation::DESIRED_DRAIN
            ),
        )),
        DrainRequest::Uncordon(request) => uncordon(node, request),
        DrainRequest::Drain(_) if !(node.claims_permit() && node.has_permit) => Next::AskForPermit,
        // A person who uncordons it in the middle would have it filled again while it is emptied.
        DrainRequest::Drain(_) if !node.unschedulable => Next::Write(
            cordoned(NodePatch::default()),
            Notice::normal("Cordoned", "cordoned again: the drain is still running"),
        ),
        DrainRequest::Drain(_) => Next::Evict,
    }
}

/// What is said of a `node` that asks for a drain and has to wait.
pub fn waits(node: &Node, why: &WaitReason) -> Notice {
    let request = node.desired_drain.as_deref().unwrap_or_default();
    Notice::normal("DrainWaits", format!("{request} is waiting: {why}"))
}

/// What is written when `node` gets its permit at `now`: the cordon with it, unless it has one already,
/// which then stays whosever it is.
pub fn grant(node: &Node, now: Timestamp) -> (NodePatch, Notice) {
    let request = node.desired_drain.as_deref().unwrap_or_default();
    let change = NodePatch::default().with(annotation::DRAIN_GRANTED, now.to_string());
    let change = autoscalers::held(node, own_pods::forgotten(node, change));
    if node.unschedulable {
        let note = format!("started {request}; the node was already cordoned");
        (change, Notice::normal("Draining", note))
    } else {
        let note = format!("cordoned the node and started {request}");
        (cordoned(change), Notice::normal("Draining", note))
    }
}

fn cordoned(change: NodePatch) -> NodePatch {
    NodePatch {
        unschedulable: Some(true),
        ..change.with(annotation::CORDONED_BY, cordon::DRAIN)
    }
}

fn uncordon(node: &Node, request: &str) -> Next {
    let change = answer(node, request).without(annotation::DRAIN_GRANTED);
    let mut change = autoscalers::released(node, own_pods::forgotten(node, change));
    let note = if node.is_cordoned_by_drain() && holds_permit(node) {
        change = change.without(annotation::CORDONED_BY);
        change.unschedulable = Some(false);
        "uncordoned: the node takes pods again"
    } else if node.unschedulable {
        "stays cordoned: Evenkeel did not set this cordon"
    } else {
        "the node takes pods: it was not cordoned"
    };
    Next::Write(change, Notice::normal("Uncordoned", note))
}

/// The request given back, with the reason that we wrote, if we did, taken off.
fn answer(node: &Node, request: &str) -> NodePatch {
    let change = NodePatch::default().with(annotation::LAST_APPLIED_DRAIN, request);
    let change = match node.overdue() {
        Some(_) => change.with(annotation::REASON, ""),
        None => change,
    };
    match node.drain_overdue {
        Some(_) => change.without(annotation::DRAIN_OVERDUE),
        None => change,
    }
}

/// One round over the pods of a node that is being drained.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainRound<'a> {
    /// To be evicted now.
    pub evict: Vec<&'a Pod>,
    /// Those that stay, and why.
    pub stay: Vec<(&'a Pod, Stay)>,
    /// Those that have to go and are still there, the ones to evict among them.
    pub left: Vec<&'a Pod>,
    /// Those that no kubelet ends: nobody waits for them.
    pub stuck: Vec<&'a Pod>,
    /// What is to be written on the node.
    pub write: NodePatch,
    /// Whether with that the drain is answered and over.
    pub is_over: bool,
    /// What is to be said.
    pub notices: Vec<Notice>,
}

/// Which of its `pods` are evicted from `node` at `now`, after the refusals in `attempts` (by uid), and
/// whether the drain is over.
///
/// A pod is gone when no pod of its uid is on the node; one that is ending is waited for, as long as a kubelet may end it.
pub fn evict<'a>(
    node: &Node,
    pods: &'a [Pod],
    attempts: &BTreeMap<String, Attempt>,
    settings: DrainSettings,
    now: Timestamp,
) -> DrainRound<'a> {
    let mut round = DrainRound::default();
    if next(node) != Next::Evict {
        return round;
    }
    let request = node.desired_drain.as_deref().unwrap_or_default();
    if settings.keeps_pods {
        round.write = answer(node, request);
        round.is_over = true;
        let note = format!(
            "ended {request} without evicting pods: the pool has {}: never",
            annotation::DRAIN
        );
        round.notices.push(Notice::normal("DrainKeepsPods", note));
        return round;
    }
    for pod in pods {
        let own = || own_pods::stays(node, pod).then_some(Stay::Operator);
        let Some(stay) = pod.stays().or_else(own) else {
            if pod.is_stuck(node, settings.skip_wait_for_delete, now) {
                round.stuck.push(pod);
                continue;
            }
            round.left.push(pod);
            let waits = attempts.get(&pod.uid).is_some_and(|it| !it.is_over(now));
            if !pod.is_ending() && !waits {
                round.evict.push(pod);
            }
            continue;
        };
        round.stay.push((pod, stay));
    }
    // Nobody is named who was not tried, also by one who takes over from another when it is late.
    let was_tried = |pod: &&Pod| pod.is_ending() || attempts.contains_key(&pod.uid);
    let is_overdue = took(node, now) >= settings.timeout && round.left.iter().all(was_tried);
    if round.left.is_empty() {
        round.write = answer(node, request);
        round.is_over = true;
        round.notices.extend(given_up(request, &round.stuck));
        let stay = round.stay.iter().map(|(pod, why)| format!("{pod} ({why})"));
        let note = format!("drained for {request}; pods that stay: {}", listed(stay));
        round.notices.push(Notice::normal("Drained", note));
    } else if is_overdue && settings.proceed {
        let held = listed(round.left.iter().map(|pod| holds(pod, attempts)));
        let late = duration_text(settings.timeout);
        let note = format!("ended {request} after {late} with pods still on the node: {held}");
        round.evict.clear();
        round.write = answer(node, request);
        round.is_over = true;
        round.notices.push(Notice::warning("DrainProceeds", note));
    } else if is_overdue {
        // Whoever a budget or an error holds is named first: the others are on their way.
        let mut left = round.left.clone();
        left.sort_by_key(|pod| (!attempts.contains_key(&pod.uid), pod.is_ending()));
        let held = listed(left.iter().map(|pod| holds(pod, attempts)));
        let late = duration_text(settings.timeout);
        let note = format!("the drain takes longer than {late}: {held}");
        if node.overdue() != Some(&note) {
            round.write = NodePatch::default()
                .with(annotation::REASON, &note)
                .with(annotation::DRAIN_OVERDUE, &note);
            round.notices.push(Notice::warning("DrainOverdue", note));
        }
    }
    round
}

/// How long a node has had its permit at `now`.
pub fn took(node: &Node, now: Timestamp) -> Duration {
    since(node.permit_since(now).unwrap_or(now), now)
}

/// What is to be said about pods that were evicted and do not come back as they were.
pub fn losses(evicted: &[&Pod]) -> Vec<Notice> {
    let mut says = Vec::new();
    let names = |what: &dyn Fn(&Pod) -> bool| {
        let lost: Vec<_> = evicted.iter().filter(|pod| what(pod)).collect();
        (!lost.is_empty()).then(|| listed(lost.iter().map(ToString::to_string)))
    };
    if let Some(names) = names(&|pod| pod.owner.is_none()) {
        let note = format!("evicted pods that have no owner, so nothing recreates them: {names}");
        says.push(Notice::warning("EvictedWithoutOwner", note));
    }
    if let Some(names) = names(&|pod| pod.has_empty_dir) {
        let note = format!("evicted pods whose emptyDir volumes are lost: {names}");
        says.push(Notice::normal("EvictedWithEmptyDir", note));
    }
    says
}

/// What is to be said where a drain is over although pods are still terminating.
fn given_up(request: &str, stuck: &[&Pod]) -> Option<Notice> {
    if stuck.is_empty() {
        return None;
    }
    let names = listed(stuck.iter().map(ToString::to_string));
    let note = format!(
        "the node is not ready, so no kubelet ends its pods: ended {request} without waiting for pods that are terminating: {names}"
    );
    Some(Notice::warning("DrainSkipsTerminating", note))
}

fn holds(pod: &Pod, attempts: &BTreeMap<String, Attempt>) -> String {
    match attempts.get(&pod.uid).map(|attempt| &attempt.refusal) {
        _ if pod.is_ending() => format!("pod {pod} is evicted and still terminating"),
        Some(Refusal::Budget(why)) => format!("eviction of pod {pod} is blocked: {why}"),
        Some(Refusal::Misconfigured(why) | Refusal::Busy(why) | Refusal::Failed(why)) => {
            format!("eviction of pod {pod} fails: {why}")
        }
        None => format!("pod {pod} is not evicted yet"),
    }
}

fn listed(items: impl Iterator<Item = String>) -> String {
    match listing::listed(items, NAMES, "; ") {
        none if none.is_empty() => "none".to_owned(),
        some => some,
    }
}

/// A duration as people write it.
pub(crate) fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{duration:?}"),
        (0, minutes, 0) => format!("{minutes}m"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, 0, 0) => format!("{hours}h"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}

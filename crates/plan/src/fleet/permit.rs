//! The record of disruption permits, and who may write it.
//!
//! Several operators may run, and one that leads no more may be frozen in the middle of anything, with a write under
//! way. So a permit is written into the record of its pool first, over the version that was read, and only then on
//! the Node. Each new leader raises the epoch of a record before it grants anything there: what an earlier one
//! sends after that meets another version, and what it reads shows another epoch. Whoever does it:
//!
//! - claims a record: reads it, and writes [`claim`] over that version.
//!   So it does also when it does not know whether a write of its own was done: then that one comes too late.
//! - grants: reads the Node, sees afterwards that the record has its epoch and the permit, and writes on the Node over
//!   that version. So a grant that is late is over a version from before the next leader's claim.
//! - takes a permit off the record: only if a Node that was read after its own claim [`is_over`]. A grant that is late
//!   was made for a node that asked; one that does not ask is another version, and refuses it.

use evenkeel_api::fleet::permits::{Permit, Permits};
use jiff::Timestamp;

use crate::fleet::node::{DrainRequest, Node};

/// The record with the name of a new leader on it, who leads by the Lease in its `term`. Whatever was granted stays.
pub fn claim(permits: Option<&Permits>, term: i64) -> Permits {
    let before = permits.cloned().unwrap_or_default();
    Permits {
        // Terms begin anew when somebody deletes the Lease; epochs never do.
        epoch: term.max(before.epoch.saturating_add(1)),
        ..before
    }
}

/// The record after the permits of `returned` are taken off it and those of `granted` are put on it, by the leader of `epoch`.
/// Nothing if it is not that leader's any more, or nothing is different.
pub fn change<'n>(
    permits: &Permits,
    epoch: i64,
    returned: impl Fn(&str) -> bool,
    granted: impl Iterator<Item = &'n str>,
    now: Timestamp,
) -> Option<Permits> {
    if permits.epoch != epoch {
        return None;
    }
    let mut after = permits.clone();
    after.granted.retain(|it| !returned(&it.node));
    for node in granted {
        if !after.has(node) {
            after.granted.push(Permit {
                node: node.to_owned(),
                since: Some(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            });
        }
    }
    after
        .granted
        .sort_by(|one, other| one.node.cmp(&other.node));
    (after != *permits).then_some(after)
}

/// Whether the record of the leader of `epoch` has a permit for `node`.
pub fn is_good(permits: Option<&Permits>, epoch: i64, node: &str) -> bool {
    permits.is_some_and(|it| it.epoch == epoch && it.has(node))
}

/// Whether a node, as it was just read, uses its permit no more: it is gone, or says neither that it has one nor that
/// it wants one.
pub fn is_over(node: Option<&Node>) -> bool {
    node.is_none_or(|node| {
        !node.claims_permit() && !matches!(node.request(), DrainRequest::Drain(_))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(permits: &Permits) -> Vec<&str> {
        permits.granted.iter().map(|it| it.node.as_str()).collect()
    }

    /// Covers S07.
    #[test]
    fn each_leader_raises_the_epoch_and_keeps_what_was_granted() {
        let now = Timestamp::UNIX_EPOCH;
        let first = claim(None, 0);
        assert_eq!(first.epoch, 1);
        let nobody = |_: &str| false;
        let granted = change(&first, 1, nobody, ["b", "a"].into_iter(), now).unwrap();
        assert_eq!(names(&granted), ["a", "b"]);
        let second = claim(Some(&granted), 7);
        assert_eq!((second.epoch, names(&second)), (7, vec!["a", "b"]));
        // Somebody deleted the Lease, and its count of leaders began anew.
        assert_eq!(claim(Some(&second), 0).epoch, 8);
        // The first one is none any more.
        assert_eq!(change(&second, 1, nobody, ["c"].into_iter(), now), None);
        assert!(!is_good(Some(&second), 1, "a") && is_good(Some(&second), 7, "a"));
        assert!(!is_good(Some(&second), 7, "c") && !is_good(None, 7, "a"));
        assert_eq!(change(&second, 7, nobody, ["a"].into_iter(), now), None);
        let after = change(&second, 7, |it| it == "a", ["c"].into_iter(), now).unwrap();
        assert_eq!(names(&after), ["b", "c"]);
        // Who gives it back and asks again in one breath keeps it, from then on.
        let later = Timestamp::from_second(60).unwrap();
        let again = change(&second, 7, |it| it == "a", ["a"].into_iter(), later).unwrap();
        assert!(again.has("a") && again != second);
    }

    /// Covers S07.
    #[test]
    fn a_permit_is_over_when_the_node_neither_has_it_nor_wants_it() {
        let text = |text: &str| Some(text.to_owned());
        let asks = Node {
            desired_drain: text("drain-new"),
            ..Node::default()
        };
        assert!(!is_over(Some(&asks)));
        let draining = Node {
            drain_granted: text("2026-01-01T00:00:00Z"),
            last_applied_drain: text("drain-new"),
            ..asks.clone()
        };
        assert!(!is_over(Some(&draining)), "its agent is at work");
        let back = Node {
            desired_drain: text("uncordon-new"),
            last_applied_drain: text("uncordon-new"),
            drain_granted: None,
            ..draining
        };
        assert!(is_over(Some(&back)));
        assert!(is_over(None), "it is gone");
    }
}

//! What a candidate knows of its Lease, and what it does next. No I/O and no clock: time is an
//! argument.

use std::time::Duration;

use super::moment::Moment;
use super::{LeaseName, Timing};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

/// One candidate's view of one Lease.
#[derive(Debug)]
pub(super) struct Claim {
    identity: String,
    name: LeaseName,
    timing: Timing,
    view: Observation,
    /// What we last wrote is good for so long.
    until: Option<Moment>,
}

#[derive(Debug)]
enum Observation {
    /// Something may have changed that we have not seen.
    Unknown { last: Option<ObservedLease> },
    /// There is no Lease.
    Absent,
    /// This is the Lease.
    Present(ObservedLease),
}

#[derive(Debug, Clone)]
struct ObservedLease {
    lease: Lease,
    /// When we saw these words of its holder for the first time.
    since: Moment,
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(super) enum Move {
    /// Read the Lease.
    Look,
    /// There is none: make it.
    Create(Lease),
    /// It is ours, or free, or over: write it, if nobody else did.
    Replace(Lease),
}

impl Claim {
    pub(super) fn new(identity: String, name: &LeaseName, timing: Timing) -> Self {
        Self {
            identity,
            name: name.clone(),
            timing,
            view: Observation::Unknown { last: None },
            until: None,
        }
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) fn name(&self) -> &str {
        &self.name.name
    }

    /// Until when we lead, if we do.
    pub(super) fn until(&self) -> Option<Moment> {
        self.until
    }

    /// How often the Lease had passed from one to another when we wrote it last.
    pub(super) fn term(&self) -> i64 {
        let seen = match &self.view {
            Observation::Present(seen) => Some(seen),
            Observation::Unknown { last } => last.as_ref(),
            Observation::Absent => None,
        };
        let spec = seen.and_then(|it| it.lease.spec.as_ref());
        spec.and_then(|it| it.lease_transitions)
            .map_or(0, i64::from)
    }

    /// What to do at `now`.
    pub(super) fn next(&self, now: Moment) -> Move {
        let seen = match &self.view {
            Observation::Unknown { .. } => return Move::Look,
            Observation::Absent => return Move::Create(self.written(None)),
            Observation::Present(seen) => seen,
        };
        let spec = seen.lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let theirs = spec
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(self.timing.duration(), Duration::from_secs);
        let free = match holder {
            None | Some("") => true,
            Some(holder) if holder == self.identity => true,
            Some(_) => now.since(seen.since) >= theirs,
        };
        if free {
            Move::Replace(self.written(Some(&seen.lease)))
        } else {
            Move::Look
        }
    }

    /// This is the Lease, read at `now`.
    pub(super) fn saw(&mut self, lease: Option<Lease>, now: Moment) {
        let Some(lease) = lease else {
            self.view = Observation::Absent;
            self.until = None;
            return;
        };
        let before = match &self.view {
            Observation::Unknown { last } => last.as_ref(),
            Observation::Present(seen) => Some(seen),
            Observation::Absent => None,
        };
        let since = before
            .filter(|seen| seen.lease.spec == lease.spec)
            .map_or(now, |seen| seen.since);
        if holder(&lease) != Some(&self.identity) {
            self.until = None;
        }
        self.view = Observation::Present(ObservedLease { lease, since });
    }

    /// We are about to write, and may never learn how that went: then look first.
    pub(super) fn doubt(&mut self) {
        let view = std::mem::replace(&mut self.view, Observation::Absent);
        let last = match view {
            Observation::Unknown { last } => last,
            Observation::Present(seen) => Some(seen),
            Observation::Absent => None,
        };
        self.view = Observation::Unknown { last };
    }

    /// The API server has taken our words; `begin` is from before they were sent, so that it is not
    /// later than when anybody can have seen them.
    pub(super) fn wrote(&mut self, lease: Lease, begin: Moment) {
        self.until = Some(begin + self.timing.step_down());
        self.view = Observation::Present(ObservedLease {
            lease,
            since: begin,
        });
    }

    /// Whoever has not renewed by now leads no more.
    pub(super) fn expire(&mut self, now: Moment) {
        self.until = self.until.filter(|until| now < *until);
    }

    /// The Lease without us, if it was ours when we last looked.
    pub(super) fn released(&self) -> Option<Lease> {
        let seen = match &self.view {
            Observation::Present(seen) => seen,
            Observation::Unknown { last } => last.as_ref()?,
            Observation::Absent => return None,
        };
        if holder(&seen.lease) != Some(&self.identity) {
            return None;
        }
        let mut lease = seen.lease.clone();
        if let Some(spec) = lease.spec.as_mut() {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(now());
        }
        Some(lease)
    }

    /// The Lease in our hand: renewed if it was, taken if it was not.
    fn written(&self, before: Option<&Lease>) -> Lease {
        let ours = before.and_then(holder) == Some(&self.identity);
        let spec = before.and_then(|lease| lease.spec.as_ref());
        let transitions = spec.and_then(|spec| spec.lease_transitions);
        let acquired = spec.and_then(|spec| spec.acquire_time.clone());
        let mut lease = before.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                namespace: Some(self.name.namespace.clone()),
                name: Some(self.name.name.clone()),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        });
        let seconds = self.timing.duration().as_secs();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
            acquire_time: if ours { acquired } else { Some(now()) },
            renew_time: Some(now()),
            lease_transitions: match before {
                None => Some(0),
                Some(_) if ours => transitions,
                Some(_) => Some(transitions.unwrap_or(0).saturating_add(1)),
            },
            ..spec.cloned().unwrap_or_default()
        });
        lease
    }
}

fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref()
}

/// For people who read the Lease; nobody decides by it.
fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn claim(identity: &str) -> Claim {
        let name = LeaseName {
            namespace: "ns".to_owned(),
            name: "operator".to_owned(),
        };
        Claim::new(identity.to_owned(), &name, Timing::lasting(15 * SECOND))
    }

    /// A claim of `identity` after it wrote at `begin`, and the Lease.
    fn leader(identity: &str, begin: Moment) -> (Claim, Lease) {
        let mut claim = claim(identity);
        claim.saw(None, begin);
        let Move::Create(lease) = claim.next(begin) else {
            panic!("{claim:?}")
        };
        claim.wrote(lease.clone(), begin);
        (claim, lease)
    }

    #[test]
    fn the_first_look_comes_before_the_first_word() {
        assert_eq!(claim("a").next(Moment::now()), Move::Look);
        assert_eq!(claim("a").until(), None);
    }

    #[test]
    fn a_leader_steps_down_before_another_one_may_take_over() {
        let begin = Moment::now();
        let (mut a, lease) = leader("a", begin);
        // The other one cannot see the Lease before it was written.
        let mut b = claim("b");
        b.saw(Some(lease), begin);
        let mut took = None;
        let mut lost = None;
        for tenth in 0..200 {
            let now = begin + Duration::from_millis(100 * tenth);
            a.expire(now);
            if a.until().is_none() {
                lost = lost.or(Some(now));
            }
            if matches!(b.next(now), Move::Replace(_)) {
                took = took.or(Some(now));
            }
        }
        assert_eq!(lost, Some(begin + 10 * SECOND));
        assert_eq!(took, Some(begin + 15 * SECOND));
    }

    #[test]
    fn a_renewal_seen_by_another_starts_its_wait_anew_but_a_label_does_not() {
        let begin = Moment::now();
        let (mut a, lease) = leader("a", begin);
        let mut b = claim("b");
        b.saw(Some(lease.clone()), begin);
        let mut labelled = lease;
        labelled.metadata.resource_version = Some("2".to_owned());
        b.saw(Some(labelled.clone()), begin + 10 * SECOND);
        assert!(matches!(b.next(begin + 15 * SECOND), Move::Replace(_)));
        a.saw(Some(labelled), begin + 10 * SECOND);
        let Move::Replace(renewed) = a.next(begin + 10 * SECOND) else {
            panic!("{a:?}")
        };
        b.saw(Some(renewed), begin + 11 * SECOND);
        assert_eq!(b.next(begin + 25 * SECOND), Move::Look);
        assert!(matches!(b.next(begin + 26 * SECOND), Move::Replace(_)));
    }

    #[test]
    fn who_takes_over_counts_the_change_and_who_renews_does_not() {
        let begin = Moment::now();
        let (a, lease) = leader("a", begin);
        let Move::Replace(renewed) = a.next(begin + SECOND) else {
            panic!("{a:?}")
        };
        let spec = |lease: &Lease| lease.spec.clone().unwrap();
        assert_eq!(spec(&renewed).lease_transitions, Some(0));
        assert_eq!(spec(&renewed).acquire_time, spec(&lease).acquire_time);
        let mut b = claim("b");
        b.saw(a.released(), begin);
        let Move::Replace(taken) = b.next(begin) else {
            panic!("a Lease that was given back is free at once: {b:?}")
        };
        assert_eq!(spec(&taken).lease_transitions, Some(1));
        assert_eq!(spec(&taken).holder_identity.as_deref(), Some("b"));
        assert_eq!(spec(&taken).lease_duration_seconds, Some(15));
    }

    #[test]
    fn a_write_whose_answer_is_missing_is_followed_by_a_look_and_does_not_lengthen_leadership() {
        let begin = Moment::now();
        let (mut a, lease) = leader("a", begin);
        let until = a.until();
        a.doubt();
        assert_eq!(a.next(begin + 3 * SECOND), Move::Look);
        a.saw(Some(lease), begin + 4 * SECOND);
        assert_eq!(a.until(), until);
        assert!(matches!(a.next(begin + 4 * SECOND), Move::Replace(_)));
    }

    #[test]
    fn a_leader_whose_lease_another_holds_or_nobody_knows_leads_no_more_at_once() {
        let begin = Moment::now();
        let (_, theirs) = leader("b", begin);
        for seen in [Some(theirs), None] {
            let (mut a, _) = leader("a", begin);
            a.doubt();
            a.saw(seen, begin + SECOND);
            assert_eq!(a.until(), None);
            assert_eq!(a.released(), None);
        }
    }

    #[test]
    fn a_lease_without_words_is_free() {
        let mut a = claim("a");
        a.saw(Some(Lease::default()), Moment::now());
        assert!(matches!(a.next(Moment::now()), Move::Replace(_)));
    }
}

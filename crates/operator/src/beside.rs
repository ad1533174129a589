//! Whether OpenShift's own machine-config operator is alive on this cluster: then pools and Linux nodes
//! are its own, and ours stays idle.
//!
//! It is alive while one of its leaders renews its Lease. Two looks tell, by our own clock; before the
//! second one, a Lease counts by the time that is written on it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use evenkeel_api::names::openshift;
use evenkeel_daemon::Stop;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;

/// The time between two looks.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a Lease lasts that does not say.
const LASTS: Duration = Duration::from_secs(137);

/// What is known of the other operator. Clones are the same.
#[derive(Clone)]
pub(crate) struct Beside {
    state: watch::Sender<State>,
    seen: Rc<RefCell<Vec<(String, Seen)>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody has looked yet.
    Unknown,
    Alone,
    Idle,
}

/// A Lease, as it was when it last changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    renewed: Option<Timestamp>,
    /// When we saw it change; not when it was there at our first look.
    changed: Option<Instant>,
}

impl Beside {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::new(State::Unknown),
            seen: Rc::default(),
        }
    }

    /// Whether somebody has looked.
    pub(crate) fn is_known(&self) -> bool {
        *self.state.borrow() != State::Unknown
    }

    /// Whether we leave pools and Linux nodes alone.
    pub(crate) fn is_idle(&self) -> bool {
        *self.state.borrow() != State::Alone
    }

    /// Tells when that has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.state.subscribe()
    }

    /// Looks now and then, until the program is asked to stop.
    pub(crate) async fn keep(&self, client: Client, stop: &Stop) {
        let leases: Api<Lease> = Api::namespaced(client, openshift::NAMESPACE);
        loop {
            match self.is_alive(&leases).await {
                Ok(is_alive) => {
                    let state = if is_alive { State::Idle } else { State::Alone };
                    let before = self.state.send_replace(state);
                    if is_alive && before != State::Idle {
                        tracing::warn!(
                            "OpenShift's machine-config operator is alive: pools and Linux nodes are left to it"
                        );
                    } else if !is_alive && before == State::Idle {
                        tracing::info!(
                            "OpenShift's machine-config operator is not alive any more: pools are ours"
                        );
                    }
                }
                // What was known stays: if the API server is away, nothing can be done anyway.
                Err(error) => {
                    tracing::warn!("cannot look for another machine-config operator: {error}");
                }
            }
            tokio::select! {
                () = stop.stopped() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn is_alive(&self, leases: &Api<Lease>) -> kube::Result<bool> {
        let mut is_alive = false;
        for name in openshift::LEASES {
            let Some(lease) = leases.get_opt(name).await? else {
                continue;
            };
            let spec = lease.spec.unwrap_or_default();
            let lasts = spec
                .lease_duration_seconds
                .and_then(|it| u64::try_from(it).ok());
            let lasts = lasts.map_or(LASTS, Duration::from_secs);
            let held = spec.holder_identity.is_some_and(|it| !it.is_empty());
            let renewed = spec.renew_time.map(|it| it.0);
            let seen = self.note(name, renewed);
            is_alive |= held && seen.counts(lasts, Timestamp::now());
        }
        Ok(is_alive)
    }

    fn note(&self, name: &str, renewed: Option<Timestamp>) -> Seen {
        let mut all = self.seen.borrow_mut();
        let Some((_, seen)) = all.iter_mut().find(|(known, _)| known == name) else {
            let changed = None;
            let seen = Seen { renewed, changed };
            all.push((name.to_owned(), seen.clone()));
            return seen;
        };
        if seen.renewed != renewed {
            let changed = Some(Instant::now());
            *seen = Seen { renewed, changed };
        }
        seen.clone()
    }
}

impl Seen {
    /// Whether its holder is alive at `now`.
    fn counts(&self, lasts: Duration, now: Timestamp) -> bool {
        match (self.changed, self.renewed) {
            (Some(changed), _) => changed.elapsed() < lasts,
            (None, Some(renewed)) => {
                // A clock that is ahead is no reason to do its work.
                Duration::try_from(now.duration_since(renewed)).is_ok_and(|age| age < lasts)
                    || renewed > now
            }
            (None, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_while_it_is_renewed_by_whatever_clock() {
        let beside = Beside::new();
        assert!(
            beside.is_idle(),
            "nothing is done before somebody has looked"
        );
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let minute = Duration::from_mins(1);
        let first = beside.note("a", at("2026-01-01T11:00:00Z"));
        assert!(!first.counts(minute, now), "left behind an hour ago");
        let renewed = beside.note("a", at("2026-01-01T11:00:10Z"));
        assert!(
            renewed.counts(minute, now),
            "its clock is an hour late, and it lives"
        );
        assert!(!renewed.counts(Duration::ZERO, now), "and does so no more");
        assert!(
            beside
                .note("b", at("2026-01-01T11:59:30Z"))
                .counts(minute, now)
        );
        assert!(
            beside
                .note("c", at("2026-01-01T13:00:00Z"))
                .counts(minute, now)
        );
        assert!(!beside.note("d", None).counts(minute, now));
    }
}

//! How we live with OpenShift's own operators: its machine-config operator has pools and Linux nodes, its operator for
//! Windows the Windows nodes. Where one is on the cluster, that half of ours stays idle, unless the owner says
//! otherwise. `evenkeel_plan::fleet::coexistence` decides; here it is observed, and told: by Event, metric and on our own
//! Lease. Nothing is ever written into an object of theirs.

pub(crate) mod metrics;
mod observer;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_api::names::{annotation, program};
use evenkeel_daemon::{Events, Stop};
use evenkeel_plan::fleet::coexistence::{
    Coexistence, CoexistenceReport, CoexistenceReports, Half, Presence,
};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::Patch;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use self::observer::Observer;
use crate::fleet::coexistence::metrics::CoexistenceMetrics;
use crate::objects::ours;
use crate::triggers;

/// How long after the API server failed it is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// How we live with each; nobody knows before somebody has looked.
type State = BTreeMap<Half, Coexistence>;

/// What is known of the other operators. Clones are the same.
#[derive(Clone)]
pub(crate) struct Neighbours {
    state: watch::Sender<State>,
    /// What the owner says to take over.
    take_over: BTreeSet<Half>,
}

/// What people are told, once both are known.
fn reports(state: &State) -> Option<CoexistenceReports> {
    let report = |half: Half| {
        let report = CoexistenceReport::of(half, *state.get(&half)?);
        Some((half.word().to_owned(), report))
    };
    Half::ALL.into_iter().map(report).collect()
}

/// Where it is told.
#[derive(Clone)]
pub(crate) struct Voice<'a> {
    pub(crate) client: Client,
    pub(crate) events: &'a Events,
    pub(crate) metrics: &'a CoexistenceMetrics,
    /// The namespace of our own Lease.
    pub(crate) namespace: &'a str,
}

impl Neighbours {
    /// Knows nothing yet.
    pub(crate) fn new(take_over: BTreeSet<Half>) -> Self {
        Self {
            state: watch::Sender::new(State::default()),
            take_over,
        }
    }

    fn of(&self, half: Half) -> Option<Coexistence> {
        self.state.borrow().get(&half).copied()
    }

    fn is_idle_for(&self, half: Half) -> bool {
        self.of(half).is_none_or(Coexistence::is_idle)
    }

    /// Whether somebody has looked for the machine-config operator.
    pub(crate) fn is_known(&self) -> bool {
        self.of(Half::MachineConfig).is_some()
    }

    /// Whether somebody has looked for the operator for Windows nodes.
    pub(crate) fn is_known_for_windows(&self) -> bool {
        self.of(Half::Windows).is_some()
    }

    /// Whether we leave pools and Linux nodes alone.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle_for(Half::MachineConfig)
    }

    /// Whether we leave Windows nodes alone.
    pub(crate) fn is_idle_for_windows(&self) -> bool {
        self.is_idle_for(Half::Windows)
    }

    /// How we live with the operator for Windows nodes, if somebody has looked.
    pub(crate) fn windows(&self) -> Option<Coexistence> {
        self.of(Half::Windows)
    }

    /// Tells when any of that has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.state.subscribe()
    }

    /// Observes them, and tells, until the program is asked to stop.
    pub(crate) async fn keep(&self, voice: Voice<'_>, stop: &Stop) {
        let all = async {
            tokio::join!(
                self.follow(Half::MachineConfig, &voice),
                self.follow(Half::Windows, &voice),
                self.write_on_our_lease(&voice),
            )
        };
        tokio::select! {
            () = stop.stopped() => {}
            _ = all => {}
        }
    }

    async fn follow(&self, half: Half, voice: &Voice<'_>) {
        let mut observer = Observer::new(half, voice.client.clone());
        let mut changes = observer.changes();
        loop {
            let mut seen = observer.presence();
            let mut pause = None;
            // That one is gone is believed only to a fresh answer: a watch may be late, or broken.
            let gone = [Presence::Silent, Presence::Absent];
            let is_gone = seen.is_some_and(|(presence, _)| gone.contains(&presence));
            if is_gone && self.of(half).is_some_and(Coexistence::is_idle) {
                match observer.read().await {
                    Ok(()) => seen = observer.presence(),
                    Err(error) => {
                        let name = half.operator();
                        tracing::warn!("cannot check whether {name} is gone, will retry: {error}");
                        (seen, pause) = (None, Some(AGAIN));
                    }
                }
            }
            // What was known stays while nothing is seen: if the API server is away, nothing can be done anyway.
            if let Some((presence, left)) = seen {
                let take_over = self.take_over.contains(&half);
                self.note(half, Coexistence::of(presence, take_over), voice);
                pause = left;
            }
            tokio::select! {
                Some(observation) = changes.next() => observer.note(observation),
                () = triggers::after(pause) => {}
            }
        }
    }

    fn set(&self, half: Half, coexistence: Coexistence) -> Option<Coexistence> {
        let mut before = None;
        self.state.send_if_modified(|state| {
            before = state.insert(half, coexistence);
            before != Some(coexistence)
        });
        before
    }

    /// Takes note of how we live with one, and tells it if that is new. That nobody is there needs no Event.
    fn note(&self, half: Half, coexistence: Coexistence, voice: &Voice<'_>) {
        let before = self.set(half, coexistence);
        if before == Some(coexistence) {
            return;
        }
        voice.metrics.coexists(half, coexistence);
        let notice = coexistence.notice(half);
        if before.is_none() && coexistence == Coexistence::Absent {
            tracing::info!(category = %notice.category, "{}", notice.message);
            return;
        }
        let lease = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            namespace: Some(voice.namespace.to_owned()),
            name: Some(program::OPERATOR.to_owned()),
            ..ObjectReference::default()
        };
        voice.events.notify(lease, "Coexist", notice);
    }

    /// Writes on our own Lease how we live with them: `evenkeel status` reads it there.
    async fn write_on_our_lease(&self, voice: &Voice<'_>) {
        let leases: Api<PartialObjectMeta<Lease>> =
            Api::namespaced(voice.client.clone(), voice.namespace);
        let mut changes = self.state.subscribe();
        loop {
            let known = reports(&changes.borrow_and_update());
            let mut pause = None;
            if let Some(reports) = known {
                let text = serde_json::to_string(&reports).unwrap_or_default();
                let patch =
                    json!({ "metadata": { "annotations": { annotation::COEXISTENCE: text } } });
                let patch = Patch::Merge(patch);
                let written = leases.patch(program::OPERATOR, &ours(), &patch).await;
                if let Err(error) = written {
                    tracing::warn!(
                        "cannot write the state of coexistence on the operator's Lease, will retry: {error}"
                    );
                    pause = Some(AGAIN);
                }
            }
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = triggers::after(pause) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_before_somebody_has_looked_and_each_half_is_idle_by_itself() {
        let neighbours = Neighbours::new(BTreeSet::new());
        assert!(neighbours.is_idle() && neighbours.is_idle_for_windows() && !neighbours.is_known());
        neighbours.set(Half::MachineConfig, Coexistence::Absent);
        assert!(!neighbours.is_idle() && neighbours.is_idle_for_windows());
        assert!(neighbours.is_known() && !neighbours.is_known_for_windows());
        assert_eq!(reports(&neighbours.state.borrow()), None);
        neighbours.set(Half::Windows, Coexistence::Alive);
        assert!(neighbours.is_idle_for_windows() && neighbours.is_known_for_windows());
        neighbours.set(Half::Windows, Coexistence::Lapsed);
        assert!(
            neighbours.is_idle_for_windows(),
            "a lapsed Lease is no invitation"
        );
        neighbours.set(Half::Windows, Coexistence::TakenOver);
        assert!(!neighbours.is_idle_for_windows());
        let reports = reports(&neighbours.state.borrow()).unwrap_or_default();
        let words: Vec<_> = reports
            .iter()
            .map(|(half, it)| (half.as_str(), it.state.as_str()))
            .collect();
        assert_eq!(
            words,
            [("machine-config", "absent"), ("windows", "taken-over")]
        );
    }
}

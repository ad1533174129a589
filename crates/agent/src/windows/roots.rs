//! The machine's trusted roots, kept at the cluster's bundle: what the cluster says of it, and what somebody
//! changes by hand.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_api::trust_bundle::TrustBundle;
use evenkeel_host::windows::Stopper;
use evenkeel_host::windows::trust::Synced;
use evenkeel_plan::entry::Hash;
use evenkeel_plan::trust::Published;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::worker::Key;
use crate::node_event::NodeEvent;

/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(30);
/// How many problems one Event names.
const SHOWN: usize = 5;

/// What is known of the bundle, and whether the store is to be looked at.
#[derive(Default)]
pub(crate) struct Roots {
    published: Option<Published>,
    /// The bundle has changed since it was looked at.
    is_new: bool,
    /// The store may have changed.
    is_due: bool,
    again_at: Option<Instant>,
    failed: Option<String>,
    _eye: Option<Eye>,
}

/// A thread that listens for changes of the store.
struct Eye {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Eye {
    fn drop(&mut self) {
        self.stopper.stop();
        if self.thread.take().is_some_and(|it| it.join().is_err()) {
            tracing::error!("the thread that watched trusted roots has panicked");
        }
    }
}

impl Roots {
    /// Roots that are watched from now on, if the system tells of them.
    pub(crate) fn watched(machine: &Arc<Machine>, keys: UnboundedSender<Key>) -> Self {
        let watch = || -> evenkeel_host::Result<Eye> {
            let mut watcher = machine.host.watch_roots()?;
            let stopper = watcher.stopper();
            let look = move || {
                while let Ok(true) = watcher.changed() {
                    // Without a worker there is nobody to tell.
                    if keys.send(Key::Roots).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("roots".to_owned());
            let thread = thread.spawn(look).map_err(|error| {
                evenkeel_host::Error::path("start", "a thread that watches", error)
            })?;
            Ok(Eye {
                stopper,
                thread: Some(thread),
            })
        };
        let eye = watch();
        if let Err(error) = &eye {
            tracing::warn!(
                "changes of trusted roots are not noticed: {}",
                error.with_causes()
            );
        }
        Self {
            _eye: eye.ok(),
            ..Self::default()
        }
    }

    /// The cluster has said this of its bundle.
    pub(crate) fn publish(&mut self, published: Published) {
        if self.published.as_ref() != Some(&published) {
            self.published = Some(published);
            (self.is_new, self.is_due) = (true, true);
        }
    }

    /// The store, or what decides about it, has changed.
    pub(crate) fn look(&mut self) {
        self.is_due = true;
    }

    /// What the store is to be brought to, if it is to be looked at.
    pub(crate) fn due(&self) -> Option<Published> {
        let is_again = self.again_at.is_some_and(|at| at <= Instant::now());
        let published = self.published.clone();
        published.filter(|_| self.is_due || is_again)
    }

    /// When it is tried again.
    pub(crate) fn again_in(&self) -> Option<Duration> {
        self.again_at
            .map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// It could not be done. Told once for each reason.
    pub(crate) fn failed(&mut self, words: String) -> Option<NodeEvent> {
        self.is_due = false;
        self.again_at = Some(Instant::now() + AGAIN);
        if self.failed.as_ref() == Some(&words) {
            return None;
        }
        self.failed = Some(words.clone());
        Some(NodeEvent::bad("CertificatesFailed", "Trust", words))
    }

    /// The store is as it should be; says what there is to tell.
    pub(crate) fn done(&mut self, synced: &Synced, bundle: &TrustBundle) -> Vec<NodeEvent> {
        let is_new = std::mem::take(&mut self.is_new);
        (self.is_due, self.again_at, self.failed) = (false, None, None);
        let mut tidings = Vec::new();
        if is_new && !bundle.problems.is_empty() {
            let count = bundle.problems.len();
            let words = first(bundle.problems.iter());
            tidings.push(NodeEvent::bad(
                "BundleBroken",
                "Trust",
                format!("{count} blocks of the trust bundle are no certificates, the others count: {words}"),
            ));
        }
        if is_new && !bundle.warnings.is_empty() {
            let words = first(bundle.warnings.iter());
            tidings.push(NodeEvent::bad("BundleDoubtful", "Trust", words));
        }
        if synced.added.is_empty() && synced.removed.is_empty() {
            return tidings;
        }
        tidings.push(if is_new {
            let (added, removed) = (synced.added.len(), synced.removed.len());
            NodeEvent::good(
                "CertificatesUpdated",
                "Trust",
                format!("trusted roots of the bundle: {added} came, {removed} of ours went"),
            )
        } else {
            let name = |hash: &Hash| {
                let mut all = bundle.certificates.iter();
                let known = all.find(|it| Hash::of(&it.der) == *hash);
                known.map_or_else(|| hash.to_string(), |it| it.subject.clone())
            };
            let came = synced
                .added
                .iter()
                .map(|it| format!("certificate {}: missing", name(it)));
            let went = synced
                .removed
                .iter()
                .map(|it| format!("certificate {}: should not be there", name(it)));
            NodeEvent::good(
                "DriftHealed",
                "Heal",
                format!("put back: {}", first(came.chain(went))),
            )
        });
        tidings
    }
}

/// The first few of them, and how many more there are.
fn first<T: ToString>(all: impl Iterator<Item = T>) -> String {
    let all: Vec<String> = all.map(|it| it.to_string()).collect();
    let more = all.len().saturating_sub(SHOWN);
    let words = all[..all.len() - more].join("; ");
    match more {
        0 => words,
        more => format!("{words}; and {more} more"),
    }
}

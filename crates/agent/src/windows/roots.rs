//! The machine's trusted roots, kept in step with the cluster's trust bundle: changes of the bundle, and changes that
//! somebody makes by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_api::windows::trust_bundle::TrustBundle;
use evenkeel_host::windows::trust::Synced;
use evenkeel_plan::listing::listed;
use evenkeel_plan::machine::entry::Hash;
use evenkeel_plan::windows::trust::Published;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::trigger::{Change, Trigger};
use crate::drift_watcher::DriftWatcher;
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
    _watch: Option<DriftWatcher>,
}

impl Roots {
    /// Roots that are watched from now on, if the system tells of them.
    pub(crate) fn watched(machine: &Arc<Machine>, triggers: UnboundedSender<Trigger>) -> Self {
        let watch = || -> evenkeel_host::Result<DriftWatcher> {
            let mut watcher = machine.host.watch_roots()?;
            let stopper = watcher.stopper();
            let look = move || {
                while let Ok(true) = watcher.changed() {
                    // Without a worker there is nobody to tell.
                    if triggers.send(Trigger::System(Change::Roots)).is_err() {
                        return;
                    }
                }
            };
            DriftWatcher::start("roots", move || stopper.stop(), look)
        };
        let watched = watch();
        if let Err(error) = &watched {
            tracing::warn!(
                "cannot watch the trusted roots for drift: {}",
                error.with_causes()
            );
        }
        Self {
            _watch: watched.ok(),
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

    /// It could not be done. There is one Event for each reason.
    pub(crate) fn failed(&mut self, words: String) -> Option<NodeEvent> {
        self.is_due = false;
        self.again_at = Some(Instant::now() + AGAIN);
        if self.failed.as_ref() == Some(&words) {
            return None;
        }
        self.failed = Some(words.clone());
        Some(NodeEvent::warning("CertificatesFailed", "Trust", words))
    }

    /// The store is as it should be, but for what it refused; returns the Events for it.
    pub(crate) fn done(&mut self, synced: &Synced, bundle: &TrustBundle) -> Vec<NodeEvent> {
        let is_new = std::mem::take(&mut self.is_new);
        let name = |hash: &Hash| {
            let mut all = bundle.certificates.iter();
            let known = all.find(|it| Hash::of(&it.der) == *hash);
            known.map_or_else(|| hash.to_string(), |it| it.subject.clone())
        };
        let mut notices = Vec::new();
        if synced.refused.is_empty() {
            (self.is_due, self.again_at, self.failed) = (false, None, None);
        } else {
            let refused = synced.refused.iter();
            let refused =
                refused.map(|it| format!("certificate {}: {}", name(&it.fingerprint), it.why));
            notices.extend(self.failed(listed(refused, SHOWN, "; ")));
        }
        if is_new && !bundle.problems.is_empty() {
            let count = bundle.problems.len();
            let words = listed(&bundle.problems, SHOWN, "; ");
            notices.push(NodeEvent::warning(
                "BundleBroken",
                "Trust",
                format!("{count} blocks of the trust bundle are ignored, because they are not certificates: {words}"),
            ));
        }
        if is_new && !bundle.warnings.is_empty() {
            let words = listed(&bundle.warnings, SHOWN, "; ");
            notices.push(NodeEvent::warning("BundleDoubtful", "Trust", words));
        }
        if synced.added.is_empty() && synced.removed.is_empty() {
            return notices;
        }
        notices.push(if is_new {
            let (added, removed) = (synced.added.len(), synced.removed.len());
            NodeEvent::normal(
                "CertificatesUpdated",
                "Trust",
                format!(
                    "trusted roots updated from the trust bundle: {added} added, {removed} removed"
                ),
            )
        } else {
            let came = synced
                .added
                .iter()
                .map(|it| format!("certificate {}: missing", name(it)));
            let went = synced
                .removed
                .iter()
                .map(|it| format!("certificate {}: should not be there", name(it)));
            NodeEvent::normal(
                "DriftHealed",
                "Heal",
                format!("healed drift of {}", listed(came.chain(went), SHOWN, "; ")),
            )
        });
        notices
    }
}

//! Objects of a kind that a cluster may learn late, or never: what is known of them, and whoever follows them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use evenkeel_daemon::Stop;
use futures::StreamExt;
use kube::Api;
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use tokio::sync::watch;

use crate::kinds::Kind;
use crate::store::is_unknown_kind;

/// What counts of an object.
pub(super) trait Observed: Clone + PartialEq {
    /// What it is called, and what counts of it.
    fn of(object: &DynamicObject) -> (String, Self);

    /// Whether what was heard before is newer: our own last word may be.
    fn is_newer_than(&self, _heard: &Self) -> bool {
        false
    }
}

/// All of them by what they are called.
pub(super) struct Followed<T> {
    all: RefCell<Option<BTreeMap<String, T>>>,
    changes: watch::Sender<()>,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self {
            all: RefCell::default(),
            changes: watch::Sender::default(),
        }
    }
}

impl<T: Observed> Followed<T> {
    /// Tells of every change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Looks at all of them; none if they are not known yet.
    pub(super) fn look<R>(&self, at: impl FnOnce(&BTreeMap<String, T>) -> R) -> Option<R> {
        self.all.borrow().as_ref().map(at)
    }

    pub(super) fn get(&self, name: &str) -> Option<T> {
        self.look(|all| all.get(name).cloned()).flatten()
    }

    /// Takes note of one.
    pub(super) fn put(&self, name: String, seen: T) {
        self.change(|all| _ = all.insert(name, seen));
    }

    /// Follows `what` until the program is asked to stop. While the cluster does not know the kind there are none.
    pub(super) async fn keep(
        &self,
        kind: &Kind,
        api: &Api<DynamicObject>,
        config: &watcher::Config,
        what: &str,
        stop: &Stop,
    ) {
        let lacking = || self.change(BTreeMap::clear);
        let follow = async || self.follow(api.clone(), config.clone(), what).await;
        tokio::select! {
            () = stop.stopped() => {}
            () = kind.follow(lacking, follow) => {}
        }
    }

    /// Follows them, as long as the cluster knows the kind.
    async fn follow(&self, api: Api<DynamicObject>, config: watcher::Config, what: &str) {
        let changes = watcher(api, config).default_backoff();
        let mut changes = std::pin::pin!(changes);
        let mut listed = BTreeMap::new();
        while let Some(change) = changes.next().await {
            match change {
                Ok(watcher::Event::Init) => listed = BTreeMap::new(),
                Ok(watcher::Event::InitApply(object)) => listed.extend([T::of(&object)]),
                Ok(watcher::Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    self.change(|all| *all = listed);
                }
                Ok(watcher::Event::Apply(object)) => {
                    let (name, seen) = T::of(&object);
                    let known = self.get(&name);
                    if !known.is_some_and(|it| it.is_newer_than(&seen)) {
                        self.put(name, seen);
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    self.change(|all| _ = all.remove(&T::of(&object).0));
                }
                Err(error) if is_unknown_kind(&error) => return self.change(BTreeMap::clear),
                Err(error) => tracing::warn!("cannot watch {what}, will retry: {error}"),
            }
        }
    }

    fn change(&self, how: impl FnOnce(&mut BTreeMap<String, T>)) {
        let before = self.all.borrow().clone();
        let mut after = before.clone().unwrap_or_default();
        how(&mut after);
        if before.as_ref() != Some(&after) {
            self.all.replace(Some(after));
            self.changes.send_replace(());
        }
    }
}

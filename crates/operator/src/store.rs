//! Objects that controllers look at together, each kind kept by one watch, and as narrow as decisions
//! need it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};

use evenkeel_daemon::panics::contain;
use evenkeel_daemon::{Check, Stop};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::{Notify, watch};

use crate::kinds::Kind;

/// Which object something is, and at which version.
pub(crate) struct Identity<'o> {
    pub(crate) name: &'o str,
    /// Which of all objects that ever had this name it is.
    pub(crate) uid: &'o str,
    pub(crate) version: &'o str,
}

impl Identity<'_> {
    /// How an Event names it.
    pub(crate) fn reference(&self, api_version: String, kind: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some(api_version),
            kind: Some(kind.to_owned()),
            name: Some(self.name.to_owned()),
            uid: Some(self.uid.to_owned()),
            ..ObjectReference::default()
        }
    }
}

/// An object as it was at one version.
pub(crate) trait Kept {
    /// Which one it is.
    fn identity(&self) -> Identity<'_>;
    /// Whether nothing that matters differs from another version of it.
    fn is_as(&self, other: &Self) -> bool;
}

/// All objects of one kind that we care for. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Store<T> {
    shared: Rc<StoreState<T>>,
}

#[derive(Debug)]
struct StoreState<T> {
    kept: RefCell<BTreeMap<String, T>>,
    is_listed: Cell<bool>,
    changes: watch::Sender<()>,
    followers: RefCell<Vec<Weak<Touched>>>,
}

/// The names of those of which there is something new: each once, however often it changes.
#[derive(Debug)]
pub(crate) struct Touched {
    names: RefCell<BTreeSet<String>>,
    more: Notify,
}

impl Touched {
    /// Waits until there is something new, and says of whom. A wait that is given up loses nothing.
    pub(crate) async fn take(&self) -> BTreeSet<String> {
        loop {
            let names = self.names.take();
            if !names.is_empty() {
                return names;
            }
            self.more.notified().await;
        }
    }
}

impl<T> StoreState<T> {
    /// Tells followers that there is something new about one of them.
    fn touch(&self, name: &str) {
        self.followers.borrow_mut().retain(|it| {
            let follower = it.upgrade();
            let is_there = follower.is_some();
            if let Some(follower) = follower {
                follower.names.borrow_mut().insert(name.to_owned());
                follower.more.notify_one();
            }
            is_there
        });
    }
}

impl<T: Kept> Store<T> {
    pub(crate) fn new() -> Self {
        Self {
            shared: Rc::new(StoreState {
                kept: RefCell::default(),
                is_listed: Cell::new(false),
                changes: watch::Sender::new(()),
                followers: RefCell::default(),
            }),
        }
    }

    /// Whether all objects are known that there were at some time.
    pub(crate) fn is_listed(&self) -> bool {
        self.shared.is_listed.get()
    }

    /// Tells of every change that matters from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// The name of every object of which there is anything new, be it a version that says the same; all
    /// that are known come first.
    pub(crate) fn follow(&self) -> Rc<Touched> {
        let known = self.shared.kept.borrow().keys().cloned().collect();
        let touched = Rc::new(Touched {
            names: RefCell::new(known),
            more: Notify::new(),
        });
        touched.more.notify_one();
        let mut followers = self.shared.followers.borrow_mut();
        followers.push(Rc::downgrade(&touched));
        drop(followers);
        touched
    }

    /// Looks at all of them, by name.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&BTreeMap<String, T>) -> R) -> R {
        look(&self.shared.kept.borrow())
    }

    /// Remembers an object unless a later version is known.
    pub(crate) fn put(&self, object: T) {
        let mut kept = self.shared.kept.borrow_mut();
        let name = object.identity().name.to_owned();
        let differs = match kept.get_mut(&name) {
            Some(known) if !is_older(known, &object) => return,
            Some(known) => {
                let differs =
                    known.identity().uid != object.identity().uid || !known.is_as(&object);
                *known = object;
                differs
            }
            None => {
                kept.insert(name.clone(), object);
                true
            }
        };
        drop(kept);
        self.shared.touch(&name);
        // Who decides before all are listed decides on half of them.
        if differs && self.is_listed() {
            self.shared.changes.send_replace(());
        }
    }

    /// Forgets an object, unless it is another one of that name by now.
    pub(crate) fn remove(&self, name: &str, uid: &str) {
        let mut kept = self.shared.kept.borrow_mut();
        if kept
            .get(name)
            .is_some_and(|known| known.identity().uid == uid)
        {
            kept.remove(name);
        }
        drop(kept);
        self.shared.touch(name);
        self.shared.changes.send_replace(());
    }

    fn listed(&self, names: &BTreeSet<String>) {
        let mut kept = self.shared.kept.borrow_mut();
        let gone: Vec<_> = kept
            .extract_if(.., |name, _| !names.contains(name))
            .collect();
        drop(kept);
        for (name, _) in gone {
            self.shared.touch(&name);
        }
        self.shared.is_listed.set(true);
        self.shared.changes.send_replace(());
    }

    /// Follows the changes of a watch, until the program is asked to stop. A kind that the cluster does not
    /// have is one without objects.
    pub(crate) async fn keep<K: Into<T> + Resource>(
        &self,
        what: &str,
        changes: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
        check: Check,
        stop: &Stop,
    ) {
        check.not_ready("not listed yet");
        let lacking = || {
            if !self.is_listed() {
                tracing::warn!(
                    "the cluster does not serve {what}: run kubectl apply -f deploy/crds"
                );
                self.lacks_kind(&check);
            }
            ControlFlow::Continue(())
        };
        tokio::select! {
            () = stop.stopped() => {}
            () = self.follow_changes(what, changes, &check, lacking) => {}
        }
    }

    /// The same for a kind that a cluster may well lack, with the watch to begin when it has it.
    pub(crate) async fn keep_if_known<K: Into<T> + Resource, S>(
        &self,
        what: &str,
        kind: &Kind,
        changes: impl Fn() -> S,
        check: Check,
        stop: &Stop,
    ) where
        S: Stream<Item = watcher::Result<watcher::Event<K>>>,
    {
        check.not_ready("not listed yet");
        let lacking = || {
            if !self.is_listed() {
                tracing::info!("the cluster does not serve {what}");
            }
            self.lacks_kind(&check);
        };
        let ends = || ControlFlow::Break(());
        let follow = async || {
            self.follow_changes(what, changes(), &check, ends).await;
        };
        tokio::select! {
            () = stop.stopped() => {}
            () = kind.follow(lacking, follow) => {}
        }
    }

    /// There is no such kind, so there are no objects.
    fn lacks_kind(&self, check: &Check) {
        self.listed(&BTreeSet::new());
        check.ready();
    }

    /// Remembers an object. One whose reading panics stays as it was known before.
    fn read<K: Into<T> + Resource>(&self, what: &str, object: K) {
        let name = object.meta().name.clone().unwrap_or_default();
        if let Some(object) = contain(what, &name, || object.into()) {
            self.put(object);
        }
    }

    /// Follows the changes of a watch; `lacking` says whether to go on where the cluster does not have the kind.
    async fn follow_changes<K: Into<T> + Resource>(
        &self,
        what: &str,
        changes: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
        check: &Check,
        lacking: impl Fn() -> ControlFlow<()>,
    ) {
        let changes = changes.default_backoff();
        let mut changes = std::pin::pin!(changes);
        let mut listed = BTreeSet::new();
        while let Some(change) = changes.next().await {
            match change {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    listed.insert(object.meta().name.clone().unwrap_or_default());
                    self.read(what, object);
                }
                Ok(watcher::Event::InitDone) => {
                    self.listed(&std::mem::take(&mut listed));
                    check.ready();
                }
                Ok(watcher::Event::Apply(object)) => self.read(what, object),
                Ok(watcher::Event::Delete(object)) => {
                    let meta = object.meta();
                    let text = |it: &Option<String>| it.clone().unwrap_or_default();
                    self.remove(&text(&meta.name), &text(&meta.uid));
                }
                Err(error) if is_unknown_kind(&error) => {
                    if lacking().is_break() {
                        return;
                    }
                }
                Err(error) => tracing::warn!("cannot watch {what}, will retry: {error}"),
            }
        }
    }
}

/// Whether the cluster does not have the kind that is watched.
pub(crate) fn is_unknown_kind(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// Whether `other` is a later version of the same object, or another object of the same name.
fn is_older<T: Kept>(known: &T, other: &T) -> bool {
    let number = |it: &T| it.identity().version.parse::<u64>().ok();
    known.identity().uid != other.identity().uid
        || match (number(known), number(other)) {
            (Some(mine), Some(theirs)) => mine < theirs,
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Thing(&'static str, &'static str, &'static str);

    impl Kept for Thing {
        fn identity(&self) -> Identity<'_> {
            Identity {
                name: "n1",
                uid: self.0,
                version: self.1,
            }
        }
        fn is_as(&self, other: &Self) -> bool {
            self.2 == other.2
        }
    }

    #[tokio::test]
    async fn whoever_follows_hears_each_name_once_and_all_that_were_there_first() {
        let store = Store::new();
        store.put(Thing("a", "1", "x"));
        let touched = store.follow();
        assert_eq!(touched.take().await, BTreeSet::from(["n1".to_owned()]));
        let nothing = std::time::Duration::from_millis(10);
        assert!(
            tokio::time::timeout(nothing, touched.take()).await.is_err(),
            "nothing is new"
        );
        // However often it changes while nobody listens, and also after a wait that was given up.
        for version in ["2", "3", "4"] {
            store.put(Thing("a", version, "y"));
        }
        assert_eq!(touched.take().await.len(), 1);
        drop(touched);
        store.put(Thing("a", "5", "z"));
        assert!(store.shared.followers.borrow().is_empty(), "nobody listens");
    }

    #[test]
    fn what_came_late_does_not_replace_what_is_newer_and_only_what_matters_is_news() {
        let store = Store::new();
        store.put(Thing("a", "9", "x"));
        store.listed(&BTreeSet::from(["n1".to_owned()]));
        let mut changes = store.changes();
        let mut put = |thing| {
            store.put(thing);
            let is_news = changes.has_changed().unwrap();
            changes.mark_unchanged();
            is_news
        };
        assert!(!put(Thing("a", "10", "x")), "nothing that matters");
        assert!(!put(Thing("a", "9", "y")), "older");
        assert!(put(Thing("a", "11", "y")));
        assert!(put(Thing("another", "3", "y")));
        store.remove("n1", "a");
        assert_eq!(store.look(BTreeMap::len), 1);
        store.listed(&BTreeSet::new());
        assert_eq!(store.look(BTreeMap::len), 0);
    }
}

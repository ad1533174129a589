//! Who starts a service again that ended by itself: whoever watches it here, else the manager; never both.
//!
//! A service of ours is made with failure actions, so that it comes back also where nobody watches. A watcher
//! takes them away for as long as it lives: its own pauses, and the order in which services start, would mean
//! nothing beside a manager that starts it after a second.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{Services, config, locked};

/// How many watchers each service has, by its name in small letters.
#[derive(Debug, Default)]
pub(super) struct Restarts(Mutex<BTreeMap<String, u32>>);

impl Restarts {
    /// Whether the manager is to start the service `name` again.
    pub(super) fn are_the_managers(&self, name: &str) -> bool {
        !locked(&self.0).contains_key(&name.to_lowercase())
    }

    /// One more watcher; whether it is the first.
    fn add(&self, name: &str) -> bool {
        let mut watched = locked(&self.0);
        let watchers = watched.entry(name.to_lowercase()).or_default();
        *watchers += 1;
        *watchers == 1
    }

    /// One watcher less; whether it was the last.
    fn take(&self, name: &str) -> bool {
        let mut watched = locked(&self.0);
        let name = name.to_lowercase();
        let Some(watchers) = watched.get_mut(&name) else {
            return false;
        };
        *watchers -= 1;
        let was_last = *watchers == 0;
        if was_last {
            watched.remove(&name);
        }
        was_last
    }
}

impl Services {
    /// From now on a watcher starts these services again, and the manager does not.
    pub(in crate::windows) fn take_restarts<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        for name in names {
            if self.restarts.add(name) {
                set(name, false);
            }
        }
    }

    /// A watcher ends; if it was the last one, the manager starts these services again from now on.
    pub(in crate::windows) fn give_restarts_back<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) {
        for name in names {
            if self.restarts.take(name) {
                set(name, true);
            }
        }
    }

    /// Does what ends a service by force: to the manager that is no failure.
    pub(super) fn without_restart<T>(&self, name: &str, end: impl FnOnce() -> T) -> T {
        let is_managers = self.restarts.are_the_managers(name);
        if is_managers {
            set(name, false);
        }
        let ended = end();
        if is_managers {
            set(name, true);
        }
        ended
    }
}

/// One that is not there, or not ours, has no failure actions of ours; one of ours that takes no change at this
/// moment gets it when it is put next. Until then two may start it, and the second finds it running.
fn set(name: &str, restarts: bool) {
    _ = config::set_restarts(name, restarts);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_the_watchers_until_the_last_one_ends() {
        let restarts = Restarts::default();
        assert!(restarts.are_the_managers("kubelet"));
        assert!(restarts.add("Kubelet"));
        assert!(!restarts.add("kubelet"));
        assert!(!restarts.take("kubelet"));
        assert!(!restarts.are_the_managers("KUBELET"));
        assert!(restarts.take("kubelet"));
        assert!(restarts.are_the_managers("kubelet"));
        assert!(!restarts.take("kubelet"));
    }
}

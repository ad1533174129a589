//! What becomes of the ConfigMap with the trust bundle: with a proxy it is there and asks to be filled in, without
//! one it goes if it is ours. What it says is never touched here: that is for the cluster, and for agents.

/// The ConfigMap, as it was seen.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and none excludes another"
)]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedBundle {
    /// Which of all objects that ever had this name it is.
    pub uid: String,
    /// Whether it is on its way out already.
    pub is_going: bool,
    /// Whether it asks to be filled in.
    pub asks: bool,
    /// Whether it has our mark.
    pub marked: bool,
    /// Whether a WindowsPool owns it.
    pub owned: bool,
    /// Whether there is anything in it.
    pub is_filled: bool,
}

impl ObservedBundle {
    /// Whether we made it. Somebody may have taken off one sign of that.
    pub fn is_our_map(&self) -> bool {
        self.marked || self.owned
    }
}

/// What is to be done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BundleAction {
    /// There is none: make it.
    Create,
    /// Write what it lacks of these, and touch nothing else.
    Mend {
        /// Which one.
        uid: String,
        /// It is to ask again.
        asks: bool,
        /// It is to have our mark again.
        mark: bool,
    },
    /// Nobody needs it any more: delete it.
    Remove {
        /// Which one.
        uid: String,
    },
}

/// Decides about `seen`. One that somebody else made asks to be filled in like ours, and is never removed.
pub fn decide(has_proxy: bool, seen: Option<&ObservedBundle>) -> Option<BundleAction> {
    match seen {
        None => has_proxy.then_some(BundleAction::Create),
        // The next one is made when it is gone.
        Some(seen) if seen.is_going => None,
        Some(seen) if !has_proxy => seen.is_our_map().then(|| BundleAction::Remove {
            uid: seen.uid.clone(),
        }),
        Some(seen) => {
            let mark = seen.is_our_map() && !seen.marked;
            (!seen.asks || mark).then(|| BundleAction::Mend {
                uid: seen.uid.clone(),
                asks: !seen.asks,
                mark,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> ObservedBundle {
        ObservedBundle {
            uid: "u".to_owned(),
            asks: true,
            marked: true,
            owned: true,
            ..ObservedBundle::default()
        }
    }

    /// Covers P04.
    #[test]
    fn with_a_proxy_it_is_there_and_asks_and_without_one_only_ours_goes() {
        let now = decide;
        assert_eq!(now(true, None), Some(BundleAction::Create));
        assert_eq!(now(false, None), None);
        assert_eq!(now(true, Some(&ours())), None);
        let uid = "u".to_owned();
        assert_eq!(
            now(false, Some(&ours())),
            Some(BundleAction::Remove { uid })
        );
        let theirs = ObservedBundle {
            marked: false,
            owned: false,
            ..ours()
        };
        assert_eq!(now(true, Some(&theirs)), None);
        assert_eq!(now(false, Some(&theirs)), None);
        let going = ObservedBundle {
            is_going: true,
            asks: false,
            ..ours()
        };
        assert_eq!(now(true, Some(&going)), None);
        assert_eq!(now(false, Some(&going)), None);
    }

    #[test]
    fn only_what_it_lacks_is_written() {
        let mend = |seen: &ObservedBundle| match decide(true, Some(seen)) {
            Some(BundleAction::Mend { asks, mark, .. }) => (asks, mark),
            other => panic!("{other:?}"),
        };
        let silent = ObservedBundle {
            asks: false,
            ..ours()
        };
        assert_eq!(mend(&silent), (true, false));
        let unmarked = ObservedBundle {
            marked: false,
            ..ours()
        };
        assert_eq!(mend(&unmarked), (false, true));
        let ownerless = ObservedBundle {
            owned: false,
            ..ours()
        };
        assert_eq!(decide(true, Some(&ownerless)), None);
        // One of somebody else's stays theirs.
        let theirs = ObservedBundle {
            marked: false,
            owned: false,
            asks: false,
            ..ours()
        };
        assert_eq!(mend(&theirs), (true, false));
    }
}

//! Where the names of instances lead. They are looked up in a task of their own: a name server that says
//! nothing delays nobody.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use evenkeel_plan::windows::instances::{FailureKind, InstanceFailure, PAUSES};
use tokio::sync::watch;

/// How long a name may take to be looked up.
const LOOK_UP: Duration = Duration::from_secs(5);
/// After so long it may lead elsewhere.
const AGAIN: Duration = Duration::from_mins(5);

type Addresses = Result<Vec<IpAddr>, InstanceFailure>;

/// What is known of names.
pub(crate) struct Names {
    known: RefCell<BTreeMap<String, Addresses>>,
    changes: watch::Sender<()>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            known: RefCell::default(),
            changes: watch::Sender::new(()),
        }
    }
}

impl Names {
    /// Looks up the names of the list, each on its own, for as long as there is a list.
    pub(crate) async fn keep<L>(
        &self,
        mut list: watch::Receiver<Option<L>>,
        names_of: impl Fn(&L) -> BTreeSet<String>,
    ) {
        loop {
            let names = list.borrow_and_update().as_ref().map(&names_of);
            let names: BTreeSet<String> = names.unwrap_or_default();
            self.known
                .borrow_mut()
                .retain(|name, _| names.contains(name));
            let all = names.iter().map(|name| self.follow(name));
            let all = async {
                futures::future::join_all(all).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = all => {}
                changed = list.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Where a name leads; none before anybody has answered.
    pub(crate) fn lead_to(&self, name: &str) -> Option<Addresses> {
        self.known.borrow().get(name).cloned()
    }

    /// Tells when a name leads elsewhere.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Looks a name up again and again. One that does not resolve is tried sooner.
    async fn follow(&self, name: &str) {
        let mut pauses = PAUSES;
        loop {
            let found = look_up(name).await;
            let rest = match &found {
                Ok(_) => {
                    pauses.reset();
                    AGAIN
                }
                Err(_) => pauses.next_pause(),
            };
            let before = self
                .known
                .borrow_mut()
                .insert(name.to_owned(), found.clone());
            if before.is_none_or(|it| it != found) {
                self.changes.send_replace(());
            }
            tokio::time::sleep(rest).await;
        }
    }
}

async fn look_up(name: &str) -> Addresses {
    let found = tokio::time::timeout(LOOK_UP, tokio::net::lookup_host((name, 22))).await;
    let why = match found {
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> = found.map(|it| it.ip()).collect();
            addresses.sort();
            addresses.dedup();
            if !addresses.is_empty() {
                return Ok(addresses);
            }
            "it has no address".to_owned()
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {}s", LOOK_UP.as_secs()),
    };
    Err(InstanceFailure::new(
        FailureKind::AddressUnknown,
        format!("its name does not resolve ({why}): correct it, or list the IP address instead"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::instances::list::List;

    #[tokio::test]
    async fn a_name_that_does_not_resolve_says_so() {
        let problem = look_up("nowhere.invalid").await.unwrap_err();
        assert_eq!(problem.category, FailureKind::AddressUnknown);
        assert!(
            problem.message.contains("list the IP address"),
            "{problem:?}"
        );
    }

    #[tokio::test]
    async fn a_name_is_unknown_until_somebody_answers_and_forgotten_when_it_is_not_listed() {
        let names = Names::default();
        let mut changes = names.changes();
        let (list, heard) = watch::channel(Some(List::of("localhost")));
        assert_eq!(names.lead_to("localhost"), None);
        let told = async {
            changes.changed().await.unwrap();
            let found = names.lead_to("localhost").unwrap().unwrap();
            assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
            list.send_replace(Some(List::default()));
            while names.lead_to("localhost").is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = names.keep(heard, List::names) => panic!("the list is still there"),
            () = told => {}
        }
    }
}

//! What a machine shall trust: the certificates of the cluster's bundle, besides those that were there.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::names::object;
use evenkeel_api::readiness::CertificateReport;
use evenkeel_api::windows::services::Services;
use evenkeel_api::windows::trust_bundle::{Certificate, TrustBundle};

use crate::machine::entry::Hash;
use crate::windows::proxy::ProxySettings;

/// What the cluster says of its bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// There is no ConfigMap.
    Nothing,
    /// There is one, and nobody has filled it in yet.
    Pending,
    /// This text.
    Text(String),
}

impl Published {
    /// What a ConfigMap with this data says; nothing if there is no ConfigMap.
    pub fn of(data: Option<BTreeMap<String, String>>) -> Self {
        let Some(mut data) = data else {
            return Self::Nothing;
        };
        let text = data.remove(object::TRUSTED_CA_FILE);
        match text.filter(|text| !text.trim().is_empty()) {
            Some(text) => Self::Text(text),
            None => Self::Pending,
        }
    }
}

/// What shall be ours in the store of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesiredTrust {
    /// What is there now: nobody knows better.
    AsItIs,
    /// These, and no others.
    Exactly(Vec<Certificate>),
}

/// Whether services run behind a proxy.
pub fn has_proxy(services: &Services) -> bool {
    ProxySettings::declared_in(services).has_proxy()
}

/// What shall be ours, and the bundle it comes from.
///
/// A bundle that is gone while there is a proxy was deleted by mistake, and comes back; without a proxy
/// nobody needs it any more. One that is empty waits to be filled in, and one of which nothing can be read
/// is no reason to trust nobody.
pub fn wanted(published: &Published, has_proxy: bool, now: i64) -> (DesiredTrust, TrustBundle) {
    match published {
        Published::Nothing if has_proxy => (DesiredTrust::AsItIs, TrustBundle::default()),
        Published::Nothing => (DesiredTrust::Exactly(Vec::new()), TrustBundle::default()),
        Published::Pending => (DesiredTrust::AsItIs, TrustBundle::default()),
        Published::Text(text) => {
            let bundle = TrustBundle::read("the trust bundle", text, now);
            let wanted = match bundle.certificates.as_slice() {
                [] => DesiredTrust::AsItIs,
                all => DesiredTrust::Exactly(all.to_vec()),
            };
            (wanted, bundle)
        }
    }
}

/// A certificate in the store of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// SHA-256 of the certificate.
    pub fingerprint: Hash,
    /// We brought it.
    pub is_our_root: bool,
}

/// How many certificates a store with `there` has, where `wanted` shall be in it.
pub fn count(wanted: &[Hash], there: &[Root]) -> CertificateReport {
    let ours = there.iter().filter(|root| root.is_our_root).count();
    CertificateReport {
        ours,
        missing: difference(wanted, there).add.len(),
        foreign: there.len() - ours,
    }
}

/// What must happen to a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// Certificates that must come, by their position among those that are wanted.
    pub add: Vec<usize>,
    /// Certificates of ours that must go.
    pub remove: BTreeSet<Hash>,
}

/// What makes exactly `wanted` be ours in a store with `there`: judged by what is really there. One that
/// somebody else brought is as good, and stays his.
pub fn difference(wanted: &[Hash], there: &[Root]) -> Difference {
    let all: BTreeSet<Hash> = wanted.iter().copied().collect();
    let ours = there.iter().filter(|root| root.is_our_root);
    let remove = ours.map(|root| root.fingerprint);
    let mut known: BTreeSet<Hash> = there.iter().map(|root| root.fingerprint).collect();
    Difference {
        add: (0..wanted.len())
            .filter(|at| known.insert(wanted[*at]))
            .collect(),
        remove: remove.filter(|it| !all.contains(it)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gone_pending_and_unreadable_are_three_different_things() {
        let what = |published: &Published, proxy| wanted(published, proxy, 0).0;
        let nothing = DesiredTrust::Exactly(Vec::new());
        assert_eq!(what(&Published::Nothing, false), nothing);
        assert_eq!(what(&Published::Nothing, true), DesiredTrust::AsItIs);
        for proxy in [false, true] {
            assert_eq!(what(&Published::Pending, proxy), DesiredTrust::AsItIs);
            let rubbish = Published::Text("rubbish".to_owned());
            assert_eq!(what(&rubbish, proxy), DesiredTrust::AsItIs);
        }
    }

    #[test]
    fn a_config_map_without_a_bundle_waits_to_be_filled_in() {
        let with = |key: &str, text: &str| Some([(key.to_owned(), text.to_owned())].into());
        assert_eq!(Published::of(None), Published::Nothing);
        assert_eq!(Published::of(Some(BTreeMap::new())), Published::Pending);
        assert_eq!(Published::of(with("other", "x")), Published::Pending);
        assert_eq!(
            Published::of(with("ca-bundle.crt", " \n")),
            Published::Pending
        );
        let text = Published::Text("x".to_owned());
        assert_eq!(Published::of(with("ca-bundle.crt", "x")), text);
    }

    fn store() -> impl Strategy<Value = (Vec<u8>, Vec<(u8, bool)>)> {
        (
            prop::collection::vec(0..12_u8, 0..12),
            prop::collection::vec((0..12_u8, any::<bool>()), 0..12),
        )
    }

    proptest! {
        #[test]
        fn afterwards_all_wanted_are_there_and_nothing_of_others_is_touched((wanted, there) in store()) {
            let hash = |it: u8| Hash::of(&[it]);
            let mut seen = BTreeSet::new();
            let there: Vec<Root> = there
                .into_iter()
                .filter(|(it, _)| seen.insert(*it))
                .map(|(it, is_our_root)| Root { fingerprint: hash(it), is_our_root })
                .collect();
            let wanted: Vec<Hash> = wanted.into_iter().map(hash).collect();
            let change = difference(&wanted, &there);
            let mut after: Vec<Root> = there
                .iter()
                .filter(|root| !change.remove.contains(&root.fingerprint))
                .cloned()
                .collect();
            after.extend(change.add.iter().map(|at| Root { fingerprint: wanted[*at], is_our_root: true }));
            for it in &wanted {
                prop_assert_eq!(after.iter().filter(|root| root.fingerprint == *it).count(), 1);
            }
            for root in &after {
                prop_assert!(!root.is_our_root || wanted.contains(&root.fingerprint));
            }
            for root in there.iter().filter(|root| !root.is_our_root) {
                prop_assert!(after.contains(root));
            }
            prop_assert_eq!(difference(&wanted, &after), Difference::default());
            let (before, now) = (count(&wanted, &there), count(&wanted, &after));
            prop_assert_eq!((before.missing, now.missing), (change.add.len(), 0));
            prop_assert_eq!(now.foreign, before.foreign);
            prop_assert_eq!(now.ours, before.ours + change.add.len() - change.remove.len());
        }
    }
}

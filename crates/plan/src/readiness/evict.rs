//! Whose pods go from a node that is not ready for long, and which of them stay.

use std::collections::BTreeMap;

use evenkeel_api::names::taint;
use jiff::Timestamp;

use crate::fleet::drain::{Attempt, Pod};

/// Whether a toleration with this key and operator tolerates our taint, whatever its effect.
pub fn is_tolerated_by(key: Option<&str>, operator: Option<&str>) -> bool {
    match key.filter(|it| !it.is_empty()) {
        Some(key) => key == taint::META_READINESS,
        None => operator == Some("Exists"),
    }
}

/// The pods of a node that are to be evicted now. A pod that tolerates the taint stays, and so does
/// whatever a drain leaves: pods of the machine itself, of a `DaemonSet`, and what is critical.
pub fn evict<'p>(
    pods: &'p [Pod],
    attempts: &BTreeMap<String, Attempt>,
    now: Timestamp,
) -> Vec<&'p Pod> {
    let goes = |pod: &&Pod| !pod.ending && !pod.tolerates_readiness && pod.stays().is_none();
    let is_due = |pod: &&Pod| attempts.get(&pod.uid).is_none_or(|it| it.is_over(now));
    pods.iter().filter(goes).filter(is_due).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::drain::Owner;

    /// Covers R14.
    #[test]
    fn who_tolerates_the_taint_stays_and_so_does_what_a_drain_leaves() {
        for (key, operator, tolerates) in [
            (Some(taint::META_READINESS), Some("Exists"), true),
            (Some(taint::META_READINESS), None, true),
            (None, Some("Exists"), true),
            (Some(""), Some("Exists"), true),
            (None, None, false),
            (Some("other"), Some("Exists"), false),
        ] {
            assert_eq!(is_tolerated_by(key, operator), tolerates, "{key:?}");
        }
        let pod = |uid: &str| Pod {
            uid: uid.to_owned(),
            ..Pod::default()
        };
        let pods = [
            pod("goes"),
            Pod {
                tolerates_readiness: true,
                ..pod("extension")
            },
            Pod {
                owner: Some(Owner {
                    kind: "DaemonSet".to_owned(),
                    ..Owner::default()
                }),
                ..pod("everywhere")
            },
            Pod {
                ending: true,
                ..pod("ending")
            },
        ];
        let chosen = |now| {
            let chosen = evict(&pods, &BTreeMap::new(), now);
            chosen.iter().map(|it| it.uid.clone()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(Timestamp::UNIX_EPOCH), ["goes"]);
    }
}

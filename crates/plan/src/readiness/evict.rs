//! Whose pods go from a node that is not ready for long, and which of them stay.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::names::taint;
use evenkeel_api::readiness::{RuleTaint, TaintEffect};
use jiff::Timestamp;

use crate::fleet::drain::{Attempt, Pod, Toleration};

/// Which pods are evicted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum EvictionState {
    /// None.
    #[default]
    No,
    /// Those that do not tolerate these taints.
    Running(BTreeSet<RuleTaint>),
    /// They are gone.
    Over(BTreeSet<RuleTaint>),
}

impl EvictionState {
    /// Whether pods that do not tolerate a taint are on their way, or gone.
    pub(super) fn covers(&self, taint: &RuleTaint) -> bool {
        self.taints().any(|it| it == taint)
    }

    /// What they would have to tolerate.
    pub(super) fn taints(&self) -> impl Iterator<Item = &RuleTaint> {
        let taints = match self {
            Self::No => None,
            Self::Running(taints) | Self::Over(taints) => Some(taints),
        };
        taints.into_iter().flatten()
    }
}

/// Whether a toleration with this key and operator tolerates our taint, whatever its effect.
pub fn is_tolerated_by(key: Option<&str>, operator: Option<&str>) -> bool {
    match key.filter(|it| !it.is_empty()) {
        Some(key) => key == taint::META_READINESS,
        None => operator == Some("Exists"),
    }
}

/// Whether a pod stays with one of its tolerations. Our shared taint is tolerated by its key alone, and so is one that only keeps
/// pods away; one that takes pods away is tolerated as Kubernetes has it.
fn tolerates(toleration: &Toleration, taint: &RuleTaint) -> bool {
    let is_any = toleration.operator.as_deref() == Some("Exists");
    let has_key = match toleration.key.as_deref().filter(|it| !it.is_empty()) {
        Some(key) => key == taint.key,
        None => is_any,
    };
    if taint.effect != TaintEffect::NoExecute {
        return has_key;
    }
    let effect = toleration.effect.as_deref().filter(|it| !it.is_empty());
    let value = toleration.value.as_deref().unwrap_or_default();
    has_key
        && effect.is_none_or(|it| it == taint.effect.as_str())
        && (is_any || value == taint.value)
}

/// The pods of a node that are to be evicted now. A pod that tolerates all of `taints` stays, and so does
/// whatever a drain leaves: pods of the machine itself, of a `DaemonSet`, and what is critical.
pub fn evict<'p>(
    pods: &'p [Pod],
    taints: &BTreeSet<RuleTaint>,
    attempts: &BTreeMap<String, Attempt>,
    now: Timestamp,
) -> Vec<&'p Pod> {
    let goes = |pod: &&Pod| !pod.is_ending() && goes(pod, taints);
    let is_due = |pod: &&Pod| attempts.get(&pod.uid).is_none_or(|it| it.is_over(now));
    pods.iter().filter(goes).filter(is_due).collect()
}

fn goes(pod: &Pod, taints: &BTreeSet<RuleTaint>) -> bool {
    let tolerates = |taint| pod.tolerations.iter().any(|it| tolerates(it, taint));
    !taints.iter().all(tolerates) && pod.stays().is_none()
}

/// Whether no pod is left that is to go, also none that is on its way.
pub fn are_gone(pods: &[Pod], taints: &BTreeSet<RuleTaint>) -> bool {
    !pods.iter().any(|it| goes(it, taints))
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
                tolerations: vec![Toleration {
                    key: Some(taint::META_READINESS.to_owned()),
                    operator: Some("Exists".to_owned()),
                    ..Toleration::default()
                }],
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
                ends: Some(jiff::Timestamp::UNIX_EPOCH),
                ..pod("ending")
            },
        ];
        let chosen = |now| {
            let taints = BTreeSet::from([RuleTaint::default()]);
            let chosen = evict(&pods, &taints, &BTreeMap::new(), now);
            chosen.iter().map(|it| it.uid.clone()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(Timestamp::UNIX_EPOCH), ["goes"]);
    }
}

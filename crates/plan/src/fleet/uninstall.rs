//! Taking ourselves off a Node: what is ours goes, what is anybody else's stays, and so does the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use evenkeel_api::names::{annotation, autoscaler, group, taint};
use evenkeel_api::readiness::AGENT_EXTENSION;

use crate::fleet::autoscaler_marks::is_listed;

/// What a Node carries, ours or not.
#[derive(Debug, Clone, Copy)]
pub struct Marks<'a> {
    /// Its annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The keys of its taints.
    pub taints: &'a [&'a str],
    /// Whether it is cordoned, by whomever.
    pub unschedulable: bool,
}

/// What is taken off a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Farewell {
    /// Whether a cordon of ours is lifted.
    pub uncordon: bool,
    /// The keys of taints of ours.
    pub taints: BTreeSet<String>,
    /// Annotations of ours.
    pub annotations: BTreeSet<String>,
}

impl Farewell {
    /// Whether nothing of ours is left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Farewell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if self.uncordon {
            parts.push("uncordon".to_owned());
        }
        if !self.taints.is_empty() {
            parts.push(format!("remove the taints {}", list(&self.taints)));
        }
        if !self.annotations.is_empty() {
            parts.push(format!(
                "remove the annotations {}",
                list(&self.annotations)
            ));
        }
        f.write_str(&parts.join("; "))
    }
}

/// What of a Node is ours. `beside_openshift`: its own machine-config operator is in the cluster, and
/// the annotations that both of us use are that one's.
///
/// A cordon is ours if it says so; one that does not is a person's. Annotations that OpenShift's
/// operator for Windows writes, too, are ours only on a node that also has one of our own; those of its
/// machine-config operator, which writes on no Windows node, too. The version that a Windows node runs stays:
/// so do its services and files, and whoever is installed next must know that it is not a new node.
pub fn farewell(marks: Marks<'_>, beside_openshift: bool) -> Farewell {
    let own = format!("{}/", group::EVENKEEL);
    let is_windows_of_ours = [annotation::DESIRED_SERVICES, annotation::CURRENT_SERVICES]
        .iter()
        .any(|name| marks.annotations.contains_key(*name));
    let held = marks.annotations.get(annotation::AUTOSCALER_ANNOTATIONS);
    let is_held_by_us = |name: &str| {
        let value = marks.annotations.get(name).map(String::as_str);
        autoscaler::ALL.contains(&name)
            && value == Some(autoscaler::HELD)
            && is_listed(held.map(String::as_str), name)
    };
    let is_our_annotation = |name: &str| {
        name.starts_with(&own)
            || is_held_by_us(name)
            || ((!beside_openshift || is_windows_of_ours)
                && annotation::OF_MACHINE_CONFIGS.contains(&name))
            || (is_windows_of_ours && name == annotation::WINDOWS_DESIRED_VERSION)
    };
    let annotations = marks
        .annotations
        .keys()
        .filter(|name| is_our_annotation(name));
    let listed = marks.annotations.get(annotation::READINESS_TAINTS);
    let listed = listed.map(String::as_str).unwrap_or_default().split(',');
    let listed: BTreeSet<_> = listed
        .filter_map(|it| Some(it.rsplit_once(':')?.0))
        .collect();
    let is_our_taint = |key: &&&str| taint::ALL.contains(*key) || listed.contains(**key);
    let taints = marks.taints.iter().filter(is_our_taint);
    Farewell {
        uncordon: marks.unschedulable && marks.annotations.contains_key(annotation::CORDONED_BY),
        taints: taints.map(ToString::to_string).collect(),
        annotations: annotations.cloned().collect(),
    }
}

/// Whether a Lease of the extensions' namespace is an agent's own: `<node>.evenkeel-agent`.
pub fn is_our_lease(name: &str) -> bool {
    let node = name.strip_suffix(AGENT_EXTENSION);
    node.and_then(|it| it.strip_suffix('.'))
        .is_some_and(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_lease_is_named_after_its_node() {
        for (name, is_ours) in [
            ("node-1.evenkeel-agent", true),
            ("node-1.example.com.evenkeel-agent", true),
            ("node-1.cni", false),
            ("node-1.not-evenkeel-agent", false),
            ("evenkeel-agent", false),
            (".evenkeel-agent", false),
            ("node-1.evenkeel-agent.cni", false),
        ] {
            assert_eq!(is_our_lease(name), is_ours, "{name}");
        }
    }

    fn said(
        annotations: &[&str],
        taints: &[&str],
        unschedulable: bool,
        beside_openshift: bool,
    ) -> String {
        let annotations = annotations
            .iter()
            .map(|name| ((*name).to_owned(), "x".to_owned()))
            .collect();
        let marks = Marks {
            annotations: &annotations,
            taints,
            unschedulable,
        };
        farewell(marks, beside_openshift).to_string()
    }

    /// Covers N11.
    #[test]
    fn of_the_annotations_for_autoscalers_only_those_go_that_are_ours() {
        let (ours, theirs) = (autoscaler::DO_NOT_DISRUPT, autoscaler::SCALE_DOWN_DISABLED);
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let listed = format!("{ours},{},evenkeel.device/x", autoscaler::DO_NOT_REPAIR);
        let annotations = BTreeMap::from([
            text(annotation::AUTOSCALER_ANNOTATIONS, &listed),
            text(ours, "true"),
            text(theirs, "true"),
            text(autoscaler::DO_NOT_REPAIR, "a person's word"),
            text("evenkeel.device/x", "true"),
        ]);
        let marks = Marks {
            annotations: &annotations,
            taints: &[],
            unschedulable: false,
        };
        let farewell = farewell(marks, false);
        assert_eq!(
            farewell.annotations,
            BTreeSet::from([annotation::AUTOSCALER_ANNOTATIONS, ours].map(str::to_owned))
        );
    }

    #[test]
    fn what_is_ours_goes_and_nothing_else() {
        let state = annotation::STATE;
        for (annotations, taints, cordoned, openshift, expected) in [
            (&[][..], &[][..], false, false, ""),
            (
                &["theirs", "evenkeel.device/x"],
                &["theirs"],
                true,
                false,
                "",
            ),
            (
                &[annotation::CORDONED_BY],
                &[],
                true,
                false,
                "uncordon; remove the annotations evenkeel.dev/cordoned-by",
            ),
            (
                &[annotation::CORDONED_BY],
                &[],
                false,
                false,
                "remove the annotations evenkeel.dev/cordoned-by",
            ),
            (
                &[],
                &["theirs", taint::META_READINESS],
                true,
                false,
                "remove the taints kubernetes.io/MetaReadiness",
            ),
            (
                &[state, "evenkeel.dev/new-one"],
                &[],
                false,
                false,
                "remove the annotations evenkeel.dev/new-one, machineconfiguration.openshift.io/state",
            ),
            (
                &[state, "evenkeel.dev/new-one"],
                &[],
                false,
                true,
                "remove the annotations evenkeel.dev/new-one",
            ),
            (&[annotation::WINDOWS_VERSION], &[], false, false, ""),
            (
                &[
                    annotation::WINDOWS_VERSION,
                    annotation::WINDOWS_DESIRED_VERSION,
                    annotation::CURRENT_SERVICES,
                ],
                &[],
                false,
                true,
                "remove the annotations evenkeel.dev/current-services, windowsmachineconfig.openshift.io/desired-version",
            ),
            (
                &[state, annotation::CURRENT_SERVICES],
                &[],
                false,
                true,
                "remove the annotations evenkeel.dev/current-services, machineconfiguration.openshift.io/state",
            ),
        ] {
            assert_eq!(
                said(annotations, taints, cordoned, openshift),
                expected,
                "{annotations:?} {taints:?}"
            );
        }
    }
}

//! What a Windows Node says about itself, and what it was told. What its agent does next is decided as
//! on Linux, with the hash of the services in the place of a configuration's name.

use std::collections::BTreeMap;

use evenkeel_api::names::{annotation, cordon};

use crate::node::Change;
use crate::phase::{Drain, Phase};

/// The services that a node is to run: their version, and the hash of their contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// As in the name of the ConfigMap.
    pub version: String,
    /// SHA-256 of its canonical contents.
    pub hash: String,
}

impl Told {
    /// What the annotations of the Node say; nothing before both are there.
    pub fn by(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let said = |name| annotations.get(name).filter(|it| !it.is_empty()).cloned();
        Some(Self {
            version: said(annotation::WINDOWS_DESIRED_VERSION)?,
            hash: said(annotation::DESIRED_SERVICES)?,
        })
    }
}

/// Whether pods were ever let on the node. Before that it needs no leave to be down.
pub fn has_served(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(annotation::WINDOWS_VERSION)
}

/// What is to be different on the Node in `phase`, where its services are `told`. A node that `gives_up`
/// its leave lets pods come back: it waits for somebody, and others shall not wait for it.
pub fn report(
    annotations: &BTreeMap<String, String>,
    phase: &Phase,
    told: Option<&Told>,
    missing_files: &[String],
    gives_up: bool,
) -> Change {
    let mut change = Change::default();
    let said = |name| annotations.get(name).map(String::as_str);
    let asked = said(annotation::DESIRED_DRAIN);
    let is_held = asked.is_some_and(|asked| asked.starts_with("drain-"));
    let mut wanted: Vec<(&'static str, Option<String>)> = Vec::new();
    let files =
        (!missing_files.is_empty()).then(|| serde_json::Value::from(missing_files).to_string());
    wanted.push((annotation::MISSING_FILES, files));
    match (phase, told) {
        (Phase::AwaitDrain { target, .. }, _) => {
            wanted.push((annotation::DESIRED_DRAIN, Some(Drain::request(target))));
        }
        (Phase::Degraded(_), Some(told)) if gives_up && is_held => {
            wanted.push((annotation::DESIRED_DRAIN, Some(Drain::release(&told.hash))));
        }
        (Phase::Done { config }, Some(told)) if *config == told.hash => {
            wanted.push((annotation::WINDOWS_VERSION, Some(told.version.clone())));
            wanted.push((annotation::CURRENT_SERVICES, Some(told.hash.clone())));
            if is_held {
                wanted.push((annotation::DESIRED_DRAIN, Some(Drain::release(config))));
            }
            if said(annotation::CORDONED_BY) == Some(cordon::AGENT) {
                change.unschedulable = Some(false);
                wanted.push((annotation::CORDONED_BY, None));
            }
        }
        _ => {}
    }
    for (name, value) in wanted {
        if said(name) != value.as_deref() {
            change.annotations.insert(name, value);
        }
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    #[test]
    fn a_node_that_is_done_says_its_version_and_takes_back_its_own_cordon_only() {
        let told = Told {
            version: "1.2.3-abc1234".to_owned(),
            hash: "h".to_owned(),
        };
        let done = Phase::Done {
            config: "h".to_owned(),
        };
        let ours = annotations(&[(annotation::CORDONED_BY, cordon::AGENT)]);
        let change = report(&ours, &done, Some(&told), &[], false);
        assert_eq!(change.unschedulable, Some(false));
        assert_eq!(change.annotations[annotation::CORDONED_BY], None);
        assert_eq!(
            change.annotations[annotation::WINDOWS_VERSION].as_deref(),
            Some("1.2.3-abc1234")
        );
        let theirs = annotations(&[
            (annotation::WINDOWS_VERSION, "1.2.3-abc1234"),
            (annotation::CURRENT_SERVICES, "h"),
        ]);
        assert!(report(&theirs, &done, Some(&told), &[], false).is_empty());
        let other = Phase::Done {
            config: "older".to_owned(),
        };
        assert!(report(&ours, &other, Some(&told), &[], false).is_empty());
    }

    #[test]
    fn a_drain_is_asked_for_and_given_back() {
        let told = Told {
            version: "1.2.3-abc1234".to_owned(),
            hash: "h".to_owned(),
        };
        let waits = Phase::AwaitDrain {
            target: "h".to_owned(),
            changes: String::new(),
        };
        let asked = report(
            &BTreeMap::new(),
            &waits,
            Some(&told),
            &["C:\\k\\x".to_owned()],
            false,
        );
        assert_eq!(
            asked.annotations[annotation::DESIRED_DRAIN].as_deref(),
            Some("drain-h")
        );
        assert_eq!(
            asked.annotations[annotation::MISSING_FILES].as_deref(),
            Some(r#"["C:\\k\\x"]"#)
        );
        let done = Phase::Done {
            config: "h".to_owned(),
        };
        let drained = annotations(&[(annotation::DESIRED_DRAIN, "drain-h")]);
        let back = report(&drained, &done, Some(&told), &[], false);
        assert_eq!(
            back.annotations[annotation::DESIRED_DRAIN].as_deref(),
            Some("uncordon-h")
        );
    }
}

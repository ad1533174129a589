//! What a Windows Node says about itself, and what it was told. What its agent does next is decided as
//! on Linux, with the hash of the services in the place of a configuration's name.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::names::{annotation, cordon};
use jiff::Timestamp;

use crate::fleet::node::NodePatch;
use crate::machine::Plan;
use crate::machine::phase::{Drain, Phase, Reason, Wanted};
use crate::machine::state;
use crate::windows::windows_pool::release::Grant;

/// Whether pods were ever let on the node. Before that it needs no permit to be down.
pub fn has_served(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(annotation::WINDOWS_VERSION)
}

/// When the login of a node's agent is renewed that holds from `begins` until `ends`: after seven to
/// nine tenths of that, for each node at another instant, so that a fleet does not come all at once.
pub fn renew_at(node: &str, begins: Timestamp, ends: Timestamp) -> Timestamp {
    let spread = node.bytes().fold(7_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    let thousandths = i64::try_from(700 + spread % 200).unwrap_or(700);
    let life = ends.as_second().saturating_sub(begins.as_second()).max(0);
    let after = life / 1000 * thousandths + life % 1000 * thousandths / 1000;
    let at = begins.as_second().saturating_add(after);
    Timestamp::from_second(at).unwrap_or(ends)
}

/// How long after a renewal failed it is tried again, where the login holds for `left`: often enough that a day's
/// trouble, or a minute's near the end, does not cost the login; and not so often that a fleet disturbs anybody. One
/// that has ended cannot be renewed: the operator brings another one.
pub fn renew_again_after(left: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_secs(30);
    match left {
        Duration::ZERO => LONGEST,
        left => (left / 10).clamp(Duration::from_secs(1), LONGEST),
    }
}

/// How far a node has come on its way to some services.
#[derive(Debug, Clone, Copy)]
pub struct ServicesProgress<'a> {
    /// The hash of the services.
    pub hash: &'a str,
    /// What leads there.
    pub plan: &'a Plan,
    /// The hash of those that it was brought to.
    pub current: Option<&'a str>,
    /// What nobody has yet, in words: values of variables, payload files.
    pub lacking: &'a [String],
    /// What was brought about and is not so now, in words.
    pub drifted: &'a [String],
    /// The node has said already that it runs these services.
    pub said: bool,
}

impl Reason {
    /// The category of services that do not all run yet.
    pub const NOT_UP: &str = "ServicesNotUp";
}

impl<'a> ServicesProgress<'a> {
    /// What the node shall be.
    ///
    /// What is there is brought about first; what is lacking is named only after that. A node says
    /// that it runs its services when all of them run. What drifts later takes that back from nobody.
    pub fn wanted(&self) -> Wanted<'a> {
        if !self.plan.steps.is_empty() || self.plan.record.config.as_deref() != self.current {
            return Wanted::Planned {
                name: self.hash,
                plan: self.plan,
            };
        }
        if !self.lacking.is_empty() {
            let text = self.lacking.join("; ");
            return Wanted::Unfit(Reason::new("ServicesIncomplete", text));
        }
        if !self.drifted.is_empty() && !self.said {
            let text = format!("not as declared yet: {}", self.drifted.join("; "));
            return Wanted::Unfit(Reason::new(Reason::NOT_UP, text));
        }
        Wanted::AsItIs
    }
}

/// What is to be different on the Node in `phase`, where it was told its `grant`. A node that `gives_up`
/// its permit lets pods come back: it waits for somebody, and others shall not wait for it.
pub fn report(
    annotations: &BTreeMap<String, String>,
    phase: &Phase,
    grant: Option<&Grant>,
    missing_files: &[String],
    gives_up: bool,
) -> NodePatch {
    let mut change = NodePatch::default();
    let said = |name| annotations.get(name).map(String::as_str);
    let asked = said(annotation::DESIRED_DRAIN);
    // What the operator asks for itself it takes back itself.
    let is_asked_for = asked.is_some_and(Drain::is_by_operator);
    let is_held = asked.is_some_and(Drain::is_request) && !is_asked_for;
    let mut wanted: Vec<(&'static str, Option<String>)> = Vec::new();
    let files =
        (!missing_files.is_empty()).then(|| serde_json::Value::from(missing_files).to_string());
    wanted.push((annotation::MISSING_FILES, files));
    if let Some(state) = state::of(phase) {
        wanted.push((annotation::STATE, Some(state.into())));
        let why = state::why(phase, None);
        let waits_for_pods = is_asked_for || matches!(phase, Phase::AwaitDrain { .. });
        if !state::may_stay(annotations, &why, waits_for_pods) {
            wanted.push((annotation::REASON, Some(why)));
        }
    }
    match (phase, grant) {
        (Phase::AwaitDrain { target, .. }, _) if !is_asked_for => {
            wanted.push((annotation::DESIRED_DRAIN, Some(Drain::request(target))));
        }
        (Phase::Degraded(_), _) if gives_up && is_held => {
            // Whatever stands there as its version.
            let hash = said(annotation::DESIRED_SERVICES).filter(|it| !it.is_empty());
            if let Some(hash) = hash {
                wanted.push((annotation::DESIRED_DRAIN, Some(Drain::release(hash))));
            }
        }
        (Phase::Done { config }, Some(grant)) if *config == grant.hash => {
            wanted.push((annotation::WINDOWS_VERSION, Some(grant.version.to_string())));
            wanted.push((annotation::CURRENT_SERVICES, Some(grant.hash.clone())));
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

    fn grant() -> Grant {
        Grant {
            version: "1.2.3-abc1234".parse().unwrap(),
            hash: "h".to_owned(),
        }
    }

    #[test]
    fn a_node_that_is_done_says_its_version_and_takes_back_its_own_cordon_only() {
        let grant = grant();
        let done = Phase::Done {
            config: "h".to_owned(),
        };
        let ours = annotations(&[(annotation::CORDONED_BY, cordon::AGENT)]);
        let change = report(&ours, &done, Some(&grant), &[], false);
        assert_eq!(change.unschedulable, Some(false));
        assert_eq!(change.annotations[annotation::CORDONED_BY], None);
        assert_eq!(
            change.annotations[annotation::WINDOWS_VERSION].as_deref(),
            Some("1.2.3-abc1234")
        );
        let theirs = annotations(&[
            (annotation::WINDOWS_VERSION, "1.2.3-abc1234"),
            (annotation::CURRENT_SERVICES, "h"),
            (annotation::STATE, "Done"),
        ]);
        assert!(report(&theirs, &done, Some(&grant), &[], false).is_empty());
        let other = Phase::Done {
            config: "older".to_owned(),
        };
        let change = report(&ours, &other, Some(&grant), &[], false);
        assert_eq!(change.unschedulable, None);
        assert_eq!(
            change.annotations,
            BTreeMap::from([(annotation::STATE, Some("Done".to_owned()))])
        );
    }

    #[test]
    fn a_node_says_why_it_cannot_go_on_and_takes_that_back() {
        let degraded = Phase::Degraded(Reason::new("ServicesNotUp", "network does not run"));
        let change = report(&BTreeMap::new(), &degraded, None, &[], false);
        let mut seen = annotations(&[]);
        for (name, value) in change.annotations {
            seen.insert(name.to_owned(), value.unwrap());
        }
        let said = annotations(&[
            (annotation::STATE, "Degraded"),
            (annotation::REASON, "network does not run"),
        ]);
        assert_eq!(seen, said);
        assert!(report(&seen, &degraded, None, &[], false).is_empty());
        let done = Phase::Done {
            config: "h".to_owned(),
        };
        let change = report(&seen, &done, None, &[], false);
        assert_eq!(
            change.annotations[annotation::STATE].as_deref(),
            Some("Done")
        );
        assert_eq!(change.annotations[annotation::REASON].as_deref(), Some(""));
        assert!(report(&seen, &Phase::Unmanaged, None, &[], false).is_empty());
    }

    #[test]
    fn what_the_operator_says_of_a_long_drain_stays_while_pods_are_waited_for() {
        let waits = Phase::AwaitDrain {
            target: "h".to_owned(),
            changes: "kubelet".to_owned(),
        };
        let late = "the drain takes longer than 1h: a/b";
        let seen = annotations(&[
            (annotation::STATE, "Working"),
            (annotation::REASON, late),
            (annotation::DRAIN_OVERDUE, late),
            (annotation::DESIRED_DRAIN, "drain-h"),
        ]);
        assert!(report(&seen, &waits, None, &[], false).is_empty());
        let applies = Phase::Apply {
            target: "h".to_owned(),
            changes: "kubelet".to_owned(),
        };
        let change = report(&seen, &applies, None, &[], false);
        assert_eq!(
            change.annotations[annotation::REASON].as_deref(),
            Some("updating to h: kubelet")
        );
    }

    #[test]
    fn a_login_is_renewed_in_good_time_and_not_by_all_nodes_at_once() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (begins, ends) = (at(1_000_000), at(1_000_000 + 31_536_000));
        let days: std::collections::BTreeSet<i64> = (0..200)
            .map(|node| {
                let due = renew_at(&format!("win-{node}"), begins, ends).as_second();
                assert!(due >= 1_000_000 + 31_536_000 / 10 * 7, "{due}");
                assert!(due < 1_000_000 + 31_536_000 / 10 * 9, "{due}");
                due / 86_400
            })
            .collect();
        assert!(days.len() > 30, "{days:?}");
        let second = Duration::from_secs;
        assert_eq!(renew_again_after(second(86_400)), second(30));
        assert_eq!(renew_again_after(second(25)), Duration::from_millis(2500));
        assert_eq!(renew_again_after(second(2)), second(1));
        assert_eq!(renew_again_after(second(0)), second(30));
        // One that never held is due at once.
        assert_eq!(renew_at("win", begins, begins), begins);
        assert_eq!(renew_at("win", ends, begins), ends);
    }

    #[test]
    fn what_is_there_comes_first_and_what_is_lacking_is_named_after_it() {
        let plan = |config: Option<&str>| Plan {
            changes: Vec::new(),
            steps: Vec::new(),
            actions: Vec::new(),
            record: crate::machine::record::Record {
                config: config.map(str::to_owned),
                ..crate::machine::record::Record::default()
            },
            warnings: Vec::new(),
            beyond: Vec::new(),
        };
        let whole = plan(Some("h"));
        let done = ServicesProgress {
            hash: "h",
            plan: &whole,
            current: Some("h"),
            lacking: &[],
            drifted: &[],
            said: false,
        };
        assert!(matches!(done.wanted(), Wanted::AsItIs));
        let current = Some("older");
        let under_way = ServicesProgress { current, ..done };
        assert!(matches!(
            under_way.wanted(),
            Wanted::Planned { name: "h", .. }
        ));
        let refusal = |progress: ServicesProgress<'_>| match progress.wanted() {
            Wanted::Unfit(reason) => (reason.category, reason.text),
            other => panic!("{other:?}"),
        };
        let lacking = &["service network: NODE_IP has no value".to_owned()];
        let drifted = &["service network: is stopped".to_owned()];
        let part = plan(None);
        let (category, text) = refusal(ServicesProgress {
            plan: &part,
            current: None,
            lacking,
            drifted,
            ..done
        });
        assert_eq!(category, "ServicesIncomplete");
        assert!(text.contains("NODE_IP"), "{text}");
        let down = ServicesProgress { drifted, ..done };
        let (category, text) = refusal(down);
        assert_eq!(category, "ServicesNotUp");
        assert!(text.contains("service network: is stopped"), "{text}");
        let said = true;
        assert!(matches!(
            ServicesProgress { said, ..down }.wanted(),
            Wanted::AsItIs
        ));
    }

    #[test]
    fn what_the_operator_asks_for_itself_is_not_taken_back_by_the_agent() {
        let grant = grant();
        let phases = [
            Phase::AwaitDrain {
                target: "h".to_owned(),
                changes: String::new(),
            },
            Phase::Done {
                config: "h".to_owned(),
            },
            Phase::Degraded(Reason::new("ServicesNotUp", "x")),
        ];
        let upgrade = Drain::for_upgrade("2.0.0-abc1234");
        for asked in [upgrade.as_str(), Drain::FOR_REMOVAL] {
            for phase in &phases {
                let held = annotations(&[(annotation::DESIRED_DRAIN, asked)]);
                let change = report(&held, phase, Some(&grant), &[], true);
                let drain = change.annotations.get(annotation::DESIRED_DRAIN);
                assert_eq!(drain, None, "{asked} {phase:?}");
            }
        }
    }

    #[test]
    fn what_the_operator_says_of_a_long_drain_for_an_upgrade_stays_too() {
        let done = Phase::Done {
            config: "h".to_owned(),
        };
        let late = "the drain takes longer than 1h: a/b";
        let mut seen = annotations(&[
            (annotation::STATE, "Done"),
            (annotation::REASON, late),
            (annotation::DRAIN_OVERDUE, late),
            (
                annotation::DESIRED_DRAIN,
                &Drain::for_upgrade("2.0.0-abc1234"),
            ),
        ]);
        assert!(report(&seen, &done, None, &[], false).is_empty());
        seen.remove(annotation::DESIRED_DRAIN);
        let change = report(&seen, &done, None, &[], false);
        assert_eq!(change.annotations[annotation::REASON].as_deref(), Some(""));
    }

    #[test]
    fn a_degraded_node_gives_its_permit_back_whatever_stands_there_as_its_version() {
        let degraded = Phase::Degraded(Reason::new("InvalidVersion", "x"));
        let mut seen = annotations(&[
            (annotation::DESIRED_DRAIN, "drain-h"),
            (annotation::DESIRED_SERVICES, "h"),
            (annotation::WINDOWS_DESIRED_VERSION, "rubbish"),
        ]);
        let read = Grant::of(&seen).unwrap();
        assert!(read.is_err(), "{read:?}");
        let drain = |change: &NodePatch| change.annotations.get(annotation::DESIRED_DRAIN).cloned();
        let change = report(&seen, &degraded, None, &[], true);
        assert_eq!(drain(&change), Some(Some("uncordon-h".to_owned())));
        assert_eq!(drain(&report(&seen, &degraded, None, &[], false)), None);
        seen.insert(
            annotation::WINDOWS_DESIRED_VERSION.to_owned(),
            "1.2.3-abc1234".to_owned(),
        );
        assert_eq!(Grant::of(&seen), Some(Ok(grant())));
        seen.remove(annotation::DESIRED_SERVICES);
        assert_eq!(Grant::of(&seen), None);
    }

    #[test]
    fn a_drain_is_asked_for_and_given_back() {
        let grant = grant();
        let waits = Phase::AwaitDrain {
            target: "h".to_owned(),
            changes: String::new(),
        };
        let asked = report(
            &BTreeMap::new(),
            &waits,
            Some(&grant),
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
        let back = report(&drained, &done, Some(&grant), &[], false);
        assert_eq!(
            back.annotations[annotation::DESIRED_DRAIN].as_deref(),
            Some("uncordon-h")
        );
    }
}

//! Rules that are about a node until it was ready once: what is written on the Node then, and read of it.
//!
//! A rule of ours is named with its uid, so that one that is made anew under the same name begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_api::names::annotation;
use evenkeel_api::readiness::{Enforcement, ReadinessRule, RuleOrigin};
use serde_json::json;

use super::gate::{Gate, Need};
use super::snapshot::NodeSnapshot;
use super::verdict::Verdict;

/// How many rules may be written on a Node; before a further one, those that nobody knows any more go.
const MANY: usize = 64;

impl NodeSnapshot {
    /// Whether a rule has nothing to do with it any more.
    pub(super) fn has_completed(&self, rule: &ReadinessRule) -> bool {
        if rule.enforcement != Enforcement::Bootstrap {
            return false;
        }
        match rule.origin {
            RuleOrigin::Evenkeel => self
                .completed_rules()
                .any(|(name, uid)| name == rule.name && uid == rule.uid),
            // Before it went by the uid it went by the name.
            RuleOrigin::Nrc => {
                let mut marks = self.completed_nrc.iter();
                marks.any(|it| **it == *rule.uid || **it == *rule.bare_name())
            }
        }
    }

    fn completed_rules(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.completed.as_deref().unwrap_or_default().split(',');
        all.filter_map(|it| it.split_once('='))
    }

    /// The annotations that say that it has done with `rules`, too; `knows` is whether there is a rule of a name.
    pub(super) fn with_completed<'r>(
        &self,
        rules: impl Iterator<Item = &'r ReadinessRule>,
        knows: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, String> {
        let mut marks = BTreeMap::new();
        let mut own: BTreeMap<&str, &str> = self.completed_rules().collect();
        let before = own.len();
        let mut is_other = false;
        for rule in rules {
            match rule.origin {
                RuleOrigin::Evenkeel => {
                    if own.len() >= MANY.max(before) {
                        own.retain(|name, _| knows(name));
                    }
                    own.insert(&rule.name, &rule.uid);
                    is_other = true;
                }
                RuleOrigin::Nrc => {
                    let name = format!("{}{}", annotation::NRC_BOOTSTRAP_COMPLETED, rule.uid);
                    let value = json!({ "rule-name": rule.bare_name() });
                    marks.insert(name, value.to_string());
                }
            }
        }
        if is_other {
            let all: Vec<_> = own
                .into_iter()
                .map(|(name, uid)| format!("{name}={uid}"))
                .collect();
            marks.insert(annotation::BOOTSTRAP_COMPLETED.to_owned(), all.join(","));
        }
        marks
    }
}

impl Gate {
    /// The bootstrap rules that have nothing to do with it any more: all that they ask for is healthy, and nothing of them is to come.
    pub(super) fn done_with(&self) -> BTreeSet<String> {
        if self.snapshot.has_permit {
            return BTreeSet::new();
        }
        let rules = self.acting().filter(|it| {
            it.enforcement == Enforcement::Bootstrap && !self.holds.contains_key(&it.name)
        });
        let is_healthy = |group: &[Need]| {
            let mut group = group.iter();
            group.any(|it| it.verdict == Verdict::Healthy)
        };
        let is_done = |rule: &&Rc<ReadinessRule>| {
            let of_rule = |it: &&[Need]| {
                it.first()
                    .is_some_and(|it| it.rule.name == rule.name && it.decides())
            };
            let mut groups = self.groups().filter(of_rule);
            !rule.extensions.is_empty() && groups.all(is_healthy)
        };
        rules.filter(is_done).map(|it| it.name.clone()).collect()
    }
}

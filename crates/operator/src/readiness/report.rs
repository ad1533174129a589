//! What is said about rules and nodes: the status of a rule, at most once a second and only when it
//! differs, and Events about what nobody can follow, once each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_api::readiness::{NrcStatus, RuleStatus, condition};
use evenkeel_daemon::Events;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::readiness::{Feed, Readiness, rule_conditions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::conditions::dated;
use crate::fleet::nodes::reference;

use crate::readiness::nrc::{NrcLeader, ObservedNrcRule};
use crate::readiness::rules::ObservedRule;
use crate::said::Said;

/// The status of a rule is written at most once in this time.
const PAUSE: Duration = Duration::from_secs(1);

/// The same of one that names more nodes than this many.
const LONG_PAUSE: Duration = Duration::from_secs(15);
const MANY: usize = 200;

/// What was said, and when. Whoever takes over does without.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    written: BTreeMap<String, Instant>,
    /// What was said about objects, by their uid.
    said: BTreeMap<String, Said>,
    /// Watches that do not work, with why.
    failing: BTreeMap<Feed, String>,
    /// Those whose objects may be watched and not read, with why.
    unread: BTreeMap<Feed, String>,
}

impl Reporter {
    /// A watch does not work. It is tried again and again, and told of once.
    pub(super) fn fails(&mut self, feed: Feed, why: String) {
        if self.failing.get(&feed) != Some(&why) {
            tracing::warn!("cannot watch {}, will retry: {why}", feed.describe());
            self.failing.insert(feed, why);
        }
    }

    pub(super) fn works(&mut self, feed: &Feed) {
        self.failing.remove(feed);
    }

    /// What is watched may not be read by itself.
    pub(super) fn fails_to_read(&mut self, feed: Feed, why: String) {
        if self.unread.get(&feed) != Some(&why) {
            tracing::warn!("cannot read {}, will retry: {why}", feed.describe());
            self.unread.insert(feed, why);
        }
    }

    pub(super) fn reads(&mut self, feed: &Feed) {
        self.unread.remove(feed);
    }

    /// What nobody watches any more does not fail.
    pub(super) fn forget_all_but(&mut self, watched: &BTreeSet<Feed>) {
        self.failing.retain(|feed, _| watched.contains(feed));
        self.unread.retain(|feed, _| watched.contains(feed));
    }

    /// The first watch that does not work of those that somebody goes by.
    fn failing(&self, goes_by: impl Fn(&Feed) -> bool) -> Option<(&Feed, &String)> {
        let mut failing = self.failing.iter().chain(&self.unread);
        failing.find(|(feed, _)| goes_by(feed))
    }

    /// What is to be written about a rule, if it differs from what was and it is time.
    pub(super) fn status(
        &mut self,
        seen: &ObservedRule,
        readiness: &Readiness,
    ) -> Option<RuleStatus> {
        let view = readiness.rule(&seen.name);
        let read = seen.rule.as_ref().map(|_| seen.warnings.as_slice());
        let failing = self.failing(|feed| readiness.goes_by(&seen.name, feed));
        let failing = failing.map(|(feed, why)| (feed, why.as_str()));
        let conditions = rule_conditions(read.map_err(String::as_str), failing, &view);
        let ours = [condition::VALID, condition::GUARDED, condition::SUSPENDED];
        let status = RuleStatus {
            observed_generation: seen.generation,
            conditions: dated(conditions, &seen.status.conditions, &ours),
            nodes: view.nodes,
            worst: view.worst,
        };
        if status == seen.status {
            return None;
        }
        let last = self.written.get(&seen.name);
        if last.is_some_and(|last| last.elapsed() < PAUSE) {
            return None;
        }
        self.written.insert(seen.name.clone(), Instant::now());
        Some(status)
    }

    /// What is to be written about a rule of node-readiness-controller, if it differs from what was and it is time. It names many
    /// nodes, and whatever has many is written less often.
    pub(super) fn nrc_status(
        &mut self,
        seen: &ObservedNrcRule,
        readiness: &Readiness,
        failed: &BTreeMap<String, String>,
    ) -> Option<NrcStatus> {
        let rule = seen.rule.as_ref().ok()?;
        let pause = if seen.status.applied_nodes.len() > MANY {
            LONG_PAUSE
        } else {
            PAUSE
        };
        let last = self.written.get(&seen.uid);
        if last.is_some_and(|last| last.elapsed() < pause) {
            return None;
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let of = (seen.uid.as_str(), seen.generation);
        let status = readiness.nrc_status(rule, of, &seen.status, failed, &now);
        if status == seen.status {
            return None;
        }
        self.written.insert(seen.uid.clone(), Instant::now());
        Some(status)
    }

    /// What is wrong with a rule of node-readiness-controller, or whose it is.
    pub(super) fn announce_theirs(
        &mut self,
        seen: &ObservedNrcRule,
        leader: &NrcLeader,
        events: &Events,
    ) {
        let problem = seen.rule.as_ref().err().cloned();
        self.tell(&seen.reference(), "InvalidConfig", problem, events);
        let left = match leader {
            NrcLeader::Leads(holder) => Some(format!(
                "node-readiness-controller leads ({holder}): Evenkeel leaves this rule to it"
            )),
            NrcLeader::Unknown | NrcLeader::Nobody => None,
        };
        self.tell(&seen.reference(), "LeftToOther", left, events);
    }

    /// What is wrong with a rule, or most likely not meant.
    pub(super) fn announce(&mut self, seen: &ObservedRule, events: &Events) {
        let problem = seen.rule.as_ref().err().cloned();
        self.tell(&seen.reference(), "InvalidConfig", problem, events);
        let warning = (!seen.warnings.is_empty()).then(|| seen.warnings.join("; "));
        self.tell(&seen.reference(), "DoubtfulRule", warning, events);
        let is_suspended = seen.rule.as_ref().is_ok_and(|it| it.suspend);
        let suspended = is_suspended.then(|| {
            "the rule is suspended: its taints stay as they are and no pods are evicted until it is resumed".to_owned()
        });
        self.tell(&seen.reference(), "RuleSuspended", suspended, events);
    }

    /// What is wrong with what tells of a node.
    pub(super) fn warn(&mut self, seen: &NodeFacts, readiness: &Readiness, events: &Events) {
        let problem = readiness.problem(&seen.node.name);
        self.tell(&reference(seen), "InvalidConfig", problem, events);
        let failing = self.failing(|feed| readiness.lists(&seen.node.name, feed));
        let failing = failing.map(|(feed, why)| {
            format!(
                "cannot watch {} of the node's own list: {why}",
                feed.describe()
            )
        });
        self.tell(&reference(seen), "CannotWatch", failing, events);
        let foreign = readiness.foreign(&seen.node.name);
        let foreign = foreign.first().map(|(lease, holder)| {
            format!("Lease {lease} is ignored: its holder {holder:?} is not on this node; set holderIdentity to {} or {}/NAME", seen.node.name, seen.node.name)
        });
        self.tell(&reference(seen), "ForeignLease", foreign, events);
    }

    fn tell(
        &mut self,
        object: &ObjectReference,
        category: &'static str,
        message: Option<String>,
        events: &Events,
    ) {
        let uid = object.uid.as_deref().unwrap_or_default();
        if message.is_none() && !self.said.contains_key(uid) {
            return;
        }
        let said = self.said.entry(uid.to_owned()).or_default();
        let notice = said.warning(category, message);
        if said.is_empty() {
            self.said.remove(uid);
        }
        if let Some(notice) = notice {
            events.notify(object.clone(), "Readiness", notice);
        }
    }
}

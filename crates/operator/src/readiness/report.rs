//! What is said about rules and nodes: the status of a rule, at most once a second and only when it
//! differs, and Events about what nobody can follow, once each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_api::fleet::machine_config_pool::Condition;
use evenkeel_api::readiness::{RuleStatus, condition};
use evenkeel_daemon::{Event, Events, Severity};
use evenkeel_plan::readiness::{Feed, Readiness};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::fleet::nodes::Seen;
use crate::readiness::rules::SeenRule;

/// The status of a rule is written at most once in this time.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a message of a condition may be.
const MESSAGE: usize = 400;

/// What was said, and when. Whoever takes over does without.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    written: BTreeMap<String, Instant>,
    /// What was said about an object, by its uid and what it is about.
    said: BTreeMap<(String, &'static str), String>,
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
    pub(super) fn status(&mut self, seen: &SeenRule, readiness: &Readiness) -> Option<RuleStatus> {
        let view = readiness.rule(&seen.name);
        let mut status = RuleStatus {
            observed_generation: seen.generation,
            nodes: view.nodes,
            worst: view.worst,
            conditions: Vec::new(),
        };
        let failing = self.failing(|feed| readiness.goes_by(&seen.name, feed));
        let (is_valid, reason, message) = match (&seen.rule, failing) {
            (Err(why), _) => ("False", "InvalidConfig", why.clone()),
            (Ok(_), Some((feed, why))) => (
                "True",
                "CannotWatch",
                format!("cannot watch {}: {why}", feed.describe()),
            ),
            (Ok(_), None) if !view.unclear.is_empty() => ("True", "CannotTell", view.unclear),
            (Ok(_), None) => ("True", "Followed", seen.warnings.join("; ")),
        };
        status
            .conditions
            .push(said(condition::VALID, is_valid, reason, &message));
        if view.guarded.is_empty() {
            status
                .conditions
                .push(said(condition::GUARDED, "False", "Calm", ""));
        } else {
            status
                .conditions
                .push(said(condition::GUARDED, "True", "Storm", &view.guarded));
        }
        since(&mut status, &seen.status);
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

    /// What is wrong with a rule, or most likely not meant.
    pub(super) fn announce(&mut self, seen: &SeenRule, events: &Events) {
        let problem = seen.rule.as_ref().err().cloned();
        self.tell(&seen.reference(), "InvalidConfig", problem, events);
        let warning = (!seen.warnings.is_empty()).then(|| seen.warnings.join("; "));
        self.tell(&seen.reference(), "DoubtfulRule", warning, events);
    }

    /// What is wrong with what tells of a node.
    pub(super) fn warn(&mut self, seen: &Seen, readiness: &Readiness, events: &Events) {
        let problem = readiness.problem(&seen.node.name);
        self.tell(&seen.reference(), "InvalidConfig", problem, events);
        let failing = self.failing(|feed| readiness.lists(&seen.node.name, feed));
        let failing = failing.map(|(feed, why)| {
            format!(
                "cannot watch {} of the node's own list: {why}",
                feed.describe()
            )
        });
        self.tell(&seen.reference(), "CannotWatch", failing, events);
        let foreign = readiness.foreign(&seen.node.name);
        let foreign = foreign.first().map(|(lease, holder)| {
            format!("Lease {lease} is ignored: its holder {holder:?} is not on this node; set holderIdentity to {} or {}/NAME", seen.node.name, seen.node.name)
        });
        self.tell(&seen.reference(), "ForeignLease", foreign, events);
    }

    fn tell(
        &mut self,
        object: &ObjectReference,
        reason: &'static str,
        note: Option<String>,
        events: &Events,
    ) {
        let key = (object.uid.clone().unwrap_or_default(), reason);
        let Some(note) = note else {
            if !self.said.is_empty() {
                self.said.remove(&key);
            }
            return;
        };
        if self.said.get(&key) == Some(&note) {
            return;
        }
        tracing::warn!(object = object.name, category = reason, "{note}");
        self.said.insert(key, note.clone());
        events.publish(Event {
            object: object.clone(),
            severity: Severity::Warning,
            reason: reason.to_owned(),
            action: "Readiness".to_owned(),
            note,
        });
    }
}

fn said(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        last_transition_time: None,
        reason: reason.to_owned(),
        message: message.chars().take(MESSAGE).collect(),
    }
}

/// Since when conditions are as they are.
fn since(status: &mut RuleStatus, before: &RuleStatus) {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for condition in &mut status.conditions {
        let mut same = before.conditions.iter();
        let same = same.find(|it| it.kind == condition.kind && it.status == condition.status);
        let since = same.and_then(|it| it.last_transition_time.clone());
        condition.last_transition_time = Some(since.unwrap_or_else(|| now.clone()));
    }
}

//! Readiness in `evenkeel status`: what the operator says of every rule, how many nodes of each zone are not
//! ready, what its limits hold back, and the worst few.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use evenkeel_api::readiness::{Worst, condition};
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::readiness::NodeSnapshot;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::output::Paint;
use crate::readiness::evidence::{self, Rule};
use crate::readiness::theirs::{TheirCount, TheirRule};
use crate::table::{lines, table};

/// How many nodes are named at most.
const WORST: usize = 10;

/// Nodes of one zone that a rule selects.
#[derive(Debug, Default, Clone, Copy)]
struct Zone {
    nodes: usize,
    not_ready: usize,
}

/// All rules of a cluster, and the zones of their nodes.
pub(crate) struct Rules {
    all: Vec<Rule>,
    /// Those of node-readiness-controller.
    theirs: Vec<TheirCount>,
    zones: BTreeMap<String, Zone>,
}

impl Rules {
    /// Reads them, for these nodes.
    pub(crate) async fn of(cluster: &Cluster, nodes: &[NodeFacts]) -> Result<Self> {
        let all = evidence::all_rules(cluster).await?;
        let mut zones: BTreeMap<String, Zone> = BTreeMap::new();
        for node in nodes.iter().map(NodeFacts::snapshot) {
            if all.iter().any(|rule| rule.is_about(&node)) {
                let zone = zones.entry(node.zone().to_owned()).or_default();
                zone.nodes += 1;
                zone.not_ready += usize::from(node.is_tainted() && node.owners.is_some());
            }
        }
        let theirs = TheirRule::all(cluster).await?.into_iter();
        let theirs = theirs.map(|it| TheirCount::of(it, nodes)).collect();
        Ok(Self { all, theirs, zones })
    }

    /// Whether every node that a rule selects is ready, and every rule is followed.
    pub(crate) fn are_well(&self) -> bool {
        let is_healthy = |rule: &Rule| {
            let nodes = rule.status.nodes;
            rule.problems().is_empty() && nodes.not_ready == 0 && nodes.held_back == 0
        };
        self.all.iter().all(is_healthy) && self.theirs.iter().all(TheirCount::is_well)
    }

    /// The worst few of all rules.
    fn worst(&self) -> impl Iterator<Item = (&Rule, &Worst)> {
        let all = self
            .all
            .iter()
            .flat_map(|rule| rule.status.worst.iter().map(move |it| (rule, it)));
        all.take(WORST)
    }

    /// For people; empty if there are no rules.
    pub(crate) fn text(&self, paint: Paint) -> String {
        if self.all.is_empty() && self.theirs.is_empty() {
            return String::new();
        }
        let head = ["RULE", "STATE", "READY", "EVICTING", "HELD BACK"];
        let mut rules = table(&head, paint);
        for rule in &self.all {
            let nodes = rule.status.nodes;
            rules.add_row([
                rule.name.clone(),
                rule.word().to_owned(),
                format!("{} of {}", nodes.ready, nodes.total),
                nodes.evicting.to_string(),
                nodes.held_back.to_string(),
            ]);
        }
        for theirs in &self.theirs {
            rules.add_row(theirs.row());
        }
        let mut text = format!("\n{}", lines(&rules));
        for rule in &self.all {
            for problem in rule.problems() {
                let _ = writeln!(text, "{} rule {}: {problem}", paint.red("!"), rule.name);
            }
            for note in rule.notes() {
                let _ = writeln!(text, "  rule {}: {note}", rule.name);
            }
        }
        for theirs in &self.theirs {
            if let Some(problem) = theirs.problem() {
                let _ = writeln!(text, "{} rule {}: {problem}", paint.red("!"), theirs.name());
            }
        }
        if self.zones.values().any(|it| it.not_ready > 0) {
            let mut zones = table(&["ZONE", "NOT READY"], paint);
            for (name, zone) in &self.zones {
                let name = if name.is_empty() { "(none)" } else { name };
                zones.add_row([
                    name.to_owned(),
                    format!("{} of {}", zone.not_ready, zone.nodes),
                ]);
            }
            let _ = write!(text, "\n{}", lines(&zones));
        }
        let mut worst = table(&["NODE", "RULE", "EXTENSION", "WHY"], paint);
        for (rule, it) in self.worst() {
            worst.add_row([&it.node, &rule.name, &it.extension, &it.why]);
        }
        if self.worst().next().is_some() {
            let _ = write!(text, "\n{}", lines(&worst));
            let named = self.worst().count();
            let all: u32 = self.all.iter().map(|it| it.status.nodes.not_ready).sum();
            let all = usize::try_from(all).unwrap_or(usize::MAX);
            let _ = match all.saturating_sub(named) {
                0 => Ok(()),
                more => writeln!(
                    text,
                    "and {more} more; run `evenkeel explain NODE` for the cause"
                ),
            };
        }
        text
    }

    /// For programs.
    pub(crate) fn document(&self) -> Value {
        let rules = self.all.iter().map(|rule| {
            json!({
                "rule": rule.name,
                "state": rule.word(),
                "nodes": rule.status.nodes,
                "worst": rule.status.worst,
                "problems": rule.problems(),
                "notes": rule.notes().collect::<Vec<_>>(),
            })
        });
        let zones = self.zones.iter().map(
            |(name, zone)| json!({ "zone": name, "nodes": zone.nodes, "notReady": zone.not_ready }),
        );
        let theirs = self.theirs.iter().map(TheirCount::document);
        let rules = rules.chain(theirs);
        json!({ "rules": rules.collect::<Vec<_>>(), "zones": zones.collect::<Vec<_>>() })
    }
}

impl Rule {
    fn is_about(&self, node: &NodeSnapshot) -> bool {
        let selector = self.spec.as_ref().map(|it| &it.node_selector);
        selector.is_ok_and(|it| it.matches(|name| node.labels.get(name)))
    }

    fn says(&self, kind: &str) -> Option<&evenkeel_api::fleet::machine_config_pool::Condition> {
        self.status.conditions.iter().find(|it| it.kind == kind)
    }

    /// Its state, in few words.
    fn word(&self) -> &'static str {
        let valid = self.says(condition::VALID);
        match &self.spec {
            Err(_) => "invalid",
            _ if self.status.observed_generation < self.generation => "not followed yet",
            _ if valid.is_some_and(|it| it.reason == "CannotWatch") => "cannot watch",
            _ if self.is_guarded() => "guarded",
            Ok(rule) if rule.dry_run => "dry run",
            Ok(rule) if rule.suspend => "suspended",
            Ok(_) => "followed",
        }
    }

    fn is_guarded(&self) -> bool {
        let guarded = self.says(condition::GUARDED);
        guarded.is_some_and(|it| it.status == "True")
    }

    /// What its owner may want to change though it is followed.
    fn notes(&self) -> impl Iterator<Item = &str> {
        let valid = self.says(condition::VALID);
        let undecided = valid.filter(|it| it.reason == "CannotTell");
        let suspended = self.says(condition::SUSPENDED);
        let suspended = suspended.filter(|it| it.status == "True");
        let notes = undecided.into_iter().chain(suspended);
        notes.map(|it| it.message.as_str())
    }

    /// What people should know of it.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match &self.spec {
            Err(why) => problems.push(why.clone()),
            Ok(_) if self.status.observed_generation < self.generation => {
                problems.push(
                    "the operator has not processed this rule yet: check that it runs".to_owned(),
                );
            }
            Ok(_) => {}
        }
        let valid = self.says(condition::VALID);
        problems.extend(
            valid
                .filter(|it| it.reason == "CannotWatch")
                .map(|it| it.message.clone()),
        );
        let guarded = self.says(condition::GUARDED);
        problems.extend(
            guarded
                .filter(|_| self.is_guarded())
                .map(|it| it.message.clone()),
        );
        problems
    }
}

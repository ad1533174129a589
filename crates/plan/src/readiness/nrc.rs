//! What is said of a rule of node-readiness-controller, in its own words, and when such a rule that is deleted has left all nodes.
//!
//! Its status names every node. An object may have 1.5 MiB, and the API server keeps beside every entry who wrote it; so of many
//! nodes those with the taint are named first, and as many others as there is room for.

use std::collections::BTreeMap;

use evenkeel_api::readiness::{
    Enforcement, NRC_DEFAULT, NRC_PREFIX, NrcDryRun, NrcEvaluation, NrcFailure, NrcResult, NrcRule,
    NrcStatus,
};

use super::Readiness;
use super::gate::Gate;
use super::snapshot::NodeSnapshot;

/// How many bytes the evaluations may take, with what the API server keeps beside them.
const EVALUATIONS: usize = 640 * 1024;
/// The same of the names of nodes.
const NAMES: usize = 320 * 1024;
/// The same of failures.
const FAILURES: usize = 64 * 1024;
/// How long a message may be.
const MESSAGE: usize = 1024;

impl Readiness {
    fn nrc_gates<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Gate> {
        self.gates.values().filter(move |gate| {
            let mut rules = gate.selected.iter();
            rules.any(|it| it.name.strip_prefix(NRC_PREFIX) == Some(name))
        })
    }

    /// Whether no node has the taint of a rule that is being deleted.
    pub fn has_left(&self, name: &str) -> bool {
        let has_taint = |gate: &Gate| {
            let mut rules = gate.selected.iter();
            let rule = rules.find(|it| it.name.strip_prefix(NRC_PREFIX) == Some(name));
            rule.is_some_and(|it| gate.snapshot.has_of(it))
        };
        !self.nrc_gates(name).any(has_taint)
    }

    /// The status of a rule at the time `now`, as text. `failed` says which nodes could not be written, and why; what is as it was
    /// `before` keeps its time.
    pub fn nrc_status(
        &self,
        rule: &NrcRule,
        (uid, generation): (&str, i64),
        before: &NrcStatus,
        failed: &BTreeMap<String, String>,
        now: &str,
    ) -> NrcStatus {
        let gates = || self.nrc_gates(&rule.name);
        let mut status = NrcStatus {
            observed_generation: generation,
            ..NrcStatus::default()
        };
        if rule.dry_run {
            status.dry_run_results = Some(dry_run(rule, gates().map(|it| &it.snapshot)));
            return status;
        }
        let rule_here = rule.to_rule(uid, false);
        let known = before.node_evaluations.iter();
        let known: BTreeMap<_, _> = known.map(|it| (it.node_name.as_str(), it)).collect();
        let mut names = Room::of(NAMES);
        let mut evaluations = Vec::new();
        for gate in gates() {
            let node = &gate.snapshot;
            if let Some(why) = failed.get(&node.name) {
                status.failed_nodes.push(failure(node, why, before, now));
            } else if names.takes(2 * node.name.len() + 16) {
                status.applied_nodes.push(node.name.clone());
            }
            let found = known.get(node.name.as_str());
            let is_done = rule.enforcement == Enforcement::Bootstrap
                && node.has_completed(&rule_here)
                && !node.has_of(&rule_here);
            evaluations.push(match found {
                // It looks no more at a node that has done with it.
                Some(found) if is_done && found.taint_status == "Absent" => (*found).clone(),
                _ => {
                    let mut evaluation = evaluate(rule, node, node.has_of(&rule_here));
                    let is_same = |it: &&&NrcEvaluation| {
                        it.condition_results == evaluation.condition_results
                            && it.taint_status == evaluation.taint_status
                    };
                    let since = found
                        .filter(is_same)
                        .map(|it| it.last_evaluation_time.clone());
                    evaluation.last_evaluation_time = since.unwrap_or_else(|| now.to_owned());
                    evaluation
                }
            });
        }
        // `Present` before `Absent`; who is named stays named as long as that does not change.
        evaluations.sort_by(|one, other| other.taint_status.cmp(&one.taint_status));
        let mut room = Room::of(EVALUATIONS);
        evaluations.retain(|it| room.takes(size(it)));
        evaluations.sort_by(|one, other| one.node_name.cmp(&other.node_name));
        status.node_evaluations = evaluations;
        let mut room = Room::of(FAILURES);
        let cost = |it: &NrcFailure| 2 * it.node_name.len() + it.message.len() + 200;
        status.failed_nodes.retain(|it| room.takes(cost(it)));
        status
    }
}

/// How much more may be said.
struct Room(usize);

impl Room {
    fn of(bytes: usize) -> Self {
        Self(bytes)
    }

    fn takes(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or_default();
        left.is_some()
    }
}

/// What an evaluation takes, with what the API server keeps beside it: who wrote each of its fields.
fn size(evaluation: &NrcEvaluation) -> usize {
    let results = evaluation.condition_results.iter();
    let results: usize = results.map(|it| 2 * it.kind.len() + 260).sum();
    2 * evaluation.node_name.len() + 240 + results
}

/// What a node says of a condition, if it has it.
fn said<'n>(node: &'n NodeSnapshot, kind: &str) -> Option<&'n str> {
    let found = node.conditions.iter().find(|it| *it.kind == *kind)?;
    let known = ["True", "False", NRC_DEFAULT];
    Some(
        known
            .into_iter()
            .find(|it| **it == *found.status)
            .unwrap_or(NRC_DEFAULT),
    )
}

fn evaluate(rule: &NrcRule, node: &NodeSnapshot, is_tainted: bool) -> NrcEvaluation {
    let results = rule.conditions.iter().map(|it| NrcResult {
        kind: it.kind.clone(),
        current_status: said(node, &it.kind).unwrap_or(NRC_DEFAULT).to_owned(),
        required_status: it.required.clone(),
        default_status: it.default.clone(),
    });
    NrcEvaluation {
        node_name: node.name.clone(),
        condition_results: results.collect(),
        taint_status: if is_tainted { "Present" } else { "Absent" }.to_owned(),
        last_evaluation_time: String::new(),
    }
}

fn failure(node: &NodeSnapshot, why: &str, before: &NrcStatus, now: &str) -> NrcFailure {
    let message: String = why.chars().take(MESSAGE).collect();
    let mut before = before.failed_nodes.iter();
    let before = before.find(|it| it.node_name == node.name && it.message == message);
    NrcFailure {
        node_name: node.name.clone(),
        reason: "EvaluationError".to_owned(),
        last_evaluation_time: before
            .map_or_else(|| now.to_owned(), |it| it.last_evaluation_time.clone()),
        message,
    }
}

fn dry_run<'n>(rule: &NrcRule, nodes: impl Iterator<Item = &'n NodeSnapshot>) -> NrcDryRun {
    let mut found = NrcDryRun::default();
    for node in nodes {
        found.affected_nodes += 1;
        let mut satisfied = rule.conditions.iter().map(|it| {
            let status = said(node, &it.kind).unwrap_or(&it.default);
            status == it.required
        });
        let is_well = if rule.any_of {
            satisfied.any(|it| it)
        } else {
            satisfied.all(|it| it)
        };
        match (is_well, node.has(&rule.taint)) {
            (true, true) => found.taints_to_remove += 1,
            (false, false) => found.taints_to_add += 1,
            _ => {}
        }
        let mut conditions = rule.conditions.iter();
        let is_risky = conditions.any(|it| said(node, &it.kind).is_none());
        found.risky_operations += u32::from(is_risky);
    }
    let parts = [
        (found.taints_to_add, "would add {} taints"),
        (found.taints_to_remove, "would remove {} taints"),
        (found.risky_operations, "{} nodes have missing conditions"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts
        .map(|(count, text)| text.replace("{}", &count.to_string()))
        .collect();
    found.summary = if parts.is_empty() {
        "No changes needed".to_owned()
    } else {
        parts.join(", ")
    };
    found
}

//! node-readiness-controller's `NodeReadinessRule`, as its users have it: read, understood as a rule, and written anew as one of ours.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::keys::NRC_RULE;
use super::read::read_selector;
use super::{
    Enforcement, Extension, KIND, ReadinessRule, RuleOrigin, RuleTaint, Selector, Source,
    TaintEffect, VERSION, rule_from_json,
};
use crate::located::{self, Node, Value as Found};
use crate::names::group;
use crate::problem::{At, Findings, Problems};
use crate::shape;

/// The group of its kind.
pub const NRC_GROUP: &str = "readiness.node.x-k8s.io";
/// What stands before the name of its rules, beside ours.
pub const NRC_PREFIX: &str = "nrc/";
/// Keeps one of its rules until its taint is off all nodes.
pub const NRC_FINALIZER: &str = "readiness.node.x-k8s.io/cleanup-taints";
/// The Lease of its leader, in whatever namespace it runs.
pub const NRC_LEASE: &str = "ba65f13e.readiness.node.x-k8s.io";
/// What a condition counts as that the Node does not have.
pub const NRC_DEFAULT: &str = "Unknown";

/// How long its conditions must be bad before `NoExecute` takes pods away: it says no time itself.
const AT_ONCE: Duration = Duration::from_secs(1);
const STATUSES: [&str; 3] = ["True", "False", NRC_DEFAULT];
const LONGEST_NAME: usize = 63;

/// One of its rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NrcRule {
    /// The object's name.
    pub name: String,
    /// The nodes that it is about.
    pub node_selector: Selector,
    /// What they must say.
    pub conditions: Vec<NrcCondition>,
    /// Whether one of these is enough.
    pub any_of: bool,
    /// The taint of a node that does not.
    pub taint: RuleTaint,
    /// For how long it is about a node.
    pub enforcement: Enforcement,
    /// Whether it only says what it would do.
    pub dry_run: bool,
    /// Its node selector and labels as they are written.
    written: (Value, Value),
}

/// A condition that it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NrcCondition {
    /// Its type.
    pub kind: String,
    /// The status that it must have.
    pub required: String,
    /// What counts where the Node does not have it.
    pub default: String,
}

impl NrcRule {
    /// Reads the rule `name` with this `spec`, as the API server has it.
    pub fn from_spec(name: &str, spec: &Value) -> Result<Self, Problems> {
        let mut findings = Findings::of(KIND);
        let object = json!({
            "apiVersion": format!("{NRC_GROUP}/{VERSION}"), "kind": KIND,
            "metadata": { "name": name }, "spec": spec,
        });
        let node = Node::from_json(&object);
        let rule = read(&node, &At::top(None), &mut findings);
        let (rule, _) = findings.finish(rule)?;
        Ok(rule)
    }

    /// All rules in a file: one or several documents, or a list as kubectl prints it.
    pub fn read_all(file: &str, bytes: &[u8]) -> Result<Vec<Self>, Problems> {
        let mut findings = Findings::of(file);
        let top = At::top(None);
        let mut rules = Vec::new();
        let parsed = located::text(bytes).map(Node::parse_all);
        match parsed {
            Err(message) => findings.problem(&top, message),
            Ok(Err(malformed)) => findings.problem(&At::top(malformed.line), malformed.message),
            Ok(Ok(nodes)) => {
                for node in nodes.iter().filter(|it| it.value != Found::Null) {
                    let at = At::top(Some(node.line));
                    let items = match node.text("kind") {
                        Some("List" | "NodeReadinessRuleList") => node.list("items"),
                        _ => std::slice::from_ref(node),
                    };
                    for item in items {
                        let is_theirs = item.text("apiVersion").is_some_and(|it| {
                            it.split_once('/')
                                .is_some_and(|(group, _)| group == NRC_GROUP)
                        });
                        if item.text("kind") == Some(KIND) && is_theirs {
                            rules.push(read(item, &at, &mut findings));
                        } else {
                            findings.problem(
                                &at,
                                format!("this is no {KIND} of {NRC_GROUP}: give a rule of node-readiness-controller"),
                            );
                        }
                    }
                }
                if rules.is_empty() && findings.count() == 0 {
                    findings.problem(&top, format!("the file has no {KIND} of {NRC_GROUP}"));
                }
            }
        }
        let (rules, _) = findings.finish(rules)?;
        Ok(rules)
    }

    /// The rule as it is decided on, beside ours. One that is `ending` asks for nothing and leaves nothing.
    pub fn to_rule(&self, uid: &str, ending: bool) -> ReadinessRule {
        let extension = |it: &NrcCondition, name: &str| Extension {
            name: name.to_owned(),
            affects_readiness: true,
            source: Source::Condition {
                kind: it.kind.clone(),
                status: it.required.clone(),
                freshness: Duration::ZERO,
                default_status: it.default.clone(),
            },
        };
        let conditions = self.conditions.iter();
        let extensions = match (ending, self.any_of) {
            (true, _) => Vec::new(),
            (false, false) => conditions.map(|it| extension(it, &it.kind)).collect(),
            (false, true) => {
                let choices = conditions.map(|it| extension(it, "conditions")).collect();
                vec![Extension {
                    name: "conditions".to_owned(),
                    affects_readiness: true,
                    source: Source::AnyOf(choices),
                }]
            }
        };
        ReadinessRule {
            name: format!("{NRC_PREFIX}{}", self.name),
            uid: uid.to_owned(),
            origin: RuleOrigin::Nrc,
            taint: self.taint.clone(),
            // Also from nodes that it is done with, its taint goes with it.
            enforcement: if ending {
                Enforcement::Continuous
            } else {
                self.enforcement
            },
            node_selector: self.node_selector.clone(),
            evict_after: match self.taint.effect {
                TaintEffect::NoExecute => AT_ONCE,
                TaintEffect::NoSchedule | TaintEffect::PreferNoSchedule => Duration::ZERO,
            },
            dry_run: self.dry_run && !ending,
            extensions,
            ..ReadinessRule::default()
        }
    }

    /// The same as a rule of ours, for a file, and what differs, for people.
    pub fn import(&self) -> Result<(Value, Vec<String>), Problems> {
        let condition = |it: &NrcCondition| {
            let mut condition = json!({ "type": it.kind });
            if it.required != "True" {
                condition["status"] = json!(it.required);
            }
            // Without it a node that has no such condition is not ready, as there, unless Unknown is what is asked for.
            if it.default != NRC_DEFAULT || it.required == NRC_DEFAULT {
                condition["defaultStatus"] = json!(it.default);
            }
            condition
        };
        let conditions = self.conditions.iter();
        let extensions: Vec<Value> = if self.any_of {
            let all: Vec<_> = conditions.map(condition).collect();
            vec![json!({ "name": "conditions", "anyOf": all })]
        } else {
            let mut names = BTreeSet::new();
            conditions
                .map(|it| json!({ "name": name_for(&it.kind, &mut names), "condition": condition(it) }))
                .collect()
        };
        let (selector, labels) = &self.written;
        let mut taint = self.taint.to_value();
        if self.taint.effect == TaintEffect::NoSchedule {
            taint.as_object_mut().map(|it| it.remove("effect"));
        }
        let mut spec = json!({ "nodeSelector": selector, "taint": taint });
        if self.enforcement == Enforcement::Bootstrap {
            spec["enforcement"] = json!("Bootstrap");
        }
        let evicts = self.taint.effect == TaintEffect::NoExecute;
        spec["evictAfter"] = json!(if evicts { "10s" } else { "0s" });
        if self.dry_run {
            spec["dryRun"] = json!(true);
        }
        spec["extensions"] = json!(extensions);
        let mut metadata = json!({ "name": self.name });
        if labels.as_object().is_some_and(|it| !it.is_empty()) {
            metadata["labels"] = labels.clone();
        }
        let rule = json!({
            "apiVersion": format!("{}/{VERSION}", group::EVENKEEL), "kind": KIND,
            "metadata": metadata, "spec": spec,
        });
        rule_from_json(&rule.to_string())?;
        Ok((rule, self.differences()))
    }

    fn differences(&self) -> Vec<String> {
        let mut all = vec![
            "after a reboot, a condition counts once its writer writes it again (or five minutes after the kubelet is back); there, it counts as it stands".to_owned(),
            "the operator also adds the taint when it reboots the node itself, before the node goes down".to_owned(),
        ];
        if self.enforcement == Enforcement::Bootstrap {
            all.push(format!("nodes that have completed it are judged once more: the annotation is evenkeel.dev/bootstrap-completed, not {}UID", crate::names::annotation::NRC_BOOTSTRAP_COMPLETED));
            // A reboot is no matter for a node that has completed it.
            all.swap(0, 2);
        }
        if self.taint.effect == TaintEffect::NoExecute {
            all.push("NoExecute: the taint is NoSchedule until the pods were evicted, after evictAfter (10s here) and within their budgets; there, it deletes them at once".to_owned());
        }
        all.push(
            "its status has counts and the worst few nodes instead of an entry for each node"
                .to_owned(),
        );
        all
    }
}

fn read(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> NrcRule {
    shape::check(node, &NRC_RULE, 0, at, findings);
    let metadata = node.get("metadata");
    let name = metadata.and_then(|it| it.text("name")).unwrap_or_default();
    if name.is_empty() {
        findings.problem(at, "metadata.name is missing: give the rule a name");
    }
    let labels = metadata.and_then(|it| it.get("labels"));
    let mut rule = NrcRule {
        name: name.to_owned(),
        ..NrcRule::default()
    };
    let Some(spec) = node.get("spec") else {
        return rule;
    };
    let here = at.key("spec", spec.line);
    let selector = spec.get("nodeSelector");
    rule.node_selector = read_selector(selector, &here, findings);
    rule.written = (written(selector), written(labels));
    rule.dry_run = spec.flag("dryRun").unwrap_or_default();
    let choice = |key: &str, words: [&str; 2], findings: &mut Findings| match spec.text(key) {
        None => false,
        Some(text) if text == words[1] => true,
        Some(text) if text == words[0] => false,
        Some(other) => {
            let message = format!(
                "{key} {other:?} is unknown: use {} or {}",
                words[0], words[1]
            );
            findings.problem(&here, message);
            false
        }
    };
    rule.any_of = choice("conditionPolicy", ["allOf", "anyOf"], findings);
    if choice(
        "enforcementMode",
        ["continuous", "bootstrap-only"],
        findings,
    ) {
        rule.enforcement = Enforcement::Bootstrap;
    }
    if let Some(taint) = spec.get("taint") {
        let text = |key: &str| taint.text(key).unwrap_or_default().to_owned();
        let effect = TaintEffect::parse(&text("effect"));
        if effect.is_none() {
            let message = format!("taint.effect {:?} is unknown", text("effect"));
            findings.problem(&here, message);
        }
        rule.taint = RuleTaint {
            key: text("key"),
            effect: effect.unwrap_or_default(),
            value: text("value"),
        };
        let refusal = rule.taint.refusal();
        let is_theirs = rule.taint.key.starts_with("readiness.k8s.io/");
        if let Some(refusal) = refusal.filter(|_| is_theirs) {
            findings.problem(&here, refusal);
        } else if !is_theirs {
            let message = format!(
                "taint.key {:?} does not begin with readiness.k8s.io/",
                rule.taint.key
            );
            findings.problem(&here, message);
        }
    }
    for item in spec.list("conditions") {
        let text = |key: &str| item.text(key).unwrap_or_default().to_owned();
        let condition = NrcCondition {
            kind: text("type"),
            required: text("requiredStatus"),
            default: match text("defaultStatus") {
                none if none.is_empty() => NRC_DEFAULT.to_owned(),
                default => default,
            },
        };
        for status in [&condition.required, &condition.default] {
            if !STATUSES.contains(&status.as_str()) {
                let message = format!(
                    "status {status:?} of condition {} is unknown",
                    condition.kind
                );
                findings.problem(&here, message);
            }
        }
        if rule.conditions.iter().any(|it| it.kind == condition.kind) {
            let message = format!("condition {} is listed twice: keep one", condition.kind);
            findings.problem(&here, message);
        }
        rule.conditions.push(condition);
    }
    if rule.conditions.is_empty() {
        findings.problem(&here, "conditions is empty: name at least one");
    }
    rule
}

/// What people wrote, of text, lists and objects.
fn written(node: Option<&Node<'_>>) -> Value {
    let Some(node) = node else { return json!({}) };
    if let Some(text) = node.as_text() {
        return json!(text);
    }
    if let Found::List(_) = &node.value {
        node.items().iter().map(|it| written(Some(it))).collect()
    } else {
        let entries = node.entries().iter();
        let entries = entries.map(|(key, value)| (key.to_string(), written(Some(value))));
        Value::Object(entries.collect::<Map<_, _>>())
    }
}

/// A name for an extension, of a condition's type: `example.com/CalicoReady` is `example.com-calico-ready`.
fn name_for(kind: &str, taken: &mut BTreeSet<String>) -> String {
    let mut name = String::new();
    let mut was_lower = false;
    for c in kind.chars() {
        match c {
            'A'..='Z' => {
                if was_lower {
                    name.push('-');
                }
                name.push(c.to_ascii_lowercase());
            }
            'a'..='z' | '0'..='9' | '.' => name.push(c),
            _ => name.push('-'),
        }
        was_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    let is_end = |c: char| c == '-' || c == '.';
    let mut name: String = name
        .trim_matches(is_end)
        .chars()
        .take(LONGEST_NAME - 3)
        .collect();
    name.truncate(name.trim_end_matches(is_end).len());
    if name.is_empty() {
        name.push_str("condition");
    }
    let first = name.clone();
    let mut number = 1;
    while !taken.insert(name.clone()) {
        number += 1;
        name.clone_from(&first);
        let _ = write!(name, "-{number}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_extension_follows_from_the_condition() {
        let mut taken = BTreeSet::new();
        for (kind, expected) in [
            ("CalicoReady", "calico-ready"),
            ("example.com/CalicoReady", "example.com-calico-ready"),
            ("Calico_Ready", "calico-ready-2"),
            ("calicoReady", "calico-ready-3"),
            ("-", "condition"),
            ("GPUReady", "gpuready"),
        ] {
            assert_eq!(name_for(kind, &mut taken), expected, "{kind}");
        }
        assert!(name_for(&"a.".repeat(150), &mut taken).len() <= LONGEST_NAME);
    }
}

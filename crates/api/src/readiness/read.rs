//! Reading of readiness rules, with every default filled in.

mod checks;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::keys::{EXTENSION, RULE};
use super::{
    AGENT_EXPIRY, AGENT_EXTENSION, EVICT_AFTER, Enforcement, Extension, KIND, LEAST_EXPIRY, NODE,
    Operator, ReadinessRule, Requirement, RuleOrigin, RuleTaint, Selector, Source, TaintEffect,
    VERSION,
};
use crate::duration;
use crate::located::Node;
use crate::names::group;
use crate::names::object::EXTENSIONS_NAMESPACE;
use crate::problem::{At, Findings, Problems, Warning};
use crate::shape;
use crate::shape::Shape::List;

const SOURCES: [&str; 6] = ["lease", "status", "pods", "condition", "anyOf", "probe"];
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];

/// Reads the node's own list, the annotation `evenkeel.dev/system-extensions`.
pub fn extensions_from_json(
    source: &str,
    text: &str,
) -> Result<(Vec<Extension>, Vec<Warning>), Problems> {
    let mut findings = Findings::of(source);
    let top = At::top(None);
    let mut extensions = Vec::new();
    match Node::parse_json(text, |_| 0) {
        Err(malformed) => findings.problem(&top, malformed.message),
        Ok(node) => {
            let list = top.key("extensions", 0);
            shape::check(&node, &List(&EXTENSION), 0, &list, &mut findings);
            extensions = read_extensions(node.items(), &list, &mut findings);
        }
    }
    findings.finish(extensions)
}

/// Reads a rule as the API server has it.
pub fn rule_from_json(text: &str) -> Result<(ReadinessRule, Vec<Warning>), Problems> {
    match Node::parse_json(text, |_| 0) {
        Err(malformed) => {
            let mut findings = Findings::of(KIND);
            findings.problem(&At::top(None), malformed.message);
            Err(findings.refused())
        }
        Ok(node) => read_whole(&node),
    }
}

/// Reads the rule `name` with this `spec`, as the API server has it.
pub fn rule_from_spec(name: &str, spec: &Value) -> Result<(ReadinessRule, Vec<Warning>), Problems> {
    read_whole(&Node::from_json(&json!({
        "apiVersion": format!("{}/{VERSION}", group::EVENKEEL),
        "kind": KIND,
        "metadata": { "name": name },
        "spec": spec,
    })))
}

fn read_whole(node: &Node<'_>) -> Result<(ReadinessRule, Vec<Warning>), Problems> {
    let mut findings = Findings::of(KIND);
    let top = At::top(None);
    shape::check(node, &RULE, 0, &top, &mut findings);
    let rule = read_rule(node, &top, &mut findings);
    if rule.is_none() && findings.count() == 0 {
        findings.problem(&top, "spec is missing");
    }
    let (rule, warnings) = findings.finish(rule)?;
    // Without a rule there was a problem, and the line above has returned.
    Ok((rule.unwrap_or_default(), warnings))
}

/// Reads a rule whose shape was checked against [`RULE`].
pub(crate) fn read_rule(
    node: &Node<'_>,
    at: &At<'_>,
    findings: &mut Findings,
) -> Option<ReadinessRule> {
    let name = node
        .get("metadata")
        .and_then(|metadata| metadata.text("name"))
        .unwrap_or_default();
    if name.is_empty() {
        findings.problem(at, "metadata.name is missing: give the rule a name");
    }
    let spec = node.get("spec")?;
    let here = at.key("spec", spec.line);
    let extensions = here.key(
        "extensions",
        spec.get("extensions").map_or(0, |list| list.line),
    );
    if spec
        .get("extensions")
        .is_some_and(|list| list.items().is_empty())
    {
        findings.problem(&extensions, "extensions is empty: name at least one");
    }
    let selector = here.key(
        "nodeSelector",
        spec.get("nodeSelector").map_or(0, |node| node.line),
    );
    let node_selector = read_selector(spec.get("nodeSelector"), &selector, findings);
    if node_selector == Selector::default() {
        findings.warning(
            &here,
            "nodeSelector selects every node, including the control plane: select the labels of the nodes that you mean",
        );
    }
    let evict_after = read_duration(spec, "evictAfter", EVICT_AFTER, &here, findings);
    let taint = read_taint(spec.get("taint"), &here, findings);
    if taint.effect == TaintEffect::NoExecute && evict_after.is_zero() {
        findings.problem(
            &here,
            "taint.effect NoExecute evicts pods, and evictAfter 0s never does: give evictAfter a time, or use NoSchedule",
        );
    }
    Some(ReadinessRule {
        name: name.to_owned(),
        uid: String::new(),
        origin: RuleOrigin::Evenkeel,
        taint,
        enforcement: read_enforcement(spec, &here, findings),
        node_selector,
        evict_after,
        dry_run: spec.flag("dryRun").unwrap_or_default(),
        suspend: spec.flag("suspend").unwrap_or_default(),
        publish_conditions: spec.flag("publishConditions").unwrap_or_default(),
        autoscaler_startup_taint: spec.flag("autoscalerStartupTaint").unwrap_or_default(),
        extensions: read_extensions(spec.list("extensions"), &extensions, findings),
    })
}

fn read_taint(node: Option<&Node<'_>>, at: &At<'_>, findings: &mut Findings) -> RuleTaint {
    let Some(node) = node else {
        return RuleTaint::default();
    };
    let text = |key: &str| node.text(key).unwrap_or_default().to_owned();
    let effect = match node.text("effect") {
        None => TaintEffect::default(),
        Some(text) => TaintEffect::parse(text).unwrap_or_else(|| {
            findings.problem(
                at,
                format!("taint.effect {text:?} is unknown: use NoSchedule, PreferNoSchedule or NoExecute"),
            );
            TaintEffect::default()
        }),
    };
    let taint = RuleTaint {
        key: text("key"),
        effect,
        value: text("value"),
    };
    if let Some(refusal) = taint.refusal() {
        findings.problem(at, refusal);
    }
    taint
}

fn read_enforcement(spec: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Enforcement {
    match spec.text("enforcement") {
        None | Some("Continuous") => Enforcement::Continuous,
        Some("Bootstrap") => Enforcement::Bootstrap,
        Some(other) => {
            findings.problem(
                at,
                format!("enforcement {other:?} is unknown: use Continuous or Bootstrap"),
            );
            Enforcement::Continuous
        }
    }
}

fn read_extensions(items: &[Node<'_>], at: &At<'_>, findings: &mut Findings) -> Vec<Extension> {
    let mut extensions = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let Some(name) = item.text("name") else {
            continue;
        };
        let here = at.index(index, item.line).called(name);
        if !is_name(name) {
            findings.problem(
                &here,
                format!("name {name:?} is invalid: use at most 63 lower-case letters, digits, dashes and dots"),
            );
        } else if !seen.insert(name) {
            findings.problem(&here, format!("extension {name} is listed twice: keep one"));
        }
        let source = match only_one(item, &SOURCES) {
            Ok((kind, node)) => read_source(kind, node, name, &here, findings),
            Err(message) => {
                findings.problem(&here, message);
                continue;
            }
        };
        let affects_readiness = item.flag("affectsReadiness").unwrap_or(true);
        let of = |source| Extension {
            name: name.to_owned(),
            affects_readiness,
            source,
        };
        let source = source.map(|source| match source {
            Source::AnyOf(choices) => {
                Source::AnyOf(choices.into_iter().map(|it| of(it.source)).collect())
            }
            source => source,
        });
        extensions.extend(source.map(of));
    }
    extensions
}

/// Whether it can be part of the name of a Lease and of a condition.
fn is_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.starts_with(is_inner)
        && name.ends_with(is_inner)
        && name.chars().all(|c| is_inner(c) || c == '-' || c == '.')
}

/// The one key of these that is there.
fn only_one<'n, 'a>(
    item: &'n Node<'a>,
    keys: &[&'static str],
) -> Result<(&'static str, &'n Node<'a>), String> {
    let found: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((*key, item.get(key)?)))
        .collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(format!(
            "none of {} is set: set exactly one",
            keys.join(", ")
        )),
        several => {
            let names: Vec<_> = several.iter().map(|(key, _)| *key).collect();
            Err(format!(
                "{} are set together: set exactly one",
                names.join(" and ")
            ))
        }
    }
}

fn read_source(
    kind: &str,
    node: &Node<'_>,
    extension: &str,
    at: &At<'_>,
    findings: &mut Findings,
) -> Option<Source> {
    let here = at.key(kind, node.line);
    let text = |key: &str, default: &str| {
        let given = node.text(key).filter(|text| !text.is_empty());
        given.unwrap_or(default).to_owned()
    };
    let mut time = |key: &str, default: u64| {
        read_duration(node, key, Duration::from_secs(default), &here, findings)
    };
    Some(match kind {
        "lease" => {
            let expiry = time("expiry", 10);
            let least = if extension == AGENT_EXTENSION {
                AGENT_EXPIRY
            } else {
                LEAST_EXPIRY
            };
            if expiry < least {
                findings.problem(
                    &here,
                    format!("expiry {expiry:?} is too short, three renewals must fit: give at least {least:?}"),
                );
            }
            let name = text("name", &format!("{NODE}.{extension}"));
            has_node(&name, &here, findings);
            Source::Lease {
                namespace: text("namespace", EXTENSIONS_NAMESPACE),
                name,
                expiry,
            }
        }
        "status" => {
            let name = text("name", NODE);
            has_node(&name, &here, findings);
            let lease = node.text("lease").filter(|it| !it.is_empty());
            if lease.is_some_and(|it| !is_path(it)) {
                findings.problem(
                    &here,
                    "lease is not a path: write for example .status.lease, or remove it to use the Lease of the same name",
                );
            }
            Source::Status {
                api_version: text("apiVersion", ""),
                kind: text("kind", ""),
                namespace: text("namespace", EXTENSIONS_NAMESPACE),
                name,
                lease: lease.map(str::to_owned),
            }
        }
        "pods" => Source::Pods {
            debounce: time("debounce", 0),
            namespace: text("namespace", ""),
            selector: read_selector(node.get("selector"), &here, findings),
        },
        "condition" => read_condition(node, &here, findings),
        "anyOf" => {
            let mut choices: Vec<Extension> = Vec::new();
            if node.items().is_empty() {
                findings.problem(&here, "anyOf is empty: name at least one condition");
            }
            for (index, item) in node.items().iter().enumerate() {
                let at = here.index(index, item.line);
                let source = read_condition(item, &at, findings);
                let kind = |source: &Source| match source {
                    Source::Condition { kind, .. } => kind.clone(),
                    _ => String::new(),
                };
                if choices.iter().any(|it| kind(&it.source) == kind(&source)) {
                    findings.problem(
                        &at,
                        format!("condition {} is listed twice: keep one", kind(&source)),
                    );
                }
                choices.push(Extension {
                    name: extension.to_owned(),
                    affects_readiness: true,
                    source,
                });
            }
            Source::AnyOf(choices)
        }
        _ => {
            let (period, timeout) = (time("period", 5), time("timeout", 1));
            if period.is_zero() || timeout.is_zero() {
                findings.problem(&here, "period and timeout of a probe must be above 0s");
            } else if timeout > period {
                findings.problem(
                    &here,
                    format!("timeout {timeout:?} is longer than period {period:?}: the next probe would start before the answer; shorten it"),
                );
            }
            let threshold = node.integer("failureThreshold").unwrap_or(3);
            let failure_threshold = u32::try_from(threshold).unwrap_or_default();
            if failure_threshold == 0 {
                findings.problem(
                    &here,
                    format!("failureThreshold {threshold} is invalid: use 1 or more"),
                );
            }
            Source::Probe {
                check: checks::read_check(node, &here, findings)?,
                period,
                timeout,
                failure_threshold,
            }
        }
    })
}

fn read_condition(node: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Source {
    let text = |key: &str| node.text(key).unwrap_or_default().to_owned();
    for key in ["status", "defaultStatus"] {
        let given = text(key);
        if !given.is_empty() && !STATUSES.contains(&given.as_str()) {
            findings.problem(
                at,
                format!("{key} {given:?} is unknown: use True, False or Unknown"),
            );
        }
    }
    let status = match text("status") {
        none if none.is_empty() => "True".to_owned(),
        status => status,
    };
    Source::Condition {
        kind: text("type"),
        status,
        freshness: read_duration(node, "freshness", Duration::ZERO, at, findings),
        default_status: text("defaultStatus"),
    }
}

/// What all nodes share is evidence for none.
fn has_node(name: &str, at: &At<'_>, findings: &mut Findings) {
    if !name.contains(NODE) {
        findings.problem(
            at,
            format!("name {name:?} is the same for all nodes: write {NODE} where the node's name belongs"),
        );
    }
}

/// Whether it leads to a place in an object: `.status.lease`.
fn is_path(text: &str) -> bool {
    let is_key =
        |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    text.strip_prefix('.')
        .is_some_and(|rest| rest.split('.').all(is_key))
}

fn read_duration(
    node: &Node<'_>,
    key: &str,
    default: Duration,
    at: &At<'_>,
    findings: &mut Findings,
) -> Duration {
    let Some(text) = node.text(key) else {
        return default;
    };
    duration::parse(text).unwrap_or_else(|message| {
        findings.problem(at, format!("{key} {message}"));
        default
    })
}

pub(super) fn read_selector(
    node: Option<&Node<'_>>,
    at: &At<'_>,
    findings: &mut Findings,
) -> Selector {
    let mut selector = Selector::default();
    let Some(node) = node else {
        return selector;
    };
    for (label, value) in node.get("matchLabels").map_or(&[][..], Node::entries) {
        if let Some(value) = value.as_text() {
            selector
                .match_labels
                .insert(label.to_string(), value.to_owned());
        }
    }
    for item in node.list("matchExpressions") {
        let (Some(key), Some(operator)) = (item.text("key"), item.text("operator")) else {
            continue;
        };
        let values: Vec<_> = item
            .list("values")
            .iter()
            .filter_map(Node::as_text)
            .map(str::to_owned)
            .collect();
        let (operator, takes_values) = match operator {
            "In" => (Operator::In, true),
            "NotIn" => (Operator::NotIn, true),
            "Exists" => (Operator::Exists, false),
            "DoesNotExist" => (Operator::DoesNotExist, false),
            other => {
                let message = format!(
                    "operator {other:?} of {key} is unknown: use In, NotIn, Exists or DoesNotExist"
                );
                findings.problem(at, message);
                continue;
            }
        };
        if values.is_empty() == takes_values {
            let need = if takes_values {
                "needs values"
            } else {
                "takes no values"
            };
            findings.problem(at, format!("operator {operator:?} of {key} {need}"));
        }
        selector.match_expressions.push(Requirement {
            key: key.to_owned(),
            operator,
            values,
        });
    }
    selector
}

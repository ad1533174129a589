//! Reading of readiness rules, with every default filled in.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Check, Extension, Operator, ReadinessRule, Requirement, Selector, Source};
use crate::duration;
use crate::located::Node;
use crate::names::object::EXTENSIONS_NAMESPACE;
use crate::problem::{At, Findings, Problems, Warning};
use crate::shape::Shape::{Anything, Flag, Integer, List, Text, Texts};
use crate::shape::{self, Shape, TEXTS, object, optional, required};

/// The whole object.
pub(crate) const RULE: Shape = object(
    "",
    &[
        required("apiVersion", &Text),
        required("kind", &Text),
        required("metadata", &Anything),
        required("spec", &SPEC),
        optional("status", &Anything),
    ],
);

/// A node that is not ready for this long loses its pods, unless its rule says otherwise.
const EVICT_AFTER: Duration = Duration::from_mins(5);

const SPEC: Shape = object(
    "",
    &[
        optional("nodeSelector", &SELECTOR),
        optional("evictAfter", &Text),
        optional("dryRun", &Flag),
        optional("publishConditions", &Flag),
        optional("autoscalerStartupTaint", &Flag),
        required("extensions", &List(&EXTENSION)),
    ],
);

const SELECTOR: Shape = object(
    "",
    &[
        optional("matchLabels", &Texts),
        optional("matchExpressions", &List(&REQUIREMENT)),
    ],
);

const REQUIREMENT: Shape = object(
    "key",
    &[
        required("key", &Text),
        required("operator", &Text),
        optional("values", &TEXTS),
    ],
);

const EXTENSION: Shape = object(
    "name",
    &[
        required("name", &Text),
        optional("affectsReadiness", &Flag),
        optional("lease", &LEASE),
        optional("status", &STATUS),
        optional("pods", &PODS),
        optional("condition", &CONDITION),
        optional("probe", &PROBE),
    ],
);

const LEASE: Shape = object(
    "",
    &[
        optional("namespace", &Text),
        optional("name", &Text),
        optional("expiry", &Text),
    ],
);

const STATUS: Shape = object(
    "",
    &[
        required("apiVersion", &Text),
        required("kind", &Text),
        optional("namespace", &Text),
        optional("name", &Text),
        optional("lease", &Text),
    ],
);

const PODS: Shape = object(
    "",
    &[
        required("namespace", &Text),
        required("selector", &SELECTOR),
        optional("debounce", &Text),
    ],
);

const CONDITION: Shape = object(
    "",
    &[
        required("type", &Text),
        optional("status", &Text),
        optional("freshness", &Text),
    ],
);

const PROBE: Shape = object(
    "",
    &[
        optional("httpGet", &HTTP_GET),
        optional("tcpSocket", &TCP_SOCKET),
        optional("grpc", &GRPC),
        optional("unixSocket", &UNIX_SOCKET),
        optional("service", &SERVICE),
        optional("period", &Text),
        optional("timeout", &Text),
        optional("failureThreshold", &Integer),
    ],
);

const HTTP_GET: Shape = object("", &[required("port", &Integer), optional("path", &Text)]);
const TCP_SOCKET: Shape = object("", &[required("port", &Integer)]);
const GRPC: Shape = object(
    "",
    &[required("port", &Integer), optional("service", &Text)],
);
const UNIX_SOCKET: Shape = object("", &[required("path", &Text)]);
const SERVICE: Shape = object("", &[required("name", &Text)]);

const SOURCES: [&str; 5] = ["lease", "status", "pods", "condition", "probe"];
const CHECKS: [&str; 5] = ["httpGet", "tcpSocket", "grpc", "unixSocket", "service"];

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
    Some(ReadinessRule {
        name: name.to_owned(),
        node_selector: read_selector(spec.get("nodeSelector"), &selector, findings),
        evict_after: read_duration(spec, "evictAfter", EVICT_AFTER, &here, findings),
        dry_run: spec.flag("dryRun").unwrap_or_default(),
        publish_conditions: spec.flag("publishConditions").unwrap_or_default(),
        autoscaler_startup_taint: spec.flag("autoscalerStartupTaint").unwrap_or_default(),
        extensions: read_extensions(spec.list("extensions"), &extensions, findings),
    })
}

fn read_extensions(items: &[Node<'_>], at: &At<'_>, findings: &mut Findings) -> Vec<Extension> {
    let mut extensions = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let Some(name) = item.text("name") else {
            continue;
        };
        let here = at.index(index, item.line).called(name);
        if name.is_empty() {
            findings.problem(&here, "name is empty: give one");
        } else if !seen.insert(name) {
            findings.problem(
                &here,
                format!("the extension {name} is there twice: keep one"),
            );
        }
        let source = match only_one(item, &SOURCES) {
            Ok((kind, node)) => read_source(kind, node, name, &here, findings),
            Err(message) => {
                findings.problem(&here, message);
                continue;
            }
        };
        extensions.extend(source.map(|source| Extension {
            name: name.to_owned(),
            affects_readiness: item.flag("affectsReadiness").unwrap_or(true),
            source,
        }));
    }
    extensions
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
            "it has none of {}: give exactly one",
            keys.join(", ")
        )),
        several => {
            let names: Vec<_> = several.iter().map(|(key, _)| *key).collect();
            Err(format!(
                "it has {} together: give exactly one",
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
        "lease" => Source::Lease {
            namespace: text("namespace", EXTENSIONS_NAMESPACE),
            name: text("name", &format!("{{node}}.{extension}")),
            expiry: time("expiry", 10),
        },
        "status" => Source::Status {
            api_version: text("apiVersion", ""),
            kind: text("kind", ""),
            namespace: text("namespace", EXTENSIONS_NAMESPACE),
            name: text("name", "{node}"),
            lease: node.text("lease").map(str::to_owned),
        },
        "pods" => Source::Pods {
            debounce: time("debounce", 0),
            namespace: text("namespace", ""),
            selector: read_selector(node.get("selector"), &here, findings),
        },
        "condition" => Source::Condition {
            kind: text("type", ""),
            status: text("status", "True"),
            freshness: time("freshness", 0),
        },
        _ => {
            let (period, timeout) = (time("period", 5), time("timeout", 1));
            if period.is_zero() || timeout.is_zero() {
                findings.problem(&here, "probe needs a period and a timeout above 0s");
            }
            let threshold = node.integer("failureThreshold").unwrap_or(3);
            let failure_threshold = u32::try_from(threshold).unwrap_or_default();
            if failure_threshold == 0 {
                findings.problem(
                    &here,
                    format!("failureThreshold {threshold} is not possible: give 1 or more"),
                );
            }
            Source::Probe {
                check: read_check(node, &here, findings)?,
                period,
                timeout,
                failure_threshold,
            }
        }
    })
}

fn read_check(probe: &Node<'_>, at: &At<'_>, findings: &mut Findings) -> Option<Check> {
    let (kind, node) = only_one(probe, &CHECKS)
        .map_err(|message| findings.problem(at, message))
        .ok()?;
    let here = at.key(kind, node.line);
    let text = |key: &str, default: &str| node.text(key).unwrap_or(default).to_owned();
    let mut port = || {
        let port = node.integer("port")?;
        let valid = u16::try_from(port).ok().filter(|port| *port > 0);
        if valid.is_none() {
            findings.problem(&here, format!("port {port} is no port: give 1 to 65535"));
        }
        valid
    };
    Some(match kind {
        "httpGet" => Check::HttpGet {
            port: port()?,
            path: text("path", "/"),
        },
        "tcpSocket" => Check::TcpSocket { port: port()? },
        "grpc" => Check::Grpc {
            port: port()?,
            service: text("service", ""),
        },
        "unixSocket" => Check::UnixSocket {
            path: text("path", ""),
        },
        _ => Check::Service {
            name: text("name", ""),
        },
    })
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

fn read_selector(node: Option<&Node<'_>>, at: &At<'_>, findings: &mut Findings) -> Selector {
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
                    "operator {other:?} of {key} is not known: use In, NotIn, Exists or DoesNotExist"
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

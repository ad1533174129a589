//! Readiness rules and the node's own list of extensions.
#![allow(clippy::panic)] // In a test, a panic is the report.

use std::time::Duration;

use evenkeel_api::document::{self, Document};
use evenkeel_api::readiness::{Check, ReadinessRule, Source, extensions_from_json, rule_from_json};

fn rule(spec: &str) -> String {
    format!(
        "apiVersion: evenkeel.dev/v1alpha1\nkind: NodeReadinessRule\nmetadata: {{name: gpu}}\nspec:\n{spec}\n"
    )
}

fn read(spec: &str) -> ReadinessRule {
    let (documents, _) = match document::read("rule.yaml", rule(spec).as_bytes()) {
        Ok(read) => read,
        Err(problems) => panic!("{problems}"),
    };
    let [Document::ReadinessRule(rule)] = documents.as_slice() else {
        panic!("{documents:?}");
    };
    rule.clone()
}

#[test]
fn a_rule_is_read_with_its_defaults() {
    let rule = read(
        r#"
  nodeSelector: {matchLabels: {pool: gpu}}
  evictAfter: 5m
  extensions:
  - {name: a, lease: {}}
  - {name: b, status: {apiVersion: example.com/v1, kind: Plugin, lease: ".lease"}, affectsReadiness: false}
  - {name: c, pods: {namespace: gpu, selector: {matchLabels: {app: dp}}}}
  - {name: d, condition: {type: GpuReady, freshness: 10m}}
  - {name: e, probe: {httpGet: {port: 9400, path: /healthz}}}"#,
    );
    assert_eq!(rule.name, "gpu");
    assert_eq!(rule.node_selector.match_labels["pool"], "gpu");
    assert_eq!(rule.evict_after, Duration::from_mins(5));
    assert!(!rule.dry_run && !rule.publish_conditions && !rule.autoscaler_startup_taint);
    let affects: Vec<_> = rule
        .extensions
        .iter()
        .map(|extension| extension.affects_readiness)
        .collect();
    assert_eq!(affects, [true, false, true, true, true]);
    let lease = Source::Lease {
        namespace: "node-extensions".to_owned(),
        name: "{node}.a".to_owned(),
        expiry: Duration::from_secs(10),
    };
    assert_eq!(rule.extensions[0].source, lease);
    let condition = Source::Condition {
        kind: "GpuReady".to_owned(),
        status: "True".to_owned(),
        freshness: Duration::from_mins(10),
    };
    assert_eq!(rule.extensions[3].source, condition);
    let probe = Source::Probe {
        check: Check::HttpGet {
            port: 9400,
            path: "/healthz".to_owned(),
        },
        period: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        failure_threshold: 3,
    };
    assert_eq!(rule.extensions[4].source, probe);
}

#[test]
fn what_is_no_rule_is_refused_with_the_extension() {
    let extension = |rest: &str| format!("  extensions: [{{name: a, {rest}}}]");
    for (spec, message) in [
        (
            extension("affectsReadiness: true"),
            "line 5: spec.extensions[0] a: none of lease, status, pods, condition, probe is set: set exactly one",
        ),
        (
            extension("lease: {}, condition: {type: A}"),
            "line 5: spec.extensions[0] a: lease and condition are set together: set exactly one",
        ),
        (
            extension("lease: {expiry: 10}"),
            "line 5: spec.extensions[0] a: lease.expiry must be text, found a whole number: quote it",
        ),
        (
            extension("lease: {expiry: ten}"),
            "line 5: spec.extensions[0] a: expiry \"ten\" is not a duration: write for example 10s, 5m or 1h30m",
        ),
        (
            extension("lease: {expire: 10s}"),
            "line 5: spec.extensions[0] a: unknown key \"expire\" (did you mean \"expiry\"?)",
        ),
        (
            extension("probe: {}"),
            "line 5: spec.extensions[0] a: none of httpGet, tcpSocket, grpc, unixSocket, service is set: set exactly one",
        ),
        (
            extension("probe: {tcpSocket: {port: 70000}}"),
            "line 5: spec.extensions[0] a: port 70000 is invalid: use 1 to 65535",
        ),
        (
            extension(r#"probe: {httpGet: {port: 1, path: "/x HTTP/1.1\r\nHost: other"}}"#),
            "line 5: spec.extensions[0] a: path has blanks or control characters, which would change the request: remove them",
        ),
        (
            extension(r#"probe: {httpGet: {port: 1, path: "/a b"}}"#),
            "line 5: spec.extensions[0] a: path has blanks or control characters, which would change the request: remove them",
        ),
        (
            extension(r#"probe: {grpc: {port: 1, service: "a\nb"}}"#),
            "line 5: spec.extensions[0] a: service has control characters, which would change the request: remove them",
        ),
        (
            extension(r#"probe: {unixSocket: {path: "/run/a\0"}}"#),
            "line 5: spec.extensions[0] a: path has control characters, which would change the request: remove them",
        ),
        (
            extension(r#"probe: {service: {name: "a\r.service"}}"#),
            "line 5: spec.extensions[0] a: name has control characters, which would change the request: remove them",
        ),
        (
            extension("lease: {expiry: 2s}"),
            "line 5: spec.extensions[0] a: expiry 2s is too short, three renewals must fit: give at least 3s",
        ),
        (
            extension("lease: {name: shared}"),
            "line 5: spec.extensions[0] a: name \"shared\" is the same for all nodes: write {node} where the node's name belongs",
        ),
        (
            extension("status: {apiVersion: a/v1, kind: B, lease: status.lease}"),
            "line 5: spec.extensions[0] a: lease is not a path: write for example .status.lease, or remove it to use the Lease of the same name",
        ),
        (
            extension("probe: {tcpSocket: {port: 1}, timeout: 6s}"),
            "line 5: spec.extensions[0] a: timeout 6s is longer than period 5s: the next probe would start before the answer; shorten it",
        ),
        (
            "  extensions: [{name: A_b, lease: {}}]".to_owned(),
            "line 5: spec.extensions[0] A_b: name \"A_b\" is invalid: use at most 63 lower-case letters, digits, dashes and dots",
        ),
        (
            "  taint: {key: example.com/mine}\n  extensions: [{name: a, lease: {}}]".to_owned(),
            "line 5: spec.taint: unknown key \"taint\": remove it",
        ),
        (
            extension("lease: {}}, {name: a, lease: {}"),
            "line 5: spec.extensions[1] a: extension a is listed twice: keep one",
        ),
        (
            "  extensions: []".to_owned(),
            "line 5: spec.extensions: extensions is empty: name at least one",
        ),
        (
            "  evictAfter: 5m".to_owned(),
            "line 4: spec: extensions is missing",
        ),
    ] {
        let problems = document::read("rule.yaml", rule(&spec).as_bytes()).unwrap_err();
        assert_eq!(problems.to_string(), format!("rule.yaml: {message}"));
    }
}

#[test]
fn a_rule_for_every_node_is_warned_of_and_the_same_is_read_from_the_api_server() {
    let text = rule("  extensions: [{name: a, lease: {}}]");
    let (documents, warnings) = document::read("rule.yaml", text.as_bytes()).unwrap();
    assert!(
        warnings[0].to_string().contains("selects every node"),
        "{warnings:?}"
    );
    let object = r#"{"apiVersion": "evenkeel.dev/v1alpha1", "kind": "NodeReadinessRule", "metadata": {"name": "gpu", "generation": 2},
        "spec": {"extensions": [{"name": "a", "lease": {"expiry": "10s"}}]}, "status": {"nodes": {"total": 1}}}"#;
    let (rule, _) = rule_from_json(object).unwrap();
    assert_eq!(documents, [Document::ReadinessRule(rule)]);
    for (object, message) in [
        (
            r#"{"apiVersion": "a", "kind": "b", "metadata": {"name": "gpu"}}"#,
            "NodeReadinessRule: spec is missing",
        ),
        (
            r#"{"apiVersion": "a", "kind": "b", "metadata": {"name": "gpu"}, "spec": {"extensions": [{"name": "a", "lease": {"expiry": "1s"}}]}}"#,
            "NodeReadinessRule: spec.extensions[0] a: expiry 1s is too short, three renewals must fit: give at least 3s",
        ),
    ] {
        assert_eq!(rule_from_json(object).unwrap_err().to_string(), message);
    }
}

#[test]
fn the_nodes_own_list_has_the_same_shape() {
    let (extensions, _) = extensions_from_json(
        "node-1",
        r#"[{"name": "a", "probe": {"unixSocket": {"path": "/run/a.sock"}}}]"#,
    )
    .unwrap();
    assert_eq!(extensions[0].name, "a");
    let problems = extensions_from_json("node-1", r#"[{"name": "a"}]"#).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "node-1: extensions[0] a: none of lease, status, pods, condition, probe is set: set exactly one"
    );
}

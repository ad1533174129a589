//! Readiness rules and the node's own list of extensions.
#![allow(clippy::panic)] // In a test, a panic is the report.

use std::time::Duration;

use evenkeel_api::document::{self, Document};
use evenkeel_api::readiness::{
    Check, Enforcement, HttpGet, ProbeHost, ProbeTls, ReadinessRule, Source, extensions_from_json,
    rule_from_json,
};

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
        default_status: String::new(),
    };
    assert_eq!(rule.extensions[3].source, condition);
    let probe = Source::Probe {
        check: Check::HttpGet(HttpGet {
            port: 9400,
            path: "/healthz".to_owned(),
            ..HttpGet::default()
        }),
        period: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        failure_threshold: 3,
    };
    assert_eq!(rule.extensions[4].source, probe);
}

/// Covers N08.
#[test]
fn a_rule_says_its_taint_its_end_and_what_is_enough() {
    let rule = read(
        r#"
  nodeSelector: {matchLabels: {pool: gpu}}
  taint: {key: readiness.k8s.io/net, value: pending, effect: NoExecute}
  enforcement: Bootstrap
  extensions:
  - {name: a, anyOf: [{type: Calico}, {type: Cilium, freshness: 1m}]}
  - {name: b, condition: {type: KernelDeadlock, status: "False", defaultStatus: "False"}}"#,
    );
    assert_eq!(rule.taint.to_string(), "readiness.k8s.io/net:NoExecute");
    assert_eq!(rule.taint.value, "pending");
    assert_eq!(rule.enforcement, Enforcement::Bootstrap);
    let choices = rule.extensions[0].choices();
    let kinds: Vec<_> = choices
        .iter()
        .map(|it| match &it.source {
            Source::Condition { kind, .. } => (it.name.as_str(), kind.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, [("a", "Calico"), ("a", "Cilium")]);
    let Source::Condition { default_status, .. } = &rule.extensions[1].source else {
        panic!("{rule:?}");
    };
    assert_eq!(default_status, "False");
    let plain = read("  nodeSelector: {matchLabels: {a: b}}\n  extensions: [{name: a, lease: {}}]");
    assert_eq!(
        plain.taint.to_string(),
        "kubernetes.io/MetaReadiness:NoSchedule"
    );
    assert_eq!(plain.enforcement, Enforcement::Continuous);
}

#[test]
fn what_is_no_rule_is_refused_with_the_extension() {
    let extension = |rest: &str| format!("  extensions: [{{name: a, {rest}}}]");
    for (spec, message) in [
        (
            extension("affectsReadiness: true"),
            "line 5: spec.extensions[0] a: none of lease, status, pods, condition, anyOf, probe is set: set exactly one",
        ),
        (
            extension("lease: {}, condition: {type: A}"),
            "line 5: spec.extensions[0] a: lease and condition are set together: set exactly one",
        ),
        (
            extension("anyOf: []"),
            "line 5: spec.extensions[0] a: anyOf is empty: name at least one condition",
        ),
        (
            extension("anyOf: [{type: A}, {type: A}]"),
            "line 5: spec.extensions[0] a: condition A is listed twice: keep one",
        ),
        (
            extension("condition: {type: A, defaultStatus: Maybe}"),
            "line 5: spec.extensions[0] a: defaultStatus \"Maybe\" is unknown: use True, False or Unknown",
        ),
        (
            format!(
                "  taint: {{key: example.com/a}}\n{}",
                extension("lease: {}")
            ),
            "line 4: spec: taint.key \"example.com/a\" is invalid: use readiness.k8s.io/NAME or evenkeel.dev/NAME",
        ),
        (
            format!(
                "  taint: {{key: evenkeel.dev/draining}}\n{}",
                extension("lease: {}")
            ),
            "line 4: spec: taint.key evenkeel.dev/draining is used for something else: choose another",
        ),
        (
            format!(
                "  taint: {{key: evenkeel.dev/a, effect: Evict}}\n{}",
                extension("lease: {}")
            ),
            "line 4: spec: taint.effect \"Evict\" is unknown: use NoSchedule, PreferNoSchedule or NoExecute",
        ),
        (
            format!(
                "  taint: {{key: evenkeel.dev/a, effect: NoExecute}}\n  evictAfter: 0s\n{}",
                extension("lease: {}")
            ),
            "line 4: spec: taint.effect NoExecute evicts pods, and evictAfter 0s never does: give evictAfter a time, or use NoSchedule",
        ),
        (
            format!("  enforcement: Once\n{}", extension("lease: {}")),
            "line 4: spec: enforcement \"Once\" is unknown: use Continuous or Bootstrap",
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
            "line 5: spec.extensions[0] a: none of httpGet, tcpSocket, grpc, unixSocket, service, exec is set: set exactly one",
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
            extension("probe: {tcpSocket: {port: 1, host: other.example.com}}"),
            "line 5: spec.extensions[0] a: host \"other.example.com\" is no address of a node: write an IP address of it, {nodeIP}, or nothing for loopback",
        ),
        (
            extension(r#"probe: {httpGet: {port: 1, httpHeaders: [{name: "a b", value: x}]}}"#),
            "line 5: spec.extensions[0] a: httpHeaders: \"a b\" is no name of a header",
        ),
        (
            extension(
                "probe: {httpGet: {port: 1, httpHeaders: [{name: Content-length, value: '5'}]}}",
            ),
            "line 5: spec.extensions[0] a: httpHeaders: the agent itself writes the header Content-length: remove it",
        ),
        (
            extension(
                r#"probe: {httpGet: {port: 1, httpHeaders: [{name: a, value: "x\r\nb: c"}]}}"#,
            ),
            "line 5: spec.extensions[0] a: httpHeaders: the value of a has control characters or more than 1024 bytes",
        ),
        (
            extension("probe: {httpGet: {port: 1, scheme: HTTPS}}"),
            "line 5: spec.extensions[0] a: scheme HTTPS needs ca, certificates in PEM that the server's is verified with, or insecureSkipVerify: true",
        ),
        (
            extension("probe: {httpGet: {port: 1, insecureSkipVerify: true}}"),
            "line 5: spec.extensions[0] a: ca, serverName and insecureSkipVerify need scheme: HTTPS",
        ),
        (
            extension("probe: {httpGet: {port: 1, scheme: HTTPS, ca: x}}"),
            "line 5: spec.extensions[0] a: ca has no certificates in PEM, or is longer than 16 KiB: paste the text that begins with -----BEGIN CERTIFICATE-----",
        ),
        (
            extension("probe: {exec: {command: [check]}}"),
            "line 5: spec.extensions[0] a: command: \"check\" is not the whole path of a program, such as /usr/local/bin/check",
        ),
        (
            extension("probe: {exec: {command: [/usr/../bin/sh]}}"),
            "line 5: spec.extensions[0] a: command: \"/usr/../bin/sh\" is not the whole path of a program, such as /usr/local/bin/check",
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
        "node-1: extensions[0] a: none of lease, status, pods, condition, anyOf, probe is set: set exactly one"
    );
}

/// Covers N04.
#[test]
fn a_probe_says_whom_it_asks_how_it_trusts_and_what_it_runs() {
    let checks = read(
        r#"
  extensions:
  - name: a
    probe:
      httpGet:
        port: 10250
        path: /healthz
        host: "{nodeIP}"
        scheme: HTTPS
        ca: |
          -----BEGIN CERTIFICATE-----
          AAAA
          -----END CERTIFICATE-----
        serverName: kubelet.example.com
        httpHeaders: [{name: Accept, value: text/plain}]
  - {name: b, probe: {httpGet: {port: 1, host: "::1", scheme: HTTPS, insecureSkipVerify: true}}}
  - {name: c, probe: {tcpSocket: {port: 2, host: 10.0.0.7}}}
  - {name: d, probe: {grpc: {port: 3, host: "{nodeIP}", service: csi}}}
  - {name: e, probe: {exec: {command: [/usr/local/bin/check, --fast, ""]}}}"#,
    )
    .extensions
    .into_iter()
    .map(|it| match it.source {
        Source::Probe { check, .. } => check,
        other => panic!("{other:?}"),
    });
    let checks: Vec<_> = checks.collect();
    let [Check::HttpGet(first), Check::HttpGet(second), ..] = checks.as_slice() else {
        panic!("{checks:?}")
    };
    assert_eq!(first.host, ProbeHost::Node);
    assert_eq!(
        first.headers,
        [("Accept".to_owned(), "text/plain".to_owned())]
    );
    let Some(ProbeTls::Ca { pem, server_name }) = &first.tls else {
        panic!("{first:?}")
    };
    assert!(pem.contains("AAAA") && server_name == "kubelet.example.com");
    assert_eq!(second.tls, Some(ProbeTls::Unverified));
    let shown: Vec<_> = checks.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "HTTPS {nodeIP}:10250/healthz",
            "HTTPS [::1]:1/",
            "TCP 10.0.0.7:2",
            "gRPC {nodeIP}:3 csi",
            "exec /usr/local/bin/check --fast ",
        ]
    );
}

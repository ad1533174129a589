//! The chart: Helm finds nothing wrong with it, the API server takes what it makes, and it installs.

#![cfg(target_os = "linux")]

use std::process::Output;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result, need};
use serde_json::{Value, json};

fn words(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Values that somebody might well give.
const ODD: &str = r#"
image:
  registry: registry.example.com:5000/ops
  tag: "1.0"
  pullPolicy: Always
  pullSecrets: [{name: pull-me}]
logLevel: info,evenkeel_operator=debug
logFormat: text
operator:
  replicas: 1
  port: 8080
  nodeSelectorForWork: "pool in (canary, edge),!never"
  drainTimeout: 90s
  drainOnTimeout: proceed
  resources: {}
  nodeSelector: {}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: ["true"]}]}]
  tolerations: [{key: only-operators, operator: Exists}]
  podAnnotations: {quoted: "yes", "a/b": "x: {y}"}
agent:
  enabled: true
  address: 0.0.0.0
  port: 9181
  nodeSelector: {kubernetes.io/os: linux, agents: "true"}
  maxUnavailable: 3
  podAnnotations: {number: "5"}
uninstall:
  enabled: true
  timeoutSeconds: 60
"#;

fn values(text: &str) -> Result<(Scratch, String)> {
    let scratch = Scratch::new("values")?;
    let path = scratch.path().join("values.yaml");
    std::fs::write(&path, text).doing(|| "cannot write values")?;
    let option = format!("--values={}", path.display());
    Ok((scratch, option))
}

#[test]
fn helm_finds_nothing_wrong_with_the_chart() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let (_scratch, odd) = values(ODD)?;
    let folder = Chart::folder().display().to_string();
    for options in [&[][..], &[odd.as_str()]] {
        let linted = Chart::helm(&[&["lint", "--strict", &folder], options].concat())?;
        assert!(linted.status.success(), "{}", words(&linted));
    }
    Ok(())
}

#[test]
fn odd_values_are_taken_to_their_places_and_wrong_ones_are_refused_by_name() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let (_scratch, odd) = values(ODD)?;
    let chart = Chart::render("ops", &[&odd])?;
    let container = |kind, name| -> Result<Value> {
        let pod = &chart.object(kind, name)?["spec"]["template"]["spec"];
        Ok(pod["containers"][0].clone())
    };
    let operator = container("Deployment", "evenkeel-operator")?;
    let image = "registry.example.com:5000/ops/evenkeel-operator:1.0";
    assert_eq!(operator["image"], image);
    assert_eq!(container("Job", "evenkeel-uninstall")?["image"], image);
    let arguments = operator["args"].as_array().cloned().unwrap_or_default();
    for argument in [
        "--node-selector=pool in (canary, edge),!never",
        "--drain-timeout=90s",
        "--listen=0.0.0.0:8080",
    ] {
        assert!(arguments.contains(&json!(argument)), "{arguments:?}");
    }
    let agent = container("DaemonSet", "evenkeel-agent")?;
    assert_eq!(
        agent["livenessProbe"]["httpGet"],
        json!({ "host": "127.0.0.1", "port": 9181, "path": "/healthz" })
    );
    let policy = chart.object("ValidatingAdmissionPolicy", "evenkeel-agent-own-node")?;
    let condition = policy["spec"]["matchConditions"][0]["expression"].as_str();
    let account = "'system:serviceaccount:ops:evenkeel-agent'";
    assert!(condition.is_some_and(|it| it.contains(account)), "{policy}");

    let without = Chart::render("ops", &["--set=agent.enabled=false"])?;
    assert!(without.object("DaemonSet", "evenkeel-agent").is_err());
    assert!(without.object("ClusterRole", "evenkeel-agent").is_ok());

    for (option, said) in [
        ("--set-string=operator.replicas=two", "replicas"),
        ("--set=operator.replica=2", "replica"),
        ("--set=operator.drainOnTimeout=panic", "drainOnTimeout"),
        ("--set=image.registry=registry.example.com/", "registry"),
        ("--set=uninstall.timeoutSeconds=1", "timeoutSeconds"),
        ("--set=agent.port=70000", "port"),
    ] {
        let error = Chart::render("ops", &[option]).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(said), "{option}: {error}");
    }
    Ok(())
}

/// Nobody has more than a row of the contract: no wildcard, no secrets, and pods only to be listed and
/// evicted.
#[test]
fn no_right_is_a_wildcard_or_opens_secrets() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let chart = Chart::render("evenkeel", &[])?;
    let roles = chart.kinds(&["Role", "ClusterRole"]);
    let mut rules = 0;
    for role in roles.objects() {
        for rule in role["rules"].as_array().into_iter().flatten() {
            rules += 1;
            let text = rule.to_string();
            assert!(!text.contains('*'), "{role}");
            for denied in [
                "secrets",
                "impersonate",
                "escalate",
                "\"bind\"",
                "nodes/proxy",
            ] {
                assert!(!text.contains(denied), "{denied}: {role}");
            }
        }
    }
    assert!(rules > 10, "{rules}");
    Ok(())
}

#[test]
fn it_installs_beside_kinds_that_are_there_already_and_goes_again() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let strict = |chart: &Chart| -> Result<()> {
        let scratch = Scratch::new("strict")?;
        let file = scratch.path().join("objects.json");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": chart.objects() });
        std::fs::write(&file, list.to_string()).doing(|| "cannot write the objects")?;
        let file = file.display().to_string();
        let strict = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &file,
        ];
        control_plane.kubectl(&strict).map(|_| ())
    };
    for namespace in ["evenkeel", "ops", "node-extensions"] {
        control_plane.kubectl(&["create", "namespace", namespace])?;
    }
    let (_scratch, odd) = values(ODD)?;
    strict(&Chart::render("evenkeel", &[])?)?;
    strict(&Chart::render("ops", &[&odd])?)?;

    // Somebody else's definition of a kind, and a namespace that is there already, stay as they are.
    let definition = Chart::folder().join("crds/machineconfigs.yaml");
    control_plane.kubectl(&["apply", "-f", &definition.display().to_string()])?;
    let kind = "crd/machineconfigs.machineconfiguration.openshift.io";
    control_plane.kubectl(&["annotate", kind, "theirs=yes"])?;
    let login = Scratch::new("login")?;
    let kubeconfig = login.path().join("kubeconfig");
    control_plane.admin_kubeconfig().write(&kubeconfig)?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let folder = Chart::folder().display().to_string();
    let helm = |words_of_it: &[&str]| -> Result<String> {
        let done = Chart::helm(&[words_of_it, &["--namespace=evenkeel", &kubeconfig]].concat())?;
        assert!(done.status.success(), "{words_of_it:?}: {}", words(&done));
        Ok(words(&done))
    };
    let said = helm(&["install", "evenkeel", &folder])?;
    assert!(said.contains("evenkeel status"), "{said}");
    let theirs = ["get", kind, "-o=jsonpath={.metadata.annotations.theirs}"];
    assert_eq!(control_plane.kubectl(&theirs)?, "yes");
    let pools = "crd/machineconfigpools.machineconfiguration.openshift.io";
    control_plane.kubectl(&["get", pools])?;
    let get = [
        "get",
        "deployment/evenkeel-operator",
        "--namespace=evenkeel",
    ];
    control_plane.kubectl(&get)?;
    helm(&["upgrade", "evenkeel", &folder, "--set=operator.replicas=1"])?;
    // The hook needs a machine that runs its pod: what it does is tested with the operator.
    helm(&["uninstall", "evenkeel", "--no-hooks"])?;
    assert!(control_plane.kubectl(&get).is_err());
    control_plane.kubectl(&["get", "namespace/node-extensions"])?;
    control_plane.kubectl(&["get", kind])?;
    Ok(())
}

//! A real Prometheus reads the metrics of a release, as the chart tells the Prometheus Operator.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_testbed::alerts::Alerts;
use evenkeel_testbed::prometheus::{self, Prometheus};
use evenkeel_testbed::wait::{Look, until, until_async};
use evenkeel_testbed::{Result, need};
use serde_json::{Value, json};

use crate::installed::{Installed, NAMESPACE, PATIENCE};
use crate::monitors;
use crate::objects::{config, pool};
use crate::release::Release;
use crate::skip;

const NODES: [&str; 2] = ["first", "second"];
const ALERTS: [&str; 2] = ["agent.yaml", "windows.yaml"];
/// Where a Prometheus lives that was there before us.
const MONITORING: &str = "monitoring";

/// Metrics in alerts that are not there on a cluster where all is well, and why.
const NOT_YET: [(&str, &str); 1] = [(
    "kube_lease_renew_time",
    "kube-state-metrics has it; the alert needs that or the agents as targets",
)];

/// Covers K10.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn prometheus_reads_operator_and_agents_and_has_every_metric_of_every_alert() -> Result<()> {
    if skip()? || need::skip(Prometheus::NEEDS)? || need::skip(Alerts::NEEDS)? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&NODES, &release).await?;
    let control_plane = installed.control_plane();
    installed.until_ready(2, NODES.len()).await?;
    // With the Prometheus Operator on the cluster its kinds are there, and take our alerts.
    let kinds = Prometheus::kinds()?.display().to_string();
    control_plane.kubectl(&["apply", "--server-side", "-f", &kinds])?;
    control_plane.kubectl(&["wait", "crd", "--all", "--for=condition=Established"])?;
    for file in ALERTS {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/alerts");
        let file = format!("{folder}/{file}");
        control_plane.kubectl(&["apply", "--validate=strict", "-f", &file])?;
    }
    installed.apply(&config("watched"))?;
    installed.apply(&pool())?;
    installed.until_clean().await?;
    installed.helm(
        &["upgrade", &release.chart()],
        &[
            "--set=metrics.serviceMonitor.enabled=true",
            "--set=metrics.podMonitor.enabled=true",
            "--set=windows.enabled=true",
        ],
    )?;
    installed.until_ready(2, NODES.len()).await?;

    let mut server = Prometheus::start(&configuration(&installed)?)?;
    until("all targets to be up", PATIENCE, || {
        let up = server.ask("up == 1")?;
        let of = |job: &str| {
            let named = up.iter().filter(|it| it["metric"]["job"] == job);
            let instances = named.filter_map(|it| it["metric"]["instance"].as_str());
            instances.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let agents = of("evenkeel-agent") == BTreeSet::from(NODES.map(str::to_owned));
        Ok(if agents && of("evenkeel-operator").len() == 2 {
            Look::Found(())
        } else {
            Look::NotYet(json!(server.ask("up")?).to_string())
        })
    })?;
    let named = metrics_of_alerts()?;
    assert!(named.len() > 8, "{named:?}");
    until("every metric of every alert", PATIENCE, || {
        let mut missing = BTreeMap::new();
        for (metric, alert) in &named {
            let is_late = NOT_YET.iter().any(|(name, _)| name == metric);
            if server.ask(metric)?.is_empty() != is_late {
                missing.insert(metric, alert);
            }
        }
        Ok(if missing.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{missing:?}"))
        })
    })?;
    println!(
        "proof: a Prometheus server scraped {} nodes and 2 operators; it has {} of the {} metrics that alerts name",
        NODES.len(),
        named.len() - NOT_YET.len(),
        named.len()
    );
    Ok(())
}

/// Nothing is set for it: agents answer on their nodes' addresses whoever may read metrics, and nobody else.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn by_default_agents_show_metrics_to_whoever_may_read_them_and_have_a_share_of_their_own()
-> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&NODES, &release).await?;
    installed.until_ready(2, NODES.len()).await?;
    let kubectl = |words: &[&str]| installed.control_plane().kubectl(words);
    kubectl(&["create", "namespace", MONITORING])?;
    let token = |name: &str| -> Result<String> {
        kubectl(&["create", "serviceaccount", name, "-n", MONITORING])?;
        let token = kubectl(&["create", "token", name, "-n", MONITORING])?;
        Ok(token.trim().to_owned())
    };
    let (reader, stranger) = (token("prometheus")?, token("stranger")?);
    kubectl(&[
        "create",
        "clusterrolebinding",
        "prometheus-reads-evenkeel",
        "--clusterrole=evenkeel-metrics-reader",
        &format!("--serviceaccount={MONITORING}:prometheus"),
    ])?;
    for number in 0..NODES.len() {
        let address = format!("{}:9182", installed.cluster.node(number).address());
        let ask = async |token: Option<&str>| prometheus::answer(&address, token).await;
        // The role takes a moment until the API server knows it.
        until_async("the reader to be let in", PATIENCE, async || {
            Ok(match ask(Some(&reader)).await? {
                200 => Look::Found(()),
                other => Look::NotYet(other.to_string()),
            })
        })
        .await?;
        assert_eq!(ask(Some(&stranger)).await?, 403);
        assert_eq!(ask(Some("a token of nobody")).await?, 401);
        assert_eq!(ask(None).await?, 401);
    }

    // Whose share of itself the API server counted their requests in.
    let metrics = kubectl(&["get", "--raw", "/metrics"])?;
    for name in ["evenkeel-agent", "evenkeel-operator"] {
        let count = dispatched(&metrics, name);
        println!("{count} requests went through the share of {name}");
        assert!(count > 10, "{name}: {count}");
    }
    Ok(())
}

/// How many requests the API server let through for a `FlowSchema`, in the priority level of the same name.
fn dispatched(metrics: &str, name: &str) -> u64 {
    let counter = "apiserver_flowcontrol_dispatched_requests_total";
    let (schema, level) = (
        format!("flow_schema=\"{name}\""),
        format!("priority_level=\"{name}\""),
    );
    let lines = metrics.lines().filter(|it| it.starts_with(counter));
    let own = lines.filter(|it| it.contains(&schema) && it.contains(&level));
    own.filter_map(|it| it.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// What the Prometheus Operator would make of the monitors on the cluster.
fn configuration(installed: &Installed) -> Result<Value> {
    // A Prometheus finds its targets with an account of its own.
    let control_plane = installed.control_plane();
    control_plane.kubectl(&["create", "namespace", MONITORING])?;
    control_plane.kubectl(&["create", "serviceaccount", "prometheus", "-n", MONITORING])?;
    control_plane.kubectl(&[
        "create",
        "clusterrole",
        "prometheus-finds",
        "--verb=get,list,watch",
        "--resource=pods,services,endpointslices.discovery.k8s.io",
    ])?;
    control_plane.kubectl(&[
        "create",
        "clusterrolebinding",
        "prometheus-finds",
        "--clusterrole=prometheus-finds",
        &format!("--serviceaccount={MONITORING}:prometheus"),
    ])?;
    let login = installed.files().join("prometheus");
    let kubeconfig = control_plane.kubeconfig_for_service_account(MONITORING, "prometheus")?;
    kubeconfig.write(&login)?;
    let token = |name: &str, key: &str| -> Result<String> {
        let read = format!("-o=go-template={{{{index .data \"{key}\" | base64decode}}}}");
        control_plane.kubectl(&["get", "secret", name, "-n", NAMESPACE, &read])
    };
    let mut jobs = Vec::new();
    for kind in ["servicemonitors", "podmonitors"] {
        let found = installed.get(&[kind, "--all-namespaces"])?;
        let found = found["items"].as_array().cloned().unwrap_or_default();
        assert_eq!(found.len(), 1, "{found:?}");
        jobs.extend(monitors::scrapes(&found[0], &login, token)?);
    }
    Ok(json!({ "scrape_configs": jobs }))
}

/// The names of metrics in the expressions of our alerts, each with an alert that names it.
fn metrics_of_alerts() -> Result<BTreeMap<String, String>> {
    let mut named = BTreeMap::new();
    for file in ALERTS {
        for rule in Alerts::read(file)?.rules() {
            let expression = rule["expr"].as_str().unwrap_or_default();
            let alert = rule["alert"].as_str().unwrap_or_default();
            let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
            let metrics = words
                .filter(|it| *it == "up" || it.starts_with("evenkeel_") || it.starts_with("kube_"));
            let metrics: Vec<_> = metrics
                .map(|it| (it.to_owned(), alert.to_owned()))
                .collect();
            assert!(!metrics.is_empty(), "{alert}: {expression}");
            named.extend(metrics);
        }
    }
    Ok(named)
}

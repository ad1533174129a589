//! What the Prometheus Operator makes of a `ServiceMonitor` or a `PodMonitor`: the scrape configuration of a Prometheus server. Of
//! their many fields, those that the chart uses; another one is an error, so that none is passed over in silence.

use std::path::Path;

use evenkeel_testbed::{Error, Result};
use serde_json::{Value, json};

/// How a monitor is read: its endpoints, how its targets are found, and how the labels of what is selected begin.
struct Kind {
    endpoints: &'static str,
    role: &'static str,
    labels: &'static str,
    port: &'static str,
}

const SERVICES: Kind = Kind {
    endpoints: "endpoints",
    role: "endpointslice",
    labels: "__meta_kubernetes_service",
    port: "__meta_kubernetes_endpointslice_port_name",
};
const PODS: Kind = Kind {
    endpoints: "podMetricsEndpoints",
    role: "pod",
    labels: "__meta_kubernetes_pod",
    port: "__meta_kubernetes_pod_container_port_name",
};

/// One job for each endpoint of `monitor`. `login` is the kubeconfig with which targets are found; `token` has the file with the
/// contents of a Secret's key.
pub(crate) fn scrapes(
    monitor: &Value,
    login: &Path,
    token: impl Fn(&str, &str) -> Result<String>,
) -> Result<Vec<Value>> {
    let kind = match monitor["kind"].as_str() {
        Some("ServiceMonitor") => SERVICES,
        Some("PodMonitor") => PODS,
        _ => return Err(Error::failed(format!("no monitor: {monitor}"))),
    };
    let (metadata, spec) = (&monitor["metadata"], &monitor["spec"]);
    knows(spec, &["jobLabel", "selector", kind.endpoints])?;
    knows(&spec["selector"], &["matchLabels"])?;
    let name = format!("{}/{}", metadata["namespace"], metadata["name"]).replace('"', "");
    let mut jobs = Vec::new();
    for endpoint in spec[kind.endpoints].as_array().into_iter().flatten() {
        let fields = [
            "port",
            "scheme",
            "interval",
            "tlsConfig",
            "authorization",
            "relabelings",
        ];
        knows(endpoint, &fields)?;
        let mut relabel = Vec::new();
        let wanted = spec["selector"]["matchLabels"].as_object();
        for (label, value) in wanted.into_iter().flatten() {
            let label = sanitized(label);
            relabel.push(json!({
                "source_labels": [
                    format!("{}_label_{label}", kind.labels),
                    format!("{}_labelpresent_{label}", kind.labels),
                ],
                "regex": format!("({});true", value.as_str().unwrap_or_default()),
                "action": "keep",
            }));
        }
        relabel.push(json!({
            "source_labels": [kind.port],
            "regex": endpoint["port"],
            "action": "keep",
        }));
        let job = sanitized(spec["jobLabel"].as_str().unwrap_or_default());
        relabel.push(json!({
            "source_labels": [format!("{}_label_{job}", kind.labels)],
            "regex": "(.+)",
            "target_label": "job",
            "replacement": "${1}",
        }));
        for own in endpoint["relabelings"].as_array().into_iter().flatten() {
            knows(own, &["action", "sourceLabels", "targetLabel"])?;
            relabel.push(json!({
                "source_labels": own["sourceLabels"],
                "target_label": own["targetLabel"],
                "action": own["action"].as_str().unwrap_or("replace"),
            }));
        }
        let mut scrape = json!({
            "job_name": format!("{name}/{}", jobs.len()),
            // Nobody here waits for as long as people do.
            "scrape_interval": "2s",
            "scrape_timeout": "2s",
            "scheme": endpoint["scheme"].as_str().unwrap_or("http"),
            "kubernetes_sd_configs": [{
                "role": kind.role,
                "kubeconfig_file": login,
                "namespaces": { "names": [metadata["namespace"]] },
            }],
            "relabel_configs": relabel,
        });
        if !endpoint["authorization"].is_null() {
            knows(&endpoint["authorization"], &["credentials", "type"])?;
            let secret = &endpoint["authorization"]["credentials"];
            let text = |it: &str| secret[it].as_str().unwrap_or_default();
            scrape["authorization"] = json!({ "credentials": token(text("name"), text("key"))? });
        }
        if !endpoint["tlsConfig"].is_null() {
            knows(&endpoint["tlsConfig"], &["insecureSkipVerify"])?;
            let skip = &endpoint["tlsConfig"]["insecureSkipVerify"];
            scrape["tls_config"] = json!({ "insecure_skip_verify": skip });
        }
        jobs.push(scrape);
    }
    Ok(jobs)
}

/// Refuses fields that are not read here.
fn knows(object: &Value, fields: &[&str]) -> Result<()> {
    let unknown = object
        .as_object()
        .and_then(|it| it.keys().find(|key| !fields.contains(&key.as_str())));
    match unknown {
        Some(field) => Err(Error::failed(format!(
            "{field} of a monitor is not read here: {object}"
        ))),
        None => Ok(()),
    }
}

/// A label's name as Prometheus writes it.
fn sanitized(label: &str) -> String {
    label.replace(|it: char| !it.is_ascii_alphanumeric(), "_")
}

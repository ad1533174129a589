//! Which pods of the chart a namespace takes that enforces a Pod Security Standard, as the real API server judges it.

#![cfg(target_os = "linux")]

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result, need};
use serde_json::{Value, json};

const LABEL: &str = "pod-security.kubernetes.io/enforce";

/// Everything that brings something into a pod.
const ALL: [&str; 6] = [
    "--set=windows.enabled=true",
    "--set=windows.payloadVolume.image.reference=registry.example.com/payload:1.0",
    "--set=metrics.certificateSecret=metrics-tls",
    "--set=image.registry=registry.example.com",
    "--set=image.pullSecrets[0].name=pull-me",
    "--set=agent.registerKubeletPlugins=true",
];

/// The pod that a workload of the chart would make.
fn pod(chart: &Chart, kind: &str, name: &str) -> Result<Value> {
    let template = &chart.object(kind, name)?["spec"]["template"];
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": template["metadata"]["labels"] },
        "spec": template["spec"],
    }))
}

#[test]
fn the_operator_starts_where_restricted_is_enforced_and_agents_where_the_label_lets_them()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let control_plane = ControlPlane::shared()?;
    let namespace = control_plane.namespace("pod-security")?;
    let scratch = Scratch::new("pods")?;
    let admitted = |pod: &Value| -> Result<()> {
        let file = scratch.path().join("pod.json");
        std::fs::write(&file, pod.to_string()).doing(|| "cannot write the pod")?;
        let (file, space) = (
            file.display().to_string(),
            format!("--namespace={namespace}"),
        );
        control_plane
            .kubectl(&["create", "--dry-run=server", &space, "-f", &file])
            .map(|_| ())
    };
    let enforce = |standard: &str| {
        let label = format!("{LABEL}={standard}");
        control_plane.kubectl(&["label", "--overwrite", "namespace", &namespace, &label])
    };
    for options in [&[][..], &ALL] {
        let chart = Chart::render(&namespace, options)?;
        chart.kinds(&["ServiceAccount"]).apply(control_plane)?;
        let operator = pod(&chart, "Deployment", "evenkeel-operator")?;
        let uninstall = pod(&chart, "Job", "evenkeel-uninstall")?;
        let agent = pod(&chart, "DaemonSet", "evenkeel-agent")?;
        for standard in ["restricted", "baseline", "privileged"] {
            enforce(standard)?;
            for pod in [&operator, &uninstall] {
                admitted(pod)?;
            }
        }
        admitted(&agent)?;
        for standard in ["restricted", "baseline"] {
            enforce(standard)?;
            let refused = admitted(&agent).map_err(|it: Error| it.to_string());
            let words = format!("violates PodSecurity \"{standard}:latest\"");
            assert!(
                refused.as_ref().is_err_and(|it| it.contains(&words)),
                "{refused:?}"
            );
        }
        // The judge is awake: whoever takes something away from the operator is refused, too.
        enforce("restricted")?;
        for field in ["capabilities", "allowPrivilegeEscalation"] {
            let mut less = operator.clone();
            let context = less["spec"]["containers"][0]["securityContext"].as_object_mut();
            assert!(context.and_then(|it| it.remove(field)).is_some(), "{field}");
            assert!(admitted(&less).is_err(), "{field} is not needed");
        }
        // No standard asks for these.
        for pod in [&operator, &uninstall] {
            let container = &pod["spec"]["containers"][0]["securityContext"];
            assert_eq!(container["readOnlyRootFilesystem"], true, "{pod}");
            // Who it runs as says its image, and where a namespace has a range of users, the namespace.
            let user = &pod["spec"]["securityContext"]["runAsUser"];
            assert!(user.is_null() && container["runAsUser"].is_null(), "{pod}");
        }
    }
    Ok(())
}

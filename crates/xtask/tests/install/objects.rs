//! What people write on the cluster of these tests.

use serde_json::{Value, json};

pub(crate) fn pool() -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": { "name": "worker" },
        "spec": {
            "nodeSelector": {},
            "machineConfigSelector": { "matchLabels": { "machineconfiguration.openshift.io/role": "worker" } },
            "maxUnavailable": 1,
        },
    })
}

/// What somebody runs on the cluster, spread over its nodes.
pub(crate) fn web(replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": { "matchLabels": { "app": "web" } },
                    }],
                    "containers": [{ "name": "web", "image": "pause:1", "imagePullPolicy": "Never" }],
                },
            },
        },
    })
}

/// A file that needs a reboot.
pub(crate) fn config(contents: &str) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {
            "name": "50-worker",
            "labels": { "machineconfiguration.openshift.io/role": "worker" },
        },
        "spec": { "config": {
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [{
                "path": "/etc/keel.conf",
                "mode": 0o644,
                "overwrite": true,
                "contents": { "source": format!("data:,{contents}") },
            }] },
        } },
    })
}

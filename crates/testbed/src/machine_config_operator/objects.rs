//! What the machine-config operator's controller finds on OpenShift, and wants here: as much as it looks at.

use serde_json::{Value, json};

use super::NAMESPACE;

/// The release that it belongs to, as it is told and as the feature gates are for.
pub(super) const RELEASE: &str = "4.15.0";
/// What it calls itself when nobody says at its build which version it is.
const VERSION: &str = "v0.0.0-was-not-built-properly";

/// A file that it has for every worker: below its folder of templates, and what it says.
pub(super) const TEMPLATE: (&str, &str) = (
    "worker/00-worker/_base/files/release.yaml",
    "mode: 0644\npath: \"/etc/openshift-release\"\ncontents:\n  inline: |\n    {{.ReleaseImage}}\n",
);

/// Group, version, kind and plural of every kind that it watches. All are of the whole cluster.
const KINDS: [(&str, &str, &str, &str); 15] = [
    (
        MACHINE,
        "v1",
        "ContainerRuntimeConfig",
        "containerruntimeconfigs",
    ),
    (MACHINE, "v1", "ControllerConfig", "controllerconfigs"),
    (MACHINE, "v1", "KubeletConfig", "kubeletconfigs"),
    (MACHINE, "v1", "MachineConfig", "machineconfigs"),
    (MACHINE, "v1", "MachineConfigPool", "machineconfigpools"),
    (CONFIG, "v1", "APIServer", "apiservers"),
    (CONFIG, "v1", "ClusterVersion", "clusterversions"),
    (CONFIG, "v1", "FeatureGate", "featuregates"),
    (CONFIG, "v1", "Image", "images"),
    (
        CONFIG,
        "v1",
        "ImageDigestMirrorSet",
        "imagedigestmirrorsets",
    ),
    (CONFIG, "v1", "ImageTagMirrorSet", "imagetagmirrorsets"),
    (CONFIG, "v1", "Infrastructure", "infrastructures"),
    (CONFIG, "v1", "Node", "nodes"),
    (CONFIG, "v1", "Scheduler", "schedulers"),
    (
        "operator.openshift.io",
        "v1alpha1",
        "ImageContentSourcePolicy",
        "imagecontentsourcepolicies",
    ),
];
const MACHINE: &str = "machineconfiguration.openshift.io";
const CONFIG: &str = "config.openshift.io";

/// Their definitions. What is in an object is its own affair: this one keeps everything, as it was written.
pub(super) fn kinds() -> Vec<Value> {
    let define = |(group, version, kind, plural): (&str, &str, &str, &str)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Cluster",
                "names": {
                    "kind": kind, "listKind": format!("{kind}List"),
                    "plural": plural, "singular": kind.to_lowercase(),
                },
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "subresources": if kind == "MachineConfig" { json!({}) } else { json!({ "status": {} }) },
                    "schema": { "openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    } },
                }],
            },
        })
    };
    KINDS.map(define).into()
}

/// Their names, as `kubectl get` takes them.
pub(super) fn plurals() -> String {
    KINDS
        .map(|(group, version, _, plural)| format!("{plural}.{version}.{group}"))
        .join(",")
}

/// The objects that it does not work without.
pub(super) fn wanted() -> Vec<Value> {
    let namespace = |name: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    let of_config = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": format!("{CONFIG}/v1"), "kind": kind,
            "metadata": { "name": name }, "spec": spec,
        })
    };
    vec![
        namespace(NAMESPACE),
        namespace("openshift-config"),
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": { "namespace": "openshift-config", "name": "pull-secret" },
            "stringData": { ".dockerconfigjson": r#"{"auths":{}}"# },
        }),
        of_config(
            "ClusterVersion",
            "version",
            json!({ "clusterID": "00000000-0000-4000-a000-000000000000" }),
        ),
        of_config("FeatureGate", "cluster", json!({})),
        of_config("Infrastructure", "cluster", json!({})),
        of_config(
            "Scheduler",
            "cluster",
            json!({ "mastersSchedulable": false }),
        ),
        controller_config(),
    ]
}

/// What their other operators say of their work: kind, name and status.
pub(super) fn statuses() -> [(&'static str, &'static str, Value); 2] {
    let gates = json!({ "featureGates": [{ "version": RELEASE, "enabled": [], "disabled": [
        { "name": "ExternalCloudProvider" },
    ] }] });
    [
        ("featuregates.config.openshift.io", "cluster", gates),
        (
            "infrastructures.config.openshift.io",
            "cluster",
            infrastructure(),
        ),
    ]
}

/// Machines of no cloud, with more than one for the control plane.
fn infrastructure() -> Value {
    json!({
        "platform": "None", "platformStatus": { "type": "None" },
        "controlPlaneTopology": "HighlyAvailable", "infrastructureTopology": "HighlyAvailable",
    })
}

/// What their first operator, which has no part in this, tells this one of the cluster.
fn controller_config() -> Value {
    json!({
        "apiVersion": format!("{MACHINE}/v1"), "kind": "ControllerConfig",
        "metadata": {
            "name": "machine-config-controller",
            "annotations": {
                format!("{MACHINE}/generated-by-version"): VERSION,
                format!("{MACHINE}/release-image-version"): RELEASE,
            },
        },
        "spec": {
            "additionalTrustBundle": null,
            "baseOSContainerImage": "example.com/os:1",
            "baseOSExtensionsContainerImage": "example.com/os-extensions:1",
            "cloudProviderCAData": null, "cloudProviderConfig": "",
            "clusterDNSIP": "10.96.0.10",
            "dns": {
                "apiVersion": format!("{CONFIG}/v1"), "kind": "DNS",
                "metadata": { "name": "cluster" }, "spec": { "baseDomain": "example.com" },
            },
            "images": {},
            "infra": {
                "apiVersion": format!("{CONFIG}/v1"), "kind": "Infrastructure",
                "metadata": { "name": "cluster" }, "spec": {}, "status": infrastructure(),
            },
            "ipFamilies": "IPv4", "kubeAPIServerServingCAData": null, "network": null,
            "osImageURL": "", "proxy": null, "rootCAData": null,
            "pullSecret": { "namespace": "openshift-config", "name": "pull-secret" },
            "releaseImage": "example.com/release:1",
        },
    })
}

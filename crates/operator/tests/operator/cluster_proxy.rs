//! The cluster's Proxy, as OpenShift has it, on a control plane of one test's own: everybody who looks for it finds it.

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Gives a cluster that kind.
pub(crate) fn install(control_plane: &ControlPlane) -> Result<()> {
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let kind = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "proxies.config.openshift.io",
            "annotations": { "api-approved.kubernetes.io": "unapproved, a stand-in" },
        },
        "spec": {
            "group": "config.openshift.io", "scope": "Cluster",
            "names": { "kind": "Proxy", "listKind": "ProxyList", "plural": "proxies", "singular": "proxy" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    });
    let scratch = Scratch::new("proxies")?;
    let file = scratch.path().join("kind.json");
    std::fs::write(&file, kind.to_string()).doing(|| "cannot write a kind")?;
    control_plane.kubectl(&["apply", "-f", &file.display().to_string()])?;
    let name = "crd/proxies.config.openshift.io";
    let wait = ["wait", "--for=condition=Established", name];
    control_plane.kubectl(&wait).map(|_| ())
}

/// Makes the Proxy say this: what somebody wants, and what became of it.
pub(crate) async fn say(client: &Client, spec: Value, status: Value) -> Result<()> {
    let kind = GroupVersionKind::gvk("config.openshift.io", "v1", "Proxy");
    let kind = ApiResource::from_gvk_with_plural(&kind, "proxies");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let parameters = PatchParams::apply("network").force();
    let mut object = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Proxy",
        "metadata": { "name": "cluster" }, "spec": spec,
    });
    let made = api
        .patch("cluster", &parameters, &Patch::Apply(&object))
        .await;
    made.doing(|| "cannot make the Proxy")?;
    // One that is not named is not left as it was.
    let mut whole = json!({ "httpProxy": "", "httpsProxy": "", "noProxy": "" });
    for (field, value) in status.as_object().into_iter().flatten() {
        whole[field] = value.clone();
    }
    object["status"] = whole;
    let said = api
        .patch_status("cluster", &parameters, &Patch::Apply(&object))
        .await;
    said.map(|_| ())
        .doing(|| "cannot write the status of the Proxy")
}

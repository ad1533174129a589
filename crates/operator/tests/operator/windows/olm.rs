//! OLM reads whether a newer version may be installed.

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use kube::Api;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::bed::{Bed, OWN, worker_ignition};
use crate::scene::{SOON, alone};

const NAME: &str = "evenkeel.v0.1.0";

/// What OLM brings: the kind, the object, and the rights on it that the operator has from OLM.
async fn olm(bed: &Bed) -> Result<Api<DynamicObject>> {
    let condition = json!({ "type": "array", "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": { "type": "string" }, "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
            "reason": { "type": "string", "minLength": 1 }, "message": { "type": "string" },
            "lastTransitionTime": { "type": "string", "format": "date-time" },
        },
    } });
    let kind = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "operatorconditions.operators.coreos.com" },
        "spec": {
            "group": "operators.coreos.com", "scope": "Namespaced",
            "names": { "kind": "OperatorCondition", "plural": "operatorconditions" },
            "versions": [{
                "name": "v2", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": { "conditions": condition } },
                    "status": { "type": "object", "properties": { "conditions": condition } },
                } } },
            }],
        },
    });
    let namespace = &bed.scene.name;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": NAME, "namespace": namespace },
        "rules": [{
            "apiGroups": ["operators.coreos.com"], "resources": ["operatorconditions"],
            "resourceNames": [NAME], "verbs": ["get", "update", "patch"],
        }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": NAME, "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME },
        "subjects": [{ "kind": "ServiceAccount", "name": "evenkeel-operator", "namespace": namespace }],
    });
    let control_plane = bed.scene.control_plane;
    let file = bed.scene.scratch.path().join("olm.json");
    let all = json!({ "apiVersion": "v1", "kind": "List", "items": [kind, role, binding] });
    std::fs::write(&file, all.to_string()).doing(|| "cannot write")?;
    {
        let _alone = alone();
        control_plane.kubectl(&["apply", "-f", &file.display().to_string()])?;
    }
    let crd = "crd/operatorconditions.operators.coreos.com";
    control_plane.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", crd])?;
    let kind = GroupVersionKind::gvk("operators.coreos.com", "v2", "OperatorCondition");
    let kind = ApiResource::from_gvk_with_plural(&kind, "operatorconditions");
    let api = Api::namespaced_with(bed.scene.client.clone(), namespace, &kind);
    let object = json!({
        "apiVersion": "operators.coreos.com/v2", "kind": "OperatorCondition",
        "metadata": { "name": NAME },
        "spec": { "conditions": [{
            "type": "Theirs", "status": "True", "reason": "Theirs", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] },
    });
    let object = serde_json::from_value(object).doing(|| "no object")?;
    let made = api.create(&PostParams::default(), &object).await;
    made.map(|_| api)
        .doing(|| "cannot make the OperatorCondition")
}

async fn until_said(api: &Api<DynamicObject>, status: &str, reason: &str) -> Result<String> {
    until_async(
        &format!("Upgradeable {status} {reason}"),
        SOON,
        async || {
            let found = api.get(NAME).await.doing(|| "no OperatorCondition")?;
            let said = found.data["spec"]["conditions"].clone();
            let all = said.as_array().cloned().unwrap_or_default();
            let of = |kind: &str| all.iter().find(|it| it["type"] == kind).cloned();
            let found =
                of("Upgradeable").filter(|it| it["status"] == status && it["reason"] == reason);
            Ok(match found {
                Some(found) if of("Theirs").is_some() => {
                    let message = found["message"].as_str().unwrap_or_default();
                    Look::Found(message.to_owned())
                }
                _ => Look::NotYet(Value::to_string(&said)),
            })
        },
    )
    .await
}

#[tokio::test]
async fn olm_hears_that_a_newer_version_must_wait_and_when_it_may_come() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("olm").await?;
    let api = olm(&bed).await?;
    let (folder, pool) = (bed.payload.display().to_string(), bed.pool_name());
    let _operator = bed.scene.operator(&[
        "--payload",
        &folder,
        "--windows-pool",
        &pool,
        "--operator-condition",
        NAME,
    ])?;
    // Nobody can say what nodes get: the same words as on the pool.
    let said = until_said(&api, "False", "NoWorkerIgnition").await?;
    assert!(!said.is_empty());
    bed.give_worker(&worker_ignition("first")).await?;
    until_said(&api, "True", "AsExpected").await?;
    // A node of an older version is not at its end; one that runs this version is.
    let (_, services) = bed.own_map(SOON).await?;
    let node = bed.node("old", "1.0.0-0000001", "before").await?;
    let said = until_said(&api, "False", "NodesUpdating").await?;
    assert!(said.contains("1 of 1") && said.contains(OWN), "{said}");
    node.delete(&bed.scene.control_plane.admin_kubeconfig())
        .await?;
    let _new = bed.node("new", OWN, &services.hash()).await?;
    until_said(&api, "True", "AsExpected").await.map(|_| ())
}

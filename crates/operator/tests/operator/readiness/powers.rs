//! What a rule may say besides its extensions, on a real API server: a taint of its own, an end after bootstrap, conditions of which
//! one is enough, and a taint that takes pods away within their budgets.

use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::scene::{SOON, Scene, annotated, is_ready};

const KEY: &str = "readiness.k8s.io/net";

/// The taints of a node as `key=value:effect`, but for what Kubernetes itself has there for a moment.
pub(crate) fn full_taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|it| it.taints.clone());
    let taints = taints.unwrap_or_default().into_iter();
    let taints = taints.filter(|it| !it.key.starts_with("node.kubernetes.io/"));
    let mut taints: Vec<_> = taints
        .map(|it| format!("{}={}:{}", it.key, it.value.unwrap_or_default(), it.effect))
        .collect();
    taints.sort();
    taints
}

/// Waits until these are the taints of a node.
pub(crate) async fn until_taints(scene: &Scene, node: &str, wanted: &[&str]) -> Result<Node> {
    until_async(&format!("{node} to have {wanted:?}"), SOON, async || {
        let seen = scene.node(node).await?;
        Ok(if full_taints(&seen) == wanted {
            Look::Found(seen)
        } else {
            Look::NotYet(format!("{:?}\n{}", full_taints(&seen), scene.log()))
        })
    })
    .await
}

async fn stays_so(scene: &Scene, node: &str, wanted: &[&str]) -> Result<()> {
    let is_so = async || Ok(full_taints(&scene.node(node).await?) == wanted);
    scene
        .stays(&format!("{node} {wanted:?}"), Duration::from_secs(3), is_so)
        .await
}

fn net(mut spec: Value) -> Value {
    if spec["extensions"].is_null() {
        spec["extensions"] = json!([{ "name": "net", "condition": { "type": "NetReady" } }]);
    }
    if spec["evictAfter"].is_null() {
        spec["evictAfter"] = json!("0s");
    }
    spec
}

async fn begin(prefix: &str, spec: Value) -> Result<(Scene, NodeDouble)> {
    let scene = Scene::new(prefix).await?;
    scene.prepare_readiness()?;
    scene.rule("net", net(spec)).await?;
    let node = scene.start(scene.describe("n1")).await?;
    Ok((scene, node))
}

fn options(scene: &Scene) -> [String; 2] {
    [
        "--rule-selector".to_owned(),
        format!("place={}", scene.name),
    ]
}

/// Covers N08.
#[tokio::test]
async fn a_rule_has_its_own_taint_from_the_nodes_creation_until_the_rule_goes() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let taint = json!({ "key": KEY, "value": "pending" });
    let (scene, node) = begin("own-taint", json!({ "taint": taint })).await?;
    let name = node.name().to_owned();
    let held = [format!("{KEY}=pending:NoSchedule")];
    let held = held.each_ref().map(String::as_str);
    // Nobody of ours runs: it came with the Node.
    let created = scene.node(&name).await?;
    assert_eq!(full_taints(&created), held);
    assert_eq!(
        annotated(&created, annotation::READINESS_TAINTS),
        Some("readiness.k8s.io/net:NoSchedule")
    );
    let options = options(&scene);
    let options = options.each_ref().map(String::as_str);
    let operator = scene.operator(&options)?;
    scene
        .rule_status("net", |it| it["nodes"]["notReady"] == 1)
        .await?;
    stays_so(&scene, &name, &held).await?;
    scene.condition(&name, "NetReady", "True").await?;
    let free = until_taints(&scene, &name, &[]).await?;
    assert_eq!(annotated(&free, annotation::READINESS_TAINTS), None);
    scene.condition(&name, "NetReady", "False").await?;
    until_taints(&scene, &name, &held).await?;
    // The rule goes while nobody leads.
    drop(operator);
    scene.delete_rule("net").await?;
    scene.nobody_leads().await?;
    let _operator = scene.operator(&options)?;
    let free = until_taints(&scene, &name, &[]).await?;
    assert_eq!(annotated(&free, annotation::READINESS_OWNERS), None);
    assert_eq!(annotated(&free, annotation::READINESS_TAINTS), None);
    Ok(())
}

/// Covers N08.
#[tokio::test]
async fn a_bootstrap_rule_leaves_its_mark_and_never_taints_the_node_again() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (scene, node) = begin("bootstrap", json!({ "enforcement": "Bootstrap" })).await?;
    let name = node.name().to_owned();
    let options = options(&scene);
    let options = options.each_ref().map(String::as_str);
    let operator = scene.operator(&options)?;
    scene.tainted(&name, true).await?;
    scene.condition(&name, "NetReady", "True").await?;
    let free = scene.tainted(&name, false).await?;
    let rule = scene.rules().get(&scene.called("net")).await;
    let uid = rule.doing(|| "no rule")?.metadata.uid.unwrap_or_default();
    let mark = format!("{}={uid}", scene.called("net"));
    assert_eq!(
        annotated(&free, annotation::BOOTSTRAP_COMPLETED),
        Some(mark.as_str())
    );
    scene.condition(&name, "NetReady", "False").await?;
    stays_so(&scene, &name, &[]).await?;
    node.restart_machine().await?;
    stays_so(&scene, &name, &[]).await?;
    drop(operator);
    scene.nobody_leads().await?;
    let _operator = scene.operator(&options)?;
    scene
        .rule_status("net", |it| it["nodes"]["ready"] == 1)
        .await?;
    stays_so(&scene, &name, &[]).await
}

/// Covers N08.
#[tokio::test]
async fn one_of_several_conditions_is_enough_and_an_absent_problem_is_none() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let extensions = json!([
        { "name": "net", "anyOf": [{ "type": "Calico" }, { "type": "Cilium" }] },
        { "name": "kernel", "condition": { "type": "KernelDeadlock", "status": "False", "defaultStatus": "False" } },
    ]);
    let (scene, node) = begin("any-of", json!({ "extensions": extensions })).await?;
    let name = node.name().to_owned();
    let options = options(&scene);
    let options = options.each_ref().map(String::as_str);
    let _operator = scene.operator(&options)?;
    scene.tainted(&name, true).await?;
    for (kind, status, is_tainted) in [
        ("Cilium", "True", false),
        ("Calico", "False", false),
        ("Cilium", "False", true),
        ("Calico", "True", false),
        ("KernelDeadlock", "True", true),
        ("KernelDeadlock", "False", false),
    ] {
        scene.condition(&name, kind, status).await?;
        scene.tainted(&name, is_tainted).await?;
    }
    Ok(())
}

/// Covers N08.
#[tokio::test]
async fn no_execute_comes_after_evictions_within_their_budgets() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let taint = json!({ "key": KEY, "effect": "NoExecute" });
    let spec = json!({ "taint": taint, "evictAfter": "1s" });
    let (scene, node) = begin("no-execute", spec).await?;
    let name = node.name().to_owned();
    let options = options(&scene);
    let options = options.each_ref().map(String::as_str);
    scene.condition(&name, "NetReady", "True").await?;
    let _operator = scene.operator(&options)?;
    until_taints(&scene, &name, &[]).await?;
    let labelled = |it: &mut Value| it["metadata"]["labels"] = json!({ "app": "web" });
    scene.pod(&name, "web", labelled).await?;
    let tolerant = json!([{ "key": KEY, "operator": "Exists" }]);
    scene
        .pod(&name, "tolerant", |it| {
            it["spec"]["tolerations"] = tolerant.clone();
        })
        .await?;
    scene.budget("web", json!({ "minAvailable": 1 })).await?;
    scene.condition(&name, "NetReady", "False").await?;
    let soft = format!("{KEY}=:NoSchedule");
    until_taints(&scene, &name, &[soft.as_str()]).await?;
    scene.event(&name, "EvictingPods").await?;
    stays_so(&scene, &name, &[soft.as_str()]).await?;
    let on_it = format!("spec.nodeName={name}");
    assert_eq!(scene.names(&on_it, is_ready).await?.len(), 2);
    // The budget allows it now.
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(scene.client.clone(), &scene.name);
    let all = ListParams::default();
    let deleted = budgets
        .delete_collection(&DeleteParams::default(), &all)
        .await;
    deleted.doing(|| "cannot delete the budget")?;
    let hard = format!("{KEY}=:NoExecute");
    until_taints(&scene, &name, &[hard.as_str()]).await?;
    let left = scene.names(&on_it, is_ready).await?;
    assert_eq!(left.into_iter().collect::<Vec<_>>(), ["tolerant"]);
    scene.condition(&name, "NetReady", "True").await?;
    until_taints(&scene, &name, &[]).await?;
    Ok(())
}

//! A Machine goes: hooks are waited for, its Node is drained, the machine is gone, then the Node, then
//! the object.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{World, has_finalizer, locked};
use crate::wait::late;
use crate::{Doing, Error, Result};

/// How long pods may take to leave.
const DRAIN: Duration = Duration::from_mins(10);
/// Between two looks at them.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes one step as far as hooks let it; a hook that goes is news, and it is gone on then.
pub(super) async fn remove(world: &World, machine: &DynamicObject) -> Result<()> {
    let hooks = &machine.data["spec"]["lifecycleHooks"];
    let waits = |hook: &str| hooks[hook].as_array().is_some_and(|it| !it.is_empty());
    if !has_finalizer(machine) || waits("preDrain") {
        return Ok(());
    }
    let uid = machine.uid().unwrap_or_default();
    let known = locked(&world.bodies).get(&uid).map(|it| it.node());
    let said = machine.data["status"]["nodeRef"]["name"].as_str();
    let node = said.map(str::to_owned).or(known);
    let nodes: Api<Node> = Api::all(world.client.clone());
    if machine.data["status"]["phase"] != "Deleting" {
        let status = json!({ "phase": "Deleting" });
        world.say(&machine.name_any(), status).await?;
    }
    if let Some(node) = &node {
        drain(world, &nodes, node).await?;
    }
    if waits("preTerminate") {
        return Ok(());
    }
    let body = locked(&world.bodies).remove(&uid);
    tokio::task::spawn_blocking(move || drop(body))
        .await
        .doing(|| "cannot remove a machine")?;
    if let Some(node) = &node {
        match nodes.delete(node, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => drop(deleted.doing(|| format!("cannot delete node {node}"))?),
        }
    }
    let patch = json!({ "metadata": { "finalizers": null } });
    world.patch(machine, patch).await
}

/// Cordons the Node and evicts its pods, as their budgets allow.
async fn drain(world: &World, nodes: &Api<Node>, node: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    match nodes.patch(node, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        cordoned => drop(cordoned.doing(|| format!("cannot cordon node {node}"))?),
    }
    let start = Instant::now();
    loop {
        let left = evict(world, node).await?;
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > DRAIN {
            let what = format!("the pods of {node} to leave");
            return Err(late(&what, DRAIN, &left.join(", ")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Evicts whoever may go from a Node; those who are still there.
async fn evict(world: &World, node: &str) -> Result<Vec<String>> {
    let all: Api<Pod> = Api::all(world.client.clone());
    let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = all.list(&there).await.doing(|| "cannot list pods")?;
    let mut left = Vec::new();
    for pod in pods.items {
        if pod
            .owner_references()
            .iter()
            .any(|it| it.kind == "DaemonSet")
        {
            continue;
        }
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let own: Api<Pod> = Api::namespaced(world.client.clone(), &namespace);
        match own.evict(&name, &EvictParams::default()).await {
            Ok(_) => {}
            // Gone, going, or its budget says not yet.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 429) => {}
            Err(error) => return Err(Error::because(format!("cannot evict {name}"), error)),
        }
        left.push(name);
    }
    Ok(left)
}

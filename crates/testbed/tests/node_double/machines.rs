//! What the machine controller promises: what the rest of a cluster sees of a real one.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::machine_double::{
    self, MachineController, Maker, SimulatedMachine, machine_set, machine_sets, machines,
};
use evenkeel_testbed::node_double::{NodeDouble, Os};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{Place, SOON};

/// Machines that are nodes of `place` and nothing else.
fn simulated(place: &Place) -> Maker {
    let (login, label) = (place.control_plane.admin_kubeconfig(), place.name.clone());
    Arc::new(move |name, labels| {
        let (login, label) = (login.clone(), label.clone());
        Box::pin(async move {
            assert_eq!(labels["place"], label.as_str());
            let node = NodeDouble::named(&name)
                .label("place", &label)
                .os(Os::Windows);
            let made = SimulatedMachine::start(node, &json!({ "made": "yes" }), &login).await?;
            Ok(Box::new(made) as _)
        })
    })
}

/// Waits until exactly so many Machines stay and have their Node; those.
async fn running(api: &Api<DynamicObject>, count: usize) -> Result<Vec<DynamicObject>> {
    until_async(&format!("{count} Machines to run"), SOON, async || {
        let all = api.list(&ListParams::default()).await;
        let all = all.doing(|| "no Machines")?.items;
        let runs = |it: &DynamicObject| {
            it.metadata.deletion_timestamp.is_none() && it.data["status"]["phase"] == "Running"
        };
        Ok(if all.len() == count && all.iter().all(runs) {
            Look::Found(all)
        } else {
            let seen = all.iter().map(|it| (it.name_any(), &it.data["status"]));
            Look::NotYet(format!("{:?}", seen.collect::<Vec<_>>()))
        })
    })
    .await
}

async fn node_uids(place: &Place) -> Result<BTreeSet<String>> {
    let selector = ListParams::default().labels(&format!("place={}", place.name));
    let nodes = place.nodes().list(&selector).await;
    let nodes = nodes.doing(|| "no Nodes")?.items;
    Ok(nodes.iter().filter_map(ResourceExt::uid).collect())
}

async fn patch(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<()> {
    let parameters = PatchParams::default();
    let patched = api.patch(name, &parameters, &Patch::Merge(patch)).await;
    patched.map(|_| ()).doing(|| format!("cannot write {name}"))
}

#[tokio::test]
async fn a_machine_set_replaces_what_is_deleted_and_a_hook_holds_it_up() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let place = Place::new("machines").await?;
    machine_double::install_kinds(place.control_plane)?;
    let login = place.control_plane.admin_kubeconfig();
    let controller = MachineController::start(&login, &place.name, simulated(&place)).await?;
    let sets = machine_sets(place.client.clone(), &place.name);
    let api = machines(place.client.clone(), &place.name);
    let labels = json!({ "place": place.name });
    let set = machine_set("set", 2, &json!({}), &labels);
    let set: DynamicObject = serde_json::from_value(set).doing(|| "no MachineSet")?;
    let created = PostParams::default();
    sets.create(&created, &set)
        .await
        .doing(|| "no MachineSet")?;
    let alone = json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
        "metadata": { "name": format!("{}-alone", place.name), "labels": labels },
    });
    let alone: DynamicObject = serde_json::from_value(alone).doing(|| "no Machine")?;
    api.create(&created, &alone).await.doing(|| "no Machine")?;
    let all = running(&api, 3).await?;
    let before = node_uids(&place).await?;
    assert_eq!(before.len(), 3);
    for machine in &all {
        let node = machine.data["status"]["nodeRef"]["name"].as_str();
        let node = place.nodes().get(node.unwrap_or_default()).await;
        let node = node.doing(|| "it has no Node")?;
        assert!(node.annotations().contains_key("made"));
    }
    let owned = all.iter().find(|it| !it.owner_references().is_empty());
    let owned = owned.map(ResourceExt::name_any).unwrap_or_default();

    // A hook holds it up: it is replaced at once, and stays as long, with its Node cordoned.
    let hook = json!([{ "name": "wait", "owner": "test" }]);
    let hooks = |hook: Value| json!({ "spec": { "lifecycleHooks": { "preTerminate": hook } } });
    patch(&api, &owned, hooks(hook)).await?;
    let deleted = DeleteParams::default();
    api.delete(&owned, &deleted)
        .await
        .doing(|| "cannot delete")?;
    until_async("a fourth machine", SOON, async || {
        let uids = node_uids(&place).await?;
        let node = place.nodes().get(&owned).await.doing(|| "its Node went")?;
        let is_cordoned = node.spec.and_then(|it| it.unschedulable) == Some(true);
        Ok(if uids.len() == 4 && is_cordoned {
            Look::Found(())
        } else {
            Look::NotYet(format!("{uids:?} {is_cordoned}"))
        })
    })
    .await?;
    patch(&api, &owned, hooks(json!([]))).await?;
    let after = running(&api, 3).await?;
    assert!(after.iter().all(|it| it.name_any() != owned));
    assert_eq!(node_uids(&place).await?.intersection(&before).count(), 2);

    // Nobody replaces a Machine that no set backs; a set scaled to zero has none.
    api.delete(&alone.name_any(), &deleted)
        .await
        .doing(|| "cannot delete")?;
    running(&api, 2).await?;
    patch(&sets, "set", json!({ "spec": { "replicas": 0 } })).await?;
    running(&api, 0).await?;
    assert_eq!(node_uids(&place).await?.len(), 0);
    drop(controller);
    Ok(())
}

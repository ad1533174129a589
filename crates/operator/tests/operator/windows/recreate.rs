//! Machines of `MachineSets` are made anew to get another version, never more of a set or of the pool at once than may be.
//! Machines are the test bed's; they are watched from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_api::names::annotation;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::machine_double::{
    self, MachineController, Maker, SimulatedMachine, machine_set, machine_sets, machines,
};
use evenkeel_testbed::node_double::{NodeDouble, Os};
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::bed::{Bed, OWN, worker_ignition};
use crate::scene::{SOON, annotated, is_cordoned};

const OLD: &str = "1.0.0-0000001";
const EACH: usize = 5;
/// How many of the whole pool may be away.
const POOL: usize = 3;
const LONG: Duration = Duration::from_mins(3);

/// Machines that are nodes; of the old version until `is_new`, then of the operator's, which takes each a moment.
fn maker(bed: &Bed, hash: &str, is_new: &Arc<AtomicBool>) -> Maker {
    let login = bed.scene.control_plane.admin_kubeconfig();
    let (place, hash) = (bed.scene.name.clone(), hash.to_owned());
    let is_new = is_new.clone();
    Arc::new(move |name: String, labels: Value| {
        let (login, place, hash) = (login.clone(), place.clone(), hash.clone());
        let is_new = is_new.load(Ordering::SeqCst);
        Box::pin(async move {
            let set = labels["set"].as_str().unwrap_or_default();
            let node = NodeDouble::named(&name)
                .label("place", &place)
                .label("set", set)
                .os(Os::Windows);
            let (version, hash) = if is_new {
                (OWN, hash.as_str())
            } else {
                (OLD, "before")
            };
            if is_new {
                // It boots.
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            let annotations = json!({
                annotation::WINDOWS_VERSION: version, annotation::WINDOWS_DESIRED_VERSION: version,
                annotation::CURRENT_SERVICES: hash, annotation::DESIRED_SERVICES: hash,
                annotation::INSTANCE: format!("Administrator@machine_{place}_{name}"),
            });
            let made = SimulatedMachine::start(node, &annotations, &login).await?;
            Ok(Box::new(made) as _)
        })
    })
}

/// What somebody who looks at Nodes sees: how many of each set served at the least, and of all.
#[derive(Default)]
struct ServingNodes {
    serving: BTreeMap<String, BTreeSet<String>>,
    least: BTreeMap<String, usize>,
    least_of_all: Option<usize>,
}

impl ServingNodes {
    fn take_note(&mut self, node: &Node, is_there: bool) {
        let set = node.labels().get("set").cloned().unwrap_or_default();
        let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
        let is_ready = conditions
            .into_iter()
            .flatten()
            .any(|it| it.type_ == "Ready" && it.status == "True");
        let serves = is_there
            && is_ready
            && !is_cordoned(node)
            && annotated(node, annotation::WINDOWS_VERSION).is_some();
        let own = self.serving.entry(set).or_default();
        if serves {
            own.insert(node.name_any());
        } else {
            own.remove(&node.name_any());
        }
    }

    fn count(&mut self) {
        for (set, serving) in &self.serving {
            let least = self.least.entry(set.clone()).or_insert(serving.len());
            *least = serving.len().min(*least);
        }
        let counted = ["a", "b", "c"];
        let all = counted.iter().filter_map(|it| self.serving.get(*it));
        let all = all.map(BTreeSet::len).sum();
        self.least_of_all = Some(self.least_of_all.map_or(all, |it| it.min(all)));
    }
}

/// Watches the nodes of `place` until it is dropped.
fn watch(bed: &Bed, serving: &Arc<Mutex<ServingNodes>>) -> tokio::task::JoinHandle<()> {
    let config = watcher::Config::default().labels(&format!("place={}", bed.scene.name));
    let changes = watcher(Api::<Node>::all(bed.scene.client.clone()), config);
    let serving = serving.clone();
    tokio::spawn(async move {
        let mut changes = std::pin::pin!(changes);
        let mut is_listed = false;
        while let Some(change) = changes.next().await {
            let mut seen = serving.lock().unwrap_or_else(PoisonError::into_inner);
            match change {
                Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) => {
                    seen.take_note(&node, true);
                }
                Ok(watcher::Event::Delete(node)) => {
                    seen.take_note(&node, false);
                }
                Ok(watcher::Event::InitDone) => is_listed = true,
                _ => {}
            }
            if is_listed {
                seen.count();
            }
        }
    })
}

async fn make(api: &Api<DynamicObject>, object: Value) -> Result<()> {
    let object = serde_json::from_value(object).doing(|| "no object")?;
    let made = api.create(&PostParams::default(), &object).await;
    made.map(|_| ()).doing(|| "cannot make an object")
}

async fn nodes(bed: &Bed) -> Result<Vec<Node>> {
    let place = ListParams::default().labels(&format!("place={}", bed.scene.name));
    let nodes = bed.scene.nodes().list(&place).await;
    Ok(nodes.doing(|| "cannot list Nodes")?.items)
}

/// Waits until so many nodes of a, b and c run `version`; all nodes.
async fn until_run(bed: &Bed, count: usize, version: &str) -> Result<Vec<Node>> {
    until_async(
        &format!("{count} nodes to run {version}"),
        LONG,
        async || {
            let all = nodes(bed).await?;
            let run = all.iter().filter(|it| {
                let set = it.labels().get("set").map(String::as_str);
                let is_counted = set.is_some_and(|it| ["a", "b", "c"].contains(&it));
                is_counted && annotated(it, annotation::WINDOWS_VERSION) == Some(version)
            });
            Ok(if run.count() >= count {
                Look::Found(all)
            } else {
                let log = bed.scene.log();
                let lines: Vec<_> = log.lines().rev().take(8).collect();
                let status = bed.status().await?;
                Look::NotYet(format!(
                    "{} nodes, {:?}, {:?}\n{lines:#?}",
                    all.len(),
                    status.nodes,
                    status.updating
                ))
            })
        },
    )
    .await
}

/// Waits for an Event on an object of that kind and name.
async fn until_told(bed: &Bed, kind: &str, name: &str, reason: &str) -> Result<String> {
    let events: Api<Event> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    until_async(&format!("{reason} on {kind} {name}"), SOON, async || {
        let all = events.list(&ListParams::default()).await;
        let all = all.doing(|| "cannot list Events")?.items;
        let mut on_it = all.iter().filter(|it| {
            let on = it.regarding.clone().unwrap_or_default();
            on.kind.as_deref() == Some(kind) && on.name.as_deref() == Some(name)
        });
        let found = on_it.find(|it| it.reason.as_deref() == Some(reason));
        Ok(match found {
            Some(event) => Look::Found(event.note.clone().unwrap_or_default()),
            None => Look::NotYet(format!(
                "{:?}",
                all.iter().map(|it| &it.note).collect::<Vec<_>>()
            )),
        })
    })
    .await
}

/// Kills the operator at both boundaries of a replacement, twice: when a place is held in the pool's status, and when a
/// Machine was deleted. Another one follows.
async fn killed(bed: &Bed, mut operator: Running) -> Result<Running> {
    let held = async || -> Result<BTreeSet<String>> {
        let all = bed.status().await?.updating.into_iter();
        Ok(all.map(|it| it.node).collect())
    };
    let deleted = || bed.scene.log().matches("MachineReplaced").count();
    for at in ["held", "deleted"].repeat(2) {
        let (places, count) = (held().await?, deleted());
        until_async(&format!("another one to be {at}"), LONG, async || {
            let is_there = match at {
                "held" => !held().await?.is_subset(&places),
                _ => deleted() > count,
            };
            Ok(if is_there {
                Look::Found(())
            } else {
                Look::NotYet(format!("{places:?}, {count}"))
            })
        })
        .await?;
        operator.kill()?;
        println!("proof: the operator was killed when one was {at}");
        bed.scene.nobody_leads().await?;
        operator = bed.operator()?;
    }
    Ok(operator)
}

/// Covers U04, U05, U06, U08.
#[tokio::test(flavor = "multi_thread")]
async fn machines_of_sets_are_made_anew_within_every_limit_and_one_without_a_set_is_never_deleted()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("recreate").await?;
    machine_double::install_kinds(bed.scene.control_plane)?;
    let pool = json!({ "strategy": "Recreate", "maxUnavailable": POOL, "paused": true });
    bed.edit_pool(pool).await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let operator = bed.operator()?;
    let (_, services) = bed.own_map(SOON).await?;
    let is_new = Arc::new(AtomicBool::new(false));
    let login = bed.scene.control_plane.admin_kubeconfig();
    let (place, client) = (bed.scene.name.clone(), bed.scene.client.clone());
    let make_one = maker(&bed, &services.hash(), &is_new);
    let _controller = MachineController::start(&login, &place, make_one).await?;
    let (api, sets) = (
        machines(client.clone(), &place),
        machine_sets(client, &place),
    );
    let labels =
        |set: &str| json!({ "place": place, "set": set, "machine.openshift.io/os-id": "Windows" });
    let limits = [
        ("a", json!({ annotation::MAX_UNHEALTHY: "1" }), 1),
        ("b", json!({ annotation::MAX_UNHEALTHY: "40%" }), 2),
        ("c", json!({}), 1),
    ];
    for (set, annotations, _) in &limits {
        make(&sets, machine_set(set, EACH, annotations, &labels(set))).await?;
    }
    // Nobody understands the limit of this one.
    let rubbish = json!({ annotation::MAX_UNHEALTHY: "200%" });
    make(&sets, machine_set("z", 2, &rubbish, &labels("z"))).await?;
    make(&sets, machine_set("y", 1, &json!({}), &labels("y"))).await?;
    until_run(&bed, 3 * EACH, OLD).await?;
    let before = until_async("all nodes", LONG, async || {
        let all = nodes(&bed).await?;
        Ok(match all.len() {
            18 => Look::Found(all),
            count => Look::NotYet(count.to_string()),
        })
    })
    .await?;
    let uids = |nodes: &[Node], set: &str| -> BTreeSet<String> {
        let own = |it: &&Node| it.labels().get("set").is_some_and(|it| it == set);
        nodes
            .iter()
            .filter(own)
            .filter_map(ResourceExt::uid)
            .collect()
    };
    let of_z = uids(&before, "z");
    let before: BTreeSet<String> = before.iter().filter_map(ResourceExt::uid).collect();

    let serving = Arc::new(Mutex::new(ServingNodes::default()));
    let watching = watch(&bed, &serving);
    is_new.store(true, Ordering::SeqCst);
    bed.edit_pool(json!({ "paused": false })).await?;
    let said = until_told(&bed, "MachineSet", "z", "InvalidMaxUnhealthy").await?;
    assert!(
        said.contains("max-unhealthy") && said.contains("write a number"),
        "{said}"
    );
    until_run(&bed, 4, OWN).await?;
    // Scaled to zero in the middle: its own controller takes its Machines away, and the others go on.
    let zero = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    let scaled = sets.patch("y", &PatchParams::default(), &zero).await;
    scaled.doing(|| "cannot scale a MachineSet")?;
    let _operator = killed(&bed, operator).await?;
    let after = until_run(&bed, 3 * EACH, OWN).await?;
    watching.abort();
    for (set, ..) in &limits {
        let new = uids(&after, set);
        assert!(new.is_disjoint(&before), "{set}: {new:?} are new Nodes");
    }
    let log = bed.scene.log();
    let about_z: Vec<&str> = log.lines().filter(|it| it.contains("z-")).collect();
    assert_eq!(uids(&nodes(&bed).await?, "z"), of_z, "{about_z:#?}");
    let seen = std::mem::take(&mut *serving.lock().unwrap_or_else(PoisonError::into_inner));
    println!(
        "proof: at the least {:?} of {EACH} each served, {:?} of {} in all",
        seen.least,
        seen.least_of_all,
        3 * EACH
    );
    for (set, _, limit) in &limits {
        let least = seen.least.get(*set).copied().unwrap_or_default();
        assert!(least >= EACH - limit, "{set}: {least}");
        assert!(least < EACH, "{set} was never touched");
    }
    assert!(
        seen.least_of_all >= Some(3 * EACH - POOL),
        "{:?}",
        seen.least_of_all
    );
    bed.until_status("all updated", |it| {
        it.nodes.updated == 15 && it.nodes.total == 17 && it.updating.is_empty()
    })
    .await?;

    // One that no set backs goes in place: its pods are asked to leave, and its Machine stays.
    is_new.store(false, Ordering::SeqCst);
    let alone = format!("{place}-alone");
    let machine = json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
        "metadata": { "name": alone, "labels": labels("none") },
    });
    make(&api, machine).await?;
    let said = until_told(&bed, "Machine", &alone, "MachineNotReplaced").await?;
    assert!(
        said.contains("is not deleted") && said.contains(OWN),
        "{said}"
    );
    until_async("its pods to be asked to leave", SOON, async || {
        let node = bed.scene.node(&alone).await?;
        let asked = annotated(&node, annotation::DESIRED_DRAIN).map(str::to_owned);
        Ok(
            if asked
                .as_deref()
                .is_some_and(|it| it.starts_with("drain-upgrade-"))
            {
                Look::Found(())
            } else {
                Look::NotYet(format!("{asked:?}"))
            },
        )
    })
    .await?;
    let found = api.get(&alone).await.doing(|| "it was deleted")?;
    assert!(found.metadata.deletion_timestamp.is_none());
    Ok(())
}

//! Nodes whose instances leave the list: who is drained when, who goes, and who stays after all. Nobody answers at their
//! addresses, so that each is given up after its drain; how a machine is taken out is tested on real ones.

use std::process::Command;

use evenkeel_api::names::{annotation, cordon, object};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::node_double::NodeDouble;
use evenkeel_testbed::process::{Running, run};
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::bed::{Bed, OWN, worker_ignition};
use crate::removal_watcher::RemovalWatcher;
use crate::scene::{SOON, annotated, is_cordoned};

/// The workload.
const APP: &str = "web";
/// The drain is late after this, and a machine that nobody reaches is given up.
const OPTIONS: [&str; 4] = ["--drain-timeout", "1s", "--leave-timeout", "2s"];

/// Nodes that serve, by instances where nobody answers.
struct Listed {
    bed: Bed,
    nodes: Vec<NodeDouble>,
    addresses: Vec<String>,
}

impl Listed {
    /// So many, at addresses that begin so.
    async fn new(prefix: &str, network: &str, count: usize) -> Result<(Self, Running)> {
        let bed = Bed::new(prefix).await?;
        bed.give_worker(&worker_ignition("first")).await?;
        let key = bed.scene.scratch.path().join("key");
        let mut make = Command::new("ssh-keygen");
        run(make.args(["-q", "-N", "", "-t", "ed25519", "-f"]).arg(&key))?;
        let key = std::fs::read_to_string(key).doing(|| "there is no key")?;
        let secret = json!({
            "metadata": { "name": object::CLOUD_PRIVATE_KEY },
            "stringData": { object::CLOUD_PRIVATE_KEY_FILE: key },
        });
        bed.scene.create::<Secret>(secret).await?;
        // What nodes are to run says an operator that is gone when they come.
        let first = bed.operator()?;
        let hash = bed.own_map(SOON).await?.1.hash();
        drop(first);
        bed.scene.nobody_leads().await?;
        let mut listed = Self {
            bed,
            nodes: Vec::new(),
            addresses: Vec::new(),
        };
        for number in 1..=count {
            let bed = &listed.bed;
            let node = bed.node(&format!("w{number}"), OWN, &hash).await?;
            let address = format!("{network}.{number}");
            let instance = json!({ annotation::INSTANCE: format!("Administrator@{address}") });
            bed.annotate(node.name(), instance).await?;
            listed.nodes.push(node);
            listed.addresses.push(address);
        }
        listed.list(true).await?;
        listed.remember().await?;
        let operator = listed.bed.operator_in(&[], &OPTIONS)?;
        for address in &listed.addresses {
            listed.says(address, "Ready", "").await?;
        }
        listed.taken_over().await?;
        Ok((listed, operator))
    }

    /// Lists all of them, or nobody.
    async fn list(&self, all: bool) -> Result<()> {
        let entries = self.addresses.iter().filter(|_| all);
        let data: serde_json::Map<String, Value> = entries
            .map(|it| (it.clone(), json!("username=Administrator")))
            .collect();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": object::WINDOWS_INSTANCES }, "data": data,
        });
        let parameters = PatchParams::apply("test").force();
        let maps = self.bed.maps();
        let put = maps
            .patch(object::WINDOWS_INSTANCES, &parameters, &Patch::Apply(map))
            .await;
        put.map(|_| ()).doing(|| "cannot list instances")
    }

    /// What is remembered of an instance.
    async fn record(&self, address: &str) -> Result<Value> {
        let mut records = self.bed.scene.records().await?;
        Ok(records.remove(address).unwrap_or_default())
    }

    /// Waits until what stood in one object stands in one for each.
    async fn taken_over(&self) -> Result<()> {
        until_async("the one object to be gone", SOON, async || {
            let old = self.bed.maps().get_opt(object::INSTANCES_STATUS).await;
            Ok(match old.doing(|| "no answer")? {
                None => Look::Found(()),
                Some(old) => Look::NotYet(format!("{:?}", old.data)),
            })
        })
        .await?;
        let known = self.bed.scene.records().await?.len();
        assert_eq!(known, self.addresses.len());
        Ok(())
    }

    /// Remembers what was made of whom, as an operator of an earlier version did.
    async fn remember(&self) -> Result<()> {
        let nodes = self.addresses.iter().zip(&self.nodes);
        let records = nodes.map(|(address, node)| (address.as_str(), node.name()));
        self.bed.scene.remember(records).await
    }

    /// Waits until what is remembered of an instance is this state, with these words.
    async fn says(&self, address: &str, state: &str, words: &str) -> Result<String> {
        let what = format!("{address} to be {state}: {words:?}");
        until_async(&what, SOON, async || {
            let record = self.record(address).await?;
            let message = record["message"].as_str().unwrap_or_default();
            Ok(if record["state"] == state && message.contains(words) {
                Look::Found(message.to_owned())
            } else {
                Look::NotYet(format!("{record}\n{}", self.last_words()))
            })
        })
        .await
    }

    fn last_words(&self) -> String {
        let log = self.bed.scene.log();
        let lines: Vec<_> = log.lines().rev().take(8).collect();
        format!("{lines:#?}")
    }

    /// Waits until nothing is remembered of an instance.
    async fn forgotten(&self, address: &str) -> Result<()> {
        until_async(
            &format!("{address} to be forgotten"),
            SOON * 3,
            async || {
                let record = self.record(address).await?;
                Ok(if record.is_null() {
                    Look::Found(())
                } else {
                    Look::NotYet(format!("{record}\n{}", self.last_words()))
                })
            },
        )
        .await
    }

    /// The first one that the operator cordons.
    async fn first(&self) -> Result<usize> {
        until_async("one of them to be cordoned", SOON, async || {
            for (at, node) in self.nodes.iter().enumerate() {
                let node = self.bed.scene.node(node.name()).await?;
                let by = annotated(&node, annotation::CORDONED_BY);
                if is_cordoned(&node) && by == Some(cordon::DRAIN) {
                    return Ok(Look::Found(at));
                }
            }
            Ok(Look::NotYet(self.last_words()))
        })
        .await
    }

    /// Reason and note of all Events on the list.
    async fn events(&self, reason: &str) -> Result<Vec<String>> {
        let events: Api<Event> =
            Api::namespaced(self.bed.scene.client.clone(), &self.bed.scene.name);
        let all = events.list(&ListParams::default()).await;
        let all = all.doing(|| "cannot list Events")?.items.into_iter();
        let those = all.filter(|it| it.reason.as_deref() == Some(reason));
        Ok(those.map(|it| it.note.unwrap_or_default()).collect())
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|it| it.name().to_owned()).collect()
    }

    /// Another operator in the place of one that is killed.
    async fn killed(&self, mut operator: Running) -> Result<Running> {
        operator.kill()?;
        self.bed.scene.nobody_leads().await?;
        self.bed.operator_in(&[], &OPTIONS)
    }
}

fn cordoned(is_cordoned: bool) -> Value {
    json!({ "spec": { "unschedulable": is_cordoned } })
}

/// Covers S14.
#[tokio::test]
async fn nodes_whose_entries_leave_together_are_drained_one_by_one_and_entries_that_come_back_keep_theirs()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (listed, operator) = Listed::new("out", "127.35.0", 3).await?;
    let scene = &listed.bed.scene;
    scene.deployment(APP, 3, 0).await?;
    scene.ready("", 3).await?;
    scene.budget(APP, json!({ "minAvailable": 3 })).await?;
    // It is nobody's, and takes their pods.
    let spare = listed.bed.bare("spare").await?;
    let names = listed.names();
    let watched = listed.addresses.iter().zip(&names);
    let watched: Vec<(&str, &str)> = watched
        .map(|(address, name)| (address.as_str(), name.as_str()))
        .collect();
    let removal_watcher = RemovalWatcher::watch(scene, &watched, APP);

    // Nothing may be evicted: the first says which pod and which budget hold it, the others for whom they wait.
    listed.list(false).await?;
    let first = listed.first().await?;
    let (node, address) = (&names[first], &listed.addresses[first]);
    let said = listed.says(address, "Leaving", "web-budget").await?;
    assert!(
        said.starts_with("waiting: ") && said.contains(APP),
        "{said}"
    );
    let late = scene.event(node, "DrainOverdue").await?;
    assert!(late.contains("web-budget"), "{late}");
    let waits = format!("waiting: node {node} is unavailable and maxUnavailable is 1");
    for other in listed.addresses.iter().filter(|it| *it != address) {
        listed.says(other, "Leaving", &waits).await?;
    }
    assert_eq!(listed.events("RemovalWaits").await?.len(), 3);
    let status = listed.bed.status().await?;
    let permits: Vec<_> = status
        .updating
        .iter()
        .map(|it| (&it.node, it.removal))
        .collect();
    assert_eq!(permits, [(node, true)]);

    // Somebody cordons another one. All come back: our cordon goes, and that of a person stays.
    let other = &names[(first + 1) % 3];
    scene.patch(other, &cordoned(true)).await?;
    listed.list(true).await?;
    for address in &listed.addresses {
        listed.says(address, "Ready", "").await?;
    }
    scene.event(node, "RemovalCancelled").await?;
    scene.answered(node, "uncordon-removal").await?;
    let back = scene.node(node).await?;
    assert!(
        !is_cordoned(&back),
        "it is not let in again: {:?}",
        back.spec
    );
    assert_eq!(annotated(&back, annotation::DRAIN_GRANTED), None);
    assert!(is_cordoned(&scene.node(other).await?));
    let is_empty =
        |it: &evenkeel_api::windows::windows_pool::WindowsPoolStatus| it.updating.is_empty();
    listed.bed.until_status("no permit", is_empty).await?;
    scene.ready("", 3).await?;

    // They leave again. Killed between permit and drain, and after it, the operator is followed by one that goes on.
    listed.list(false).await?;
    let has_permit =
        |it: &evenkeel_api::windows::windows_pool::WindowsPoolStatus| !it.updating.is_empty();
    listed.bed.until_status("a permit", has_permit).await?;
    let operator = listed.killed(operator).await?;
    listed.first().await?;
    let _operator = listed.killed(operator).await?;
    listed.first().await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(scene.client.clone(), &scene.name);
    let allowed = Patch::Merge(json!({ "spec": { "minAvailable": 2 } }));
    let name = format!("{APP}-budget");
    let patched = budgets
        .patch(&name, &PatchParams::default(), &allowed)
        .await;
    patched.doing(|| "there is no budget")?;
    for address in &listed.addresses {
        listed.forgotten(address).await?;
    }
    listed.bed.until_status("no permit", is_empty).await?;
    scene
        .ready(&format!("spec.nodeName={}", spare.name()), 3)
        .await?;
    removal_watcher.check(1, 2, &names)
}

/// Covers S12, S14, H12.
#[tokio::test]
async fn a_paused_pool_removes_nobody_who_serves_but_who_is_lost_goes_without_a_drain() -> Result<()>
{
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let (listed, _operator) = Listed::new("lost", "127.35.1", 2).await?;
    let (scene, names) = (&listed.bed.scene, listed.names());
    for (at, node) in names.iter().enumerate() {
        scene.pod(node, &format!("alone-{at}"), |_| {}).await?;
    }
    listed.bed.edit_pool(json!({ "paused": true })).await?;
    listed.list(false).await?;
    for address in &listed.addresses {
        let words = "waiting: the WindowsPool is paused";
        listed.says(address, "Leaving", words).await?;
    }
    // Its pod cannot be told to leave, and is not waited for.
    listed.nodes[0].lie("Ready", "Unknown").await?;
    let address = &listed.addresses[0];
    until_async("it to be removed without a drain", SOON, async || {
        let events = listed.events("RemovedWithoutDrain").await?;
        Ok(match events.iter().find(|it| it.contains(address)) {
            Some(note) => Look::Found(note.clone()),
            None => Look::NotYet(format!("{events:?}\n{}", listed.last_words())),
        })
    })
    .await?;
    listed.forgotten(address).await?;
    let gone = scene.nodes().get_opt(&names[0]).await;
    assert!(gone.doing(|| "no answer")?.is_none());
    // The other one serves on, until its Node is gone: then there is nothing to drain.
    let node = scene.node(&names[1]).await?;
    assert!(!is_cordoned(&node));
    let asked = annotated(&node, annotation::DESIRED_DRAIN);
    assert_eq!(asked, None);
    scene.ready("metadata.name=alone-1", 1).await?;
    assert_eq!(listed.events("RemovedWithoutDrain").await?.len(), 1);
    let nodes = scene.nodes();
    let deleted = nodes.delete(&names[1], &DeleteParams::default()).await;
    deleted.doing(|| "there is no Node")?;
    listed.forgotten(&listed.addresses[1]).await
}

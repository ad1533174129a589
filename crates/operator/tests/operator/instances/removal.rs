//! Instances that serve leave the list: their pods leave first, no more nodes are unavailable at once than the pool allows, and
//! an entry that comes back in time keeps its node.

use evenkeel_api::names::{annotation, cordon};
use evenkeel_testbed::node_double::Os;
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::bed::{Bed, LONG, is_skipped};
use super::fleet::{make_pool, pools, state};
use crate::removal_watcher::RemovalWatcher;
use crate::scene::{annotated, is_cordoned};

/// The workload.
const APP: &str = "web";
/// The drain is late after this, so that it says why.
const LATE: &str = "2s";
/// What the log says where the operator is killed.
const STEPS: [&str; 3] = [
    "Some(\"drain-removal\")",
    "stopping its agent",
    "removing its files",
];

/// Two nodes that serve, and a third that is nobody's and can take their pods.
struct Pair {
    bed: Bed,
    instances: Vec<WindowsInstance>,
    names: Vec<String>,
    addresses: Vec<String>,
}

impl Pair {
    async fn new() -> Result<(Self, Running)> {
        let bed = Bed::new("win-out").await?;
        make_pool(&bed).await?;
        let mut instances = Vec::new();
        for name in ["op-out-1", "op-out-2"] {
            instances.push(bed.instance(name)?);
        }
        let operator = bed.operator(&["--drain-timeout", LATE])?;
        bed.led().await?;
        bed.list_these(&instances.iter().collect::<Vec<_>>())
            .await?;
        for instance in &instances {
            bed.serves(instance).await?;
            bed.settled(&instance.address().to_string()).await?;
        }
        let of = |how: fn(&WindowsInstance) -> String| instances.iter().map(how).collect();
        let pair = Self {
            names: of(|it| it.computer_name().to_lowercase()),
            addresses: of(|it| it.address().to_string()),
            bed,
            instances,
        };
        Ok((pair, operator))
    }

    /// Waits until what is remembered of an instance says so.
    async fn says(&self, address: &str, words: &[&str]) -> Result<String> {
        let what = format!("{address} to say {words:?}");
        until_async(&what, LONG, async || {
            let status = self.bed.status(address).await?;
            let message = status["message"].as_str().unwrap_or_default();
            let is_it = status["state"] == "Leaving" && words.iter().all(|it| message.contains(it));
            Ok(if is_it {
                Look::Found(message.to_owned())
            } else {
                Look::NotYet(format!("{status}\n{}", self.bed.last_words(5)))
            })
        })
        .await
    }

    /// Waits until nothing is granted any more.
    async fn nothing_is_granted(&self) -> Result<()> {
        until_async("all permits to be returned", LONG, async || {
            let pool = pools(&self.bed).get(&self.bed.scene.own("windows")).await;
            let status = pool.doing(|| "there is no WindowsPool")?.data["status"].clone();
            Ok(if status["updating"] == json!([]) {
                Look::Found(())
            } else {
                Look::NotYet(status.to_string())
            })
        })
        .await
    }

    /// Kills the operator as soon as its log says so once more, and starts it again.
    async fn killed_at(&self, mut operator: Running, step: &str, before: usize) -> Result<Running> {
        let bed = &self.bed;
        until_async(
            &format!("the operator to come to {step:?}"),
            LONG,
            async || {
                Ok(if count(bed, step) > before {
                    Look::Found(())
                } else {
                    Look::NotYet(bed.last_words(10))
                })
            },
        )
        .await?;
        operator.kill()?;
        println!("proof: the operator was killed at {step:?}");
        bed.scene.nobody_leads().await?;
        bed.operator(&["--drain-timeout", LATE])
    }

    /// How many pods of the workload must stay.
    async fn allow(&self, must_stay: u32) -> Result<()> {
        let scene = &self.bed.scene;
        let api: Api<PodDisruptionBudget> = Api::namespaced(scene.client.clone(), &scene.name);
        let patch = Patch::Merge(json!({ "spec": { "minAvailable": must_stay } }));
        let name = format!("{APP}-budget");
        let patched = api.patch(&name, &PatchParams::default(), &patch).await;
        patched.map(|_| ()).doing(|| "there is no budget")
    }
}

fn count(bed: &Bed, step: &str) -> usize {
    let log = bed.scene.log();
    log.lines().filter(|it| it.contains(step)).count()
}

fn cordoned(is_cordoned: bool) -> Value {
    json!({ "spec": { "unschedulable": is_cordoned } })
}

/// Covers S14.
#[tokio::test(flavor = "multi_thread")]
async fn instances_that_leave_the_list_are_drained_one_by_one_within_the_budget_before_they_go()
-> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let (pair, operator) = Pair::new().await?;
    let scene = &pair.bed.scene;
    scene.deployment(APP, 3, 1).await?;
    scene.ready("", 3).await?;
    scene.budget(APP, json!({ "minAvailable": 3 })).await?;
    let spare = scene.describe("spare").os(Os::Windows);
    let spare = scene.start(spare).await?;
    let watched: Vec<(&str, &str)> = pair
        .addresses
        .iter()
        .zip(&pair.names)
        .map(|(address, name)| (address.as_str(), name.as_str()))
        .collect();
    let removal_watcher = RemovalWatcher::watch(scene, &watched, APP);

    // Both leave at once. Nothing may be evicted: one says which pod and which budget hold it, the other for whom it waits.
    pair.bed.list(&[]).await?;
    let (held, waits) = held_and_waiting(&pair).await?;
    let said = pair
        .says(&pair.addresses[held], &["waiting: ", APP, "web-budget"])
        .await?;
    println!("proof: {said}");
    let node = pair.names[held].as_str();
    let words = format!("waiting: node {node} is unavailable and maxUnavailable is 1");
    let said = pair.says(&pair.addresses[waits], &[&words]).await?;
    println!("proof: {said}");
    let late = scene.event(node, "DrainOverdue").await?;
    assert!(late.contains("web-budget") && late.contains(APP), "{late}");
    pair.bed
        .told("RemovalWaits", &[&pair.addresses[waits]])
        .await?;
    for instance in &pair.instances {
        assert_eq!(state(instance, "evenkeel-agent")?, "Running");
    }

    // Somebody cordons the one that waits, and both are put back: the operator's own cordon goes, that of a person stays.
    let other = pair.names[waits].as_str();
    scene.patch(other, &cordoned(true)).await?;
    let all: Vec<_> = pair.instances.iter().collect();
    pair.bed.list_these(&all).await?;
    pair.bed.serves(&pair.instances[held]).await?;
    scene.event(node, "RemovalCancelled").await?;
    for address in &pair.addresses {
        pair.bed.settled(address).await?;
    }
    pair.nothing_is_granted().await?;
    let kept = scene.node(other).await?;
    assert!(is_cordoned(&kept), "a person's cordon was removed");
    assert_eq!(annotated(&kept, annotation::CORDONED_BY), None);

    // They leave again, and the operator is killed on the way. That cordon is no obstacle.
    let [drain, stop, files] = STEPS.map(|step| count(&pair.bed, step));
    pair.bed.list(&[]).await?;
    let operator = pair.killed_at(operator, STEPS[0], drain).await?;
    // In the middle of an eviction that is not refused Kubernetes would count it for two minutes.
    pair.allow(2).await?;
    let operator = pair.killed_at(operator, STEPS[1], stop).await?;
    let _operator = pair.killed_at(operator, STEPS[2], files).await?;
    for address in &pair.addresses {
        pair.bed.forgotten(address).await?;
    }
    for name in &pair.names {
        let found = scene.nodes().get_opt(name).await.doing(|| "no answer")?;
        assert!(found.is_none(), "{name} is left");
    }
    pair.nothing_is_granted().await?;
    scene
        .ready(&format!("spec.nodeName={}", spare.name()), 3)
        .await?;
    for (address, instance) in pair.addresses.iter().zip(&pair.instances) {
        pair.bed.told("InstanceRemoved", &[address]).await?;
        assert!(!instance.path(r"C:\k")?.exists(), "its files are left");
    }
    let all = pair.names.iter().cloned().collect();
    assert_eq!(
        removal_watcher.stopped(),
        all,
        "it did not see them stopped"
    );
    removal_watcher.check(1, 2, &pair.names)
}

/// Which of the two is drained, and which one waits for it.
async fn held_and_waiting(pair: &Pair) -> Result<(usize, usize)> {
    until_async("one of two to be cordoned", LONG, async || {
        for (at, name) in pair.names.iter().enumerate() {
            let node = pair.bed.scene.node(name).await?;
            let by = annotated(&node, annotation::CORDONED_BY);
            if is_cordoned(&node) && by == Some(cordon::DRAIN) {
                return Ok(Look::Found((at, 1 - at)));
            }
        }
        Ok(Look::NotYet(pair.bed.last_words(5)))
    })
    .await
}

/// Covers S14, H12.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_pool_keeps_who_serves_and_an_instance_whose_node_is_lost_goes_without_a_drain()
-> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("win-lost").await?;
    make_pool(&bed).await?;
    let instance = bed.instance("op-lost-1")?;
    let (name, address) = (
        instance.computer_name().to_lowercase(),
        instance.address().to_string(),
    );
    let _operator = bed.operator(&["--leave-timeout", "3s"])?;
    bed.led().await?;
    bed.list_these(&[&instance]).await?;
    bed.serves(&instance).await?;
    let scene = &bed.scene;
    scene.pod(&name, "alone", |_| {}).await?;
    pause(&bed, true).await?;
    bed.list(&[]).await?;
    until_async("it to wait for the paused pool", LONG, async || {
        let status = bed.status(&address).await?;
        let message = status["message"].as_str().unwrap_or_default();
        Ok(if message.contains("waiting: the WindowsPool is paused") {
            Look::Found(())
        } else {
            Look::NotYet(format!("{status}\n{}", bed.last_words(5)))
        })
    })
    .await?;
    let node = scene.node(&name).await?;
    assert!(!is_cordoned(&node), "it was cordoned in a paused pool");
    scene.ready("metadata.name=alone", 1).await?;

    // Its kubelet dies: nobody can tell its pods to leave, and nobody waits for them for ever.
    instance.ask(&["windows-probe", "service", "stop", "evenkeel-agent"])?;
    instance.ask(&["windows-probe", "service", "stop", "network"])?;
    instance.ask(&["windows-probe", "service", "stop", "kubelet"])?;
    let not_ready = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" },
    ] } });
    let nodes = scene.nodes();
    let patch = Patch::Strategic(not_ready);
    let patched = nodes
        .patch_status(&name, &PatchParams::default(), &patch)
        .await;
    patched.doing(|| "cannot say that it is not ready")?;
    let said = bed
        .told("RemovedWithoutDrain", &[&address, "is not ready since"])
        .await?;
    println!("proof: {said}");
    bed.forgotten(&address).await?;
    let found = scene.nodes().get_opt(&name).await.doing(|| "no answer")?;
    assert!(found.is_none(), "{name} is left");
    Ok(())
}

async fn pause(bed: &Bed, paused: bool) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "paused": paused } }));
    let pool = bed.scene.own("windows");
    let patched = pools(bed)
        .patch(&pool, &PatchParams::default(), &patch)
        .await;
    patched.map(|_| ()).doing(|| "there is no WindowsPool")
}

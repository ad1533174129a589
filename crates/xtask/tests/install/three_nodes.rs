//! Three nodes, and a workload that may not lose more than two of its six pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_testbed::{Doing, Error, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::installed::{Installed, NAMESPACE, is_ready, until_updated};
use crate::objects::{config, pool, web};
use crate::release::Release;
use crate::skip;
use crate::watch::Watch;

const NODES: [&str; 3] = ["one", "two", "three"];
/// How many pods the workload has, and how many of them its budget keeps.
const PODS: usize = 6;
const KEPT: usize = 4;
/// How long nobody may lead: as long as the Lease lasts, and until the next one reads it.
const LEADERLESS: Duration = Duration::from_secs(18);

/// Covers K02.
#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn a_change_that_reboots_three_nodes_keeps_a_workload_within_its_budget() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let installed = Installed::on(&NODES, &release).await?;
    installed.until_ready(2, NODES.len()).await?;
    installed.apply(&web(PODS))?;
    installed.apply(&budget())?;
    installed.until_ready_in("default", PODS).await?;
    let boots = (0..NODES.len()).map(|it| installed.cluster.node(it).boot_id());
    let boots = boots.collect::<Result<Vec<_>>>()?;
    let agents = agents(&installed)?;
    let operators = installed.operators()?;
    let mut pods = Watch::of(&installed, &["pods", "--namespace", "default"])?;
    let mut nodes = Watch::of(&installed, &["nodes"])?;
    let lease = ["leases", "evenkeel-operator", "--namespace", NAMESPACE];
    let mut leases = Watch::of(&installed, &lease)?;

    installed.apply(&config("three"))?;
    installed.apply(&pool())?;
    for (number, boot) in boots.iter().enumerate() {
        until_updated(&installed, installed.cluster.node(number), boot, "three").await?;
    }
    installed.until_ready(2, NODES.len()).await?;
    installed.until_ready_in("default", PODS).await?;
    installed.until_clean().await?;

    let least = least_ready(&pods.seen()?)?;
    println!("proof: of {PODS} pods {least} were ready at the worst moment, {KEPT} are promised");
    assert!(least >= KEPT, "{least}");
    let most = most_down(&nodes.seen()?);
    assert_eq!(most.len(), 1, "{most:?} were down at once");
    let pause = longest_pause(&leases.seen()?)?;
    println!(
        "proof: drained away with their nodes, the operators renewed their Lease after {:.1} s at most",
        pause.as_secs_f64()
    );
    assert!(pause < LEADERLESS, "{pause:?}");
    assert!(
        installed.operators()?.is_disjoint(&operators),
        "an operator's pod was on a node that rebooted"
    );
    for (node, (uid, restarts)) in self::agents(&installed)? {
        let (before, restarts_before) = &agents[&node];
        assert_eq!(&uid, before, "the agent's pod of node {node} is another");
        assert!(restarts > *restarts_before, "node {node} did not reboot");
    }
    for node in items(&installed.get(&["nodes"])?) {
        assert_ne!(node["spec"]["unschedulable"], true, "{node}");
        assert!(is_ready(&node), "{node}");
    }
    Ok(())
}

fn budget() -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "minAvailable": KEPT, "selector": { "matchLabels": { "app": "web" } } },
    })
}

fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

/// The agent's pod of each node: its uid, and how often its container was started again.
fn agents(installed: &Installed) -> Result<BTreeMap<String, (String, u64)>> {
    let selector = "--selector=app.kubernetes.io/name=evenkeel-agent";
    let pods = installed.get(&["pods", "--namespace", NAMESPACE, selector])?;
    let of = |pod: &Value| {
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        let uid = text(&pod["metadata"]["uid"]);
        let node = text(&pod["spec"]["nodeName"]);
        (node, (uid, restarts.as_u64().unwrap_or_default()))
    };
    Ok(items(&pods).iter().map(of).collect())
}

/// How few of the workload's pods were ready at any moment after all of them were.
fn least_ready(events: &[(String, Value)]) -> Result<usize> {
    let mut ready = BTreeSet::new();
    let mut least = None;
    for (uid, pod) in events {
        // A budget does not count a pod that is told to end, either.
        if is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null() {
            ready.insert(uid);
        } else {
            ready.remove(uid);
        }
        if ready.len() == PODS || least.is_some() {
            least = Some(least.map_or(ready.len(), |it: usize| it.min(ready.len())));
        }
    }
    least.ok_or_else(|| Error::failed("they were never all ready"))
}

/// Which nodes were cordoned or not ready at the moment when most were.
fn most_down(events: &[(String, Value)]) -> BTreeSet<String> {
    let (mut down, mut most) = (BTreeSet::new(), BTreeSet::new());
    for (_, node) in events {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        if node["spec"]["unschedulable"] == true || !is_ready(node) {
            down.insert(name.to_owned());
        } else {
            down.remove(name);
        }
        if down.len() > most.len() {
            most.clone_from(&down);
        }
    }
    most
}

/// The longest time between two renewals of the Lease, whoever renewed it. All operators have this machine's clock.
fn longest_pause(events: &[(String, Value)]) -> Result<Duration> {
    let held = events.iter().map(|(_, lease)| &lease["spec"]);
    let held = held.filter(|it| {
        it["holderIdentity"]
            .as_str()
            .is_some_and(|it| !it.is_empty())
    });
    let renewals = held.map(|it| {
        let time = it["renewTime"].as_str().unwrap_or_default();
        time.parse::<Timestamp>()
            .doing(|| format!("the Lease was renewed at {time:?}"))
    });
    let renewals = renewals.collect::<Result<Vec<_>>>()?;
    let pauses = renewals
        .windows(2)
        .map(|it| Duration::try_from(it[1].duration_since(it[0])).unwrap_or_default());
    pauses
        .max()
        .ok_or_else(|| Error::failed("nobody renewed the Lease"))
}

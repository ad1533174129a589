//! Two versions of the operator at once, and the way back to the older one.

use std::time::{Duration, Instant};

use evenkeel_plan::fleet::uninstall::{Marks, farewell};
use evenkeel_testbed::process::Running;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::bed::{Bed, CURRENT, DESIRED, LONG, VERSION, is_skipped};
use super::fleet::{first_release, has_only, make_pool, pools, released};
use super::release::{Release, with_service};
use crate::scene::{annotated, is_cordoned};

const OLDER: &str = "operator-older";
const NEWER: &str = "operator-newer";
/// How long a version that has nothing to say here is watched saying nothing.
const A_WHILE: Duration = Duration::from_secs(3);

/// An operator of a version, on a machine of that name.
fn operator_of(bed: &Bed, release: &Release, machine: &str) -> Result<Running> {
    let payload = release.payload.display().to_string();
    let pool = bed.scene.own("windows");
    let options = ["--payload", &payload, "--windows-pool", &pool];
    let login = bed.scene.login()?;
    bed.scene.operator_called(machine, &login, &options)
}

/// Waits until the operator on that machine leads.
async fn leads(bed: &Bed, machine: &str) -> Result<()> {
    until_async(&format!("{machine} to lead"), LONG, async || {
        Ok(match bed.scene.leader().await {
            Ok(leader) if leader.contains(machine) => Look::Found(()),
            Ok(leader) => Look::NotYet(leader),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
    .await
}

/// What versions have to say about a node.
fn told(node: &Node) -> Value {
    json!({
        "version": annotated(node, VERSION), "desired": annotated(node, DESIRED),
        "current": annotated(node, CURRENT), "cordoned": is_cordoned(node),
    })
}

/// Waits until the pool says that this version may not go on, and why; then nothing happens to the node.
async fn is_refused(bed: &Bed, node: &str, newer: &Release) -> Result<()> {
    let what = "the older version to be refused";
    let condition = until_async(what, LONG, async || {
        let pool = pools(bed).get(&bed.scene.own("windows")).await;
        let pool = pool.doing(|| "cannot read the WindowsPool")?;
        let conditions = pool.data["status"]["conditions"].as_array().cloned();
        let found = conditions
            .unwrap_or_default()
            .into_iter()
            .find(|it| it["type"] == "Upgradeable" && it["reason"] == "NewerVersionInstalled");
        Ok(match found {
            Some(found) => Look::Found(found),
            None => Look::NotYet(format!("{}\n{}", pool.data["status"], bed.last_words(5))),
        })
    })
    .await?;
    let message = condition["message"].as_str().unwrap_or_default();
    assert_eq!(condition["status"], "False");
    assert!(
        message.contains(newer.version) && message.contains("uninstall"),
        "{message}"
    );
    println!("proof: the older version is refused: {message}");
    let before = told(&bed.scene.node(node).await?);
    let until = Instant::now() + A_WHILE;
    while Instant::now() < until {
        assert_eq!(told(&bed.scene.node(node).await?), before);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// What an uninstall does to the nodes of this test, and to what belongs to the pool: it would be about all nodes.
async fn uninstalled(bed: &Bed, name: &str) -> Result<()> {
    let pool = bed.scene.own("windows");
    let gone = pools(bed).delete(&pool, &DeleteParams::default()).await;
    gone.doing(|| "there is no WindowsPool")?;
    let maps: Api<ConfigMap> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    until_async("the services to go with the pool", LONG, async || {
        let left = maps.list(&ListParams::default()).await;
        let left = left.doing(|| "cannot list ConfigMaps")?.items;
        let mut left = left.iter().map(ResourceExt::name_any);
        Ok(match left.find(|it| it.starts_with("services-")) {
            Some(name) => Look::NotYet(name),
            None => Look::Found(()),
        })
    })
    .await?;
    let node = bed.scene.node(name).await?;
    let marks = Marks {
        annotations: node.annotations(),
        taints: &[],
        unschedulable: is_cordoned(&node),
    };
    let goes = farewell(marks, false);
    assert!(goes.annotations.contains(CURRENT), "{goes}");
    let annotations: serde_json::Map<_, _> = goes
        .annotations
        .into_iter()
        .map(|name| (name, Value::Null))
        .collect();
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let nodes = bed.scene.nodes();
    let cleaned = nodes.patch(name, &PatchParams::default(), &patch).await;
    cleaned.map(|_| ()).doing(|| "cannot clean the Node")
}

/// Covers U07, U08.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_versions_the_newer_one_goes_on_and_the_older_one_after_it_is_uninstalled()
-> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("win-back").await?;
    make_pool(&bed).await?;
    let instance = bed.instance("op-back-1")?;
    let name = instance.computer_name().to_lowercase();
    let older = first_release(&bed)?;
    let newer = Release::new(&bed, "1.3.0-bbbbbbb", &[("new.txt", "newer")], |it| {
        with_service(it, "exporter", "--second");
    })?;
    let old = operator_of(&bed, &older, OLDER)?;
    leads(&bed, OLDER).await?;
    bed.list_these(&[&instance]).await?;
    let uid = bed.serves(&instance).await?.uid();

    // While the older one leads the newer one waits; told to stop, it hands over.
    let mut new = operator_of(&bed, &newer, NEWER)?;
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE {
        let node = bed.scene.node(&name).await?;
        assert_eq!(annotated(&node, VERSION), Some(older.version));
        assert!(bed.scene.leader().await?.contains(OLDER));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    old.signal(Signal::TERM)?;
    leads(&bed, NEWER).await?;
    drop(old);

    // In the middle of the upgrade the newer one is gone, and the older one leads.
    let old = operator_of(&bed, &older, OLDER)?;
    in_the_middle(&bed, 0).await?;
    new.kill()?;
    bed.scene.nobody_leads().await?;
    leads(&bed, OLDER).await?;
    is_refused(&bed, &name, &newer).await?;
    let new = operator_of(&bed, &newer, NEWER)?;
    drop(old);
    bed.scene.nobody_leads().await?;
    let node = bed.serves_at(&instance, newer.version).await?;
    assert_eq!(node.uid(), uid, "it is the same Node");
    released(&bed, &name).await?;
    has_only(&instance, &newer, &["exporter"]).await?;

    // Back: not while the newer one is installed.
    drop(new);
    bed.scene.nobody_leads().await?;
    let old = operator_of(&bed, &older, OLDER)?;
    leads(&bed, OLDER).await?;
    is_refused(&bed, &name, &newer).await?;
    drop(old);
    bed.scene.nobody_leads().await?;
    uninstalled(&bed, &name).await?;
    make_pool(&bed).await?;
    // Its agent is broken by now: who comes next does not need it.
    instance.ask(&["windows-probe", "service", "stop", "evenkeel-agent"])?;
    let agent = instance.path(r"C:\k\evenkeel-agent.exe")?;
    // In its place, and not into it: Windows lets nobody write into a program that still runs.
    std::fs::remove_file(&agent).doing(|| "there is no agent")?;
    std::fs::write(agent, "rubbish").doing(|| "cannot break the agent")?;
    let old = operator_of(&bed, &older, OLDER)?;
    let node = bed.serves(&instance).await?;
    assert_eq!(node.uid(), uid, "it is the same Node");
    let drain = format!("drain-upgrade-{}", older.version);
    assert!(bed.scene.log().contains(&drain), "its pods were not asked");
    released(&bed, &name).await?;
    has_only(&instance, &older, &["legacy"]).await?;
    println!("proof: {name} runs {} again", older.version);

    // Its Node is deleted in the middle of an upgrade: it becomes a node anew, at the version that it was on its way to.
    let before = middles(&bed);
    drop(old);
    bed.scene.nobody_leads().await?;
    let _new = operator_of(&bed, &newer, NEWER)?;
    in_the_middle(&bed, before).await?;
    let nodes = bed.scene.nodes();
    let deleted = nodes.delete(&name, &DeleteParams::default()).await;
    deleted.doing(|| "cannot delete the Node")?;
    let node = bed.serves_at(&instance, newer.version).await?;
    assert_ne!(node.uid(), uid, "it was deleted");
    released(&bed, &name).await?;
    has_only(&instance, &newer, &["exporter"]).await
}

/// How often an upgrade came to its middle.
fn middles(bed: &Bed) -> usize {
    let step = "copying files that are new or changed";
    bed.scene.log().matches(step).count()
}

/// Waits until an upgrade comes there once more.
async fn in_the_middle(bed: &Bed, before: usize) -> Result<()> {
    until_async("the middle of the upgrade", LONG, async || {
        Ok(if middles(bed) > before {
            Look::Found(())
        } else {
            Look::NotYet(bed.last_words(5))
        })
    })
    .await
}

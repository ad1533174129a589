//! The configuration of workers: where it comes from, what happens without it, and what a change does.

use evenkeel_api::fleet::machine_config_pool::KIND;
use evenkeel_api::names::label;
use evenkeel_api::windows::windows_pool::condition;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Result, need};
use kube::api::PostParams;
use serde_json::json;

use super::bed::{Bed, OWN_MAP, worker_ignition};
use crate::pools::file;
use crate::scene::SOON;

/// Covers H09.
#[tokio::test]
async fn workers_are_read_from_the_secret_else_from_their_pool_and_without_either_nothing_is_made()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("worker").await?;
    let _operator = bed.operator()?;
    let (upgradeable, degraded) = (condition::UPGRADEABLE, condition::DEGRADED);
    let message = bed
        .until_condition(degraded, true, "NoWorkerIgnition")
        .await?;
    assert!(message.contains("worker-ignition"), "{message}");
    bed.scene
        .told(&bed.pool_name(), "NoWorkerIgnition", "worker.ign")
        .await?;
    assert!(bed.map_names().await?.is_empty(), "nothing is configured");

    // The pool of that name, which is the cluster's and not this scene's alone.
    let scene = &bed.scene;
    let role = scene.own("worker");
    let pool = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": KIND,
        "metadata": { "name": "worker", "labels": { "place": scene.name } },
        "spec": { "machineConfigSelector": { "matchLabels": { label::ROLE: role } } },
    });
    let pool = serde_json::from_value(pool).doing(|| "no pool")?;
    scene
        .config("worker", "00-worker", file("/etc/some", "thing"))
        .await?;
    let made = scene.pools().create(&PostParams::default(), &pool).await;
    made.doing(|| "cannot make pool worker")?;
    let message = bed
        .until_condition(degraded, true, "InvalidWorkerIgnition")
        .await?;
    assert!(
        message.contains("MachineConfig rendered-worker-") && message.contains("kubelet-ca.crt"),
        "{message}"
    );
    scene
        .config(
            "worker",
            "00-worker",
            json!({ "config": worker_ignition("pool") }),
        )
        .await?;
    let (_, services) = bed.own_map(SOON).await?;
    let from_pool = services.hash();
    bed.until_condition(upgradeable, true, "AsExpected").await?;

    // The Secret wins, and its contents decide.
    bed.give_worker(&worker_ignition("secret")).await?;
    let from_secret = bed.hash_after(&from_pool).await?;
    bed.give_worker(&json!({ "ignition": { "version": "3.2.0" }, "storag": {} }))
        .await?;
    let message = bed
        .until_condition(degraded, true, "InvalidWorkerIgnition")
        .await?;
    assert!(
        message.contains("Secret worker-ignition, key worker.ign") && message.contains("storag"),
        "{message}"
    );
    // What was right is kept while nobody knows better.
    bed.delete_map(OWN_MAP).await?;
    let (_, services) = bed.own_map(SOON).await?;
    assert_eq!(services.hash(), from_secret);
    bed.give_worker(&worker_ignition("another")).await?;
    let another = bed.hash_after(&from_secret).await?;
    assert_ne!(another, from_pool);
    bed.scene
        .told(
            &bed.pool_name(),
            "ServicesChanged",
            "rolling them out node by node",
        )
        .await?;
    Ok(())
}

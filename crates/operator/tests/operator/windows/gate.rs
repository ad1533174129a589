//! Nodes that may not be upgraded stay at what they run, and everybody hears why.

use evenkeel_api::names::annotation;
use evenkeel_api::windows::windows_pool::condition;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;

use super::bed::{Bed, OWN, worker_ignition};
use crate::scene::{SOON, annotated, free_port, metrics};

/// Notes of all Events on the pool with that reason.
async fn told(bed: &Bed, reason: &str) -> Result<Vec<String>> {
    let api: Api<Event> = Api::namespaced(bed.scene.client.clone(), "default");
    let all = api.list(&ListParams::default()).await;
    let all = all.doing(|| "cannot list Events")?.items.into_iter();
    let of_pool = all.filter(|it| {
        let on = it.regarding.as_ref().and_then(|it| it.name.as_deref());
        on == Some(&bed.pool_name()) && it.reason.as_deref() == Some(reason)
    });
    Ok(of_pool.map(|it| it.note.unwrap_or_default()).collect())
}

/// Covers U07.
#[tokio::test]
async fn an_old_cluster_and_an_unknown_machine_are_refused_with_the_reason() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("gate").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let folder = bed.payload.display().to_string();
    let pool = bed.pool_name();
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let fixed = [
        "--payload",
        &folder,
        "--windows-pool",
        &pool,
        "--listen",
        &listen,
    ];
    let operator = |options: &[&str]| bed.scene.operator(&[&fixed[..], options].concat());
    let first = operator(&["--minimum-kubernetes", "1.99"])?;
    let (_, services) = bed.own_map(SOON).await?;
    let new = bed.node("new", OWN, &services.hash()).await?;
    let old = bed.node("old", "1.0.0-0000001", "before").await?;
    let refused = |reason: &str| {
        let series = format!("evenkeel_windows_upgrade_refused{{reason=\"{reason}\"}} 1");
        async move {
            let shown = metrics(port).await?;
            if shown.contains(&series) {
                Ok(())
            } else {
                Err(Error::failed(format!("{series} is not in {shown}")))
            }
        }
    };
    let message = bed
        .until_condition(condition::UPGRADEABLE, false, "KubernetesTooOld")
        .await?;
    assert!(message.contains("needs 1.99") && message.contains("Upgrade the cluster first"));
    assert!(
        message.contains(old.name()) && !message.contains(new.name()),
        "{message}"
    );
    refused("KubernetesTooOld").await?;
    let said = told(&bed, "KubernetesTooOld").await?;
    assert!(said.iter().any(|it| it.contains("needs 1.99")), "{said:?}");

    // The cluster is new enough; nobody says where the machine is.
    drop(first);
    bed.scene.nobody_leads().await?;
    let _operator = operator(&[])?;
    let message = bed
        .until_condition(condition::UPDATING, false, "NodeNotListed")
        .await?;
    assert!(message.contains("windows-instances"), "{message}");
    refused("NodeNotListed").await?;
    for node in [&old, &new] {
        let seen = bed.scene.node(node.name()).await?;
        assert_eq!(annotated(&seen, annotation::DESIRED_DRAIN), None);
        let told = annotated(&seen, annotation::WINDOWS_DESIRED_VERSION);
        assert_eq!(told, annotated(&seen, annotation::WINDOWS_VERSION));
    }
    let status = bed
        .until_status("one is updated", |it| it.nodes.updated == 1)
        .await?;
    assert_eq!(status.nodes.total, 2);
    assert_eq!(status.updating, []);
    Ok(())
}

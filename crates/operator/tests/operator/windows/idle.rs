//! Beside OpenShift's own operator for Windows nodes ours does nothing for them, and says so.

use std::time::Duration;

use evenkeel_api::names::{annotation, object, openshift};
use evenkeel_api::windows::windows_pool::condition;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Error, Result, need};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::bed::{Bed, OWN, worker_ignition};
use crate::idle::{Leader, control_plane, told};
use crate::instances::certificates::{AGENT_LOGIN, Asked, answer, ask};
use crate::scene::{SOON, annotated};

/// A machine where nobody answers.
const MACHINE: &str = "127.38.0.1";

/// Covers X09, O03.
#[tokio::test]
async fn next_to_the_operator_for_windows_nodes_nothing_is_done_until_the_owner_says_so()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::on(control_plane()?, "beside-w").await?;
    let (namespace, name) = (openshift::WINDOWS_NAMESPACE, openshift::WINDOWS_LEASE);
    bed.scene
        .control_plane
        .kubectl(&["create", "namespace", namespace])?;
    // The lock of a leader for life: a ConfigMap that goes with its pod.
    let locks: Api<ConfigMap> = Api::namespaced(bed.scene.client.clone(), namespace);
    let lock = serde_json::from_value(json!({ "metadata": { "name": name } }));
    let lock = lock.doing(|| "no lock")?;
    let made = locks.create(&PostParams::default(), &lock).await;
    made.doing(|| "cannot make their lock")?;
    bed.give_worker(&worker_ignition("first")).await?;
    let node = bed.node("w", OWN, "before").await?;
    // Made of a machine that is listed, and by a record of ours: only such a node gets a certificate.
    bed.annotate(
        node.name(),
        json!({ annotation::INSTANCE: format!("Administrator@{MACHINE}") }),
    )
    .await?;
    let listed = json!({
        "metadata": { "name": object::WINDOWS_INSTANCES },
        "data": { MACHINE: "username=Administrator" },
    });
    bed.scene.create::<ConfigMap>(listed).await?;
    let known = [(MACHINE, node.name())];
    bed.scene.remember(known.into_iter()).await?;
    let mut operator = bed.operator()?;
    let message = bed
        .until_condition(condition::IDLE, true, "OtherOperatorAlive")
        .await?;
    assert!(message.contains("Windows"), "{message}");
    bed.scene.let_agents_in()?;
    let agent = format!("evenkeel:agent:{}", node.name());
    let renewal = Asked {
        names: &[&agent],
        ..AGENT_LOGIN
    };
    let asked = ask(renewal, &bed.scene.agent_login(node.name())?).await?;
    let asked = asked.ok_or_else(|| Error::failed("an agent may not ask"))?;
    bed.annotate(
        node.name(),
        json!({ annotation::WINDOWS_DESIRED_VERSION: "9.9.9-fffffff", annotation::DESIRED_DRAIN: "drain-x" }),
    )
    .await?;
    let nothing_is_done = async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let seen = bed.scene.node(node.name()).await?;
        let version = annotated(&seen, annotation::WINDOWS_DESIRED_VERSION);
        assert_eq!(version, Some("9.9.9-fffffff"));
        assert_eq!(annotated(&seen, annotation::DRAIN_GRANTED), None);
        assert!(bed.map_names().await?.is_empty(), "something is made");
        let said = answer(&bed.scene, &asked).await?;
        assert!(
            said.is_empty(),
            "a certificate is theirs to approve: {said:?}"
        );
        Ok::<_, Error>(())
    };
    nothing_is_done().await?;
    // Its pod is gone, and its lock with it; newer releases have a Lease, which lapses. Neither is an invitation.
    let gone = locks.delete(name, &DeleteParams::default()).await;
    gone.doing(|| "cannot delete their lock")?;
    let message = bed
        .until_condition(condition::IDLE, true, "OtherOperatorLapsed")
        .await?;
    assert!(message.contains("--take-over=windows"), "{message}");
    told(&bed.scene, "OtherOperatorLapsed").await?;
    nothing_is_done().await?;
    let leader = Leader::start(&bed.scene.client, namespace, name).await?;
    bed.until_condition(condition::IDLE, true, "OtherOperatorAlive")
        .await?;
    operator.kill()?;
    bed.scene.nobody_leads().await?;
    let _operator = bed.operator_in(&[], &["--take-over", "windows,machine-config"])?;
    bed.until_condition(condition::IDLE, true, "TakeOverWaits")
        .await?;
    nothing_is_done().await?;
    drop(leader);
    told(&bed.scene, "TookOver").await?;
    bed.own_map(SOON).await?;
    bed.scene
        .event(node.name(), "DesiredVersionPutBack")
        .await?;
    bed.scene.answered(node.name(), "drain-x").await?;
    until_async("the certificate to be approved", SOON, async || {
        let said = answer(&bed.scene, &asked).await?;
        Ok(if said.iter().any(|it| it.starts_with("Approved")) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{said:?}"))
        })
    })
    .await?;
    bed.until_status("not to be idle", |it| {
        it.condition(condition::IDLE).is_none()
    })
    .await?;
    Ok(())
}

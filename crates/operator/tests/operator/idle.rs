//! Beside OpenShift's own machine-config operator ours does nothing, and says so.

use std::sync::OnceLock;
use std::time::Duration;

use evenkeel_api::machine_config_pool::condition;
use evenkeel_api::names::{annotation, openshift};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::agents::Agents;
use crate::pools::{file, is, said};
use crate::rollout::LONG;
use crate::scene::{SOON, Scene, annotated};

/// Everybody on the shared control plane would fall idle.
pub(crate) fn control_plane() -> Result<&'static ControlPlane> {
    static OWN: OnceLock<Result<ControlPlane>> = OnceLock::new();
    let own = OWN.get_or_init(ControlPlane::start);
    own.as_ref().map_err(Clone::clone)
}

/// Covers X09.
#[tokio::test]
async fn beside_a_living_machine_config_operator_nothing_is_done_until_it_is_gone() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::on(control_plane()?, "beside").await?;
    scene
        .control_plane
        .kubectl(&["create", "namespace", openshift::NAMESPACE])?;
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), openshift::NAMESPACE);
    let renew = async || {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": openshift::LEASES[1] },
            "spec": {
                "holderIdentity": "theirs", "leaseDurationSeconds": 12,
                // Their clock is an hour late, which must not matter.
                "renewTime": (jiff::Timestamp::now() - Duration::from_hours(1)).strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            },
        });
        let parameters = PatchParams::apply("theirs").force();
        let renewed = leases
            .patch(openshift::LEASES[1], &parameters, &Patch::Apply(lease))
            .await;
        renewed.map(|_| ()).doing(|| "cannot renew their Lease")
    };
    let nodes = scene.fleet("web", 2, 1).await?;
    let agents = Agents::start(&scene, &nodes).await?;
    scene
        .config("web", "00-base", file("/etc/base", "1"))
        .await?;
    // Ours comes first and begins; then theirs is there. A second look tells that it lives.
    let _operator = scene.operator(&[])?;
    renew().await?;
    let living = async {
        loop {
            renew().await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let idle = async {
        scene.pool("web", json!({ "paused": true })).await?;
        let status = scene
            .until_pool("web", "to be idle", SOON, |it| is(it, condition::IDLE))
            .await?;
        let (_, message) = said(&status, condition::IDLE);
        assert!(message.contains("machine-config operator"), "{message}");
        // Neither is anything rolled out, nor anybody drained.
        scene
            .edit_pool("web", json!({ "spec": { "paused": false } }))
            .await?;
        scene
            .config("web", "00-base", file("/etc/base", "2"))
            .await?;
        let before = scene.target("web").await?;
        scene.ask(nodes[0].name(), "drain-theirs").await?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(scene.target("web").await?, before);
        for node in nodes.iter() {
            let seen = scene.node(node.name()).await?;
            assert_eq!(annotated(&seen, annotation::DESIRED_CONFIG), None);
            assert_eq!(annotated(&seen, annotation::DRAIN_GRANTED), None);
        }
        Ok(())
    };
    tokio::select! {
        failed = living => return failed,
        ended = idle => ended?,
    }
    // Theirs is gone: its Lease runs out, and pools are ours.
    scene
        .patch(
            nodes[0].name(),
            &json!({ "metadata": { "annotations": { annotation::DESIRED_DRAIN: null } } }),
        )
        .await?;
    scene.until_updated("web", "", LONG).await?;
    assert!(
        scene
            .status("web")
            .await?
            .condition(condition::IDLE)
            .is_none()
    );
    agents.are_content()
}

//! What makes no sense is said, with the object and the field, and stops nothing else.

use std::time::Duration;

use evenkeel_api::fleet::machine_config_pool::condition;
use evenkeel_api::names::{annotation, label};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until, until_async};
use evenkeel_testbed::{Doing, Result, need};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::pools::{file, is, said};
use crate::rollout::LONG;
use crate::scene::{SOON, Scene, alone, annotated, deployed};

const DEFINITION: &str = "machineconfigpools.machineconfiguration.openshift.io";

/// Makes the API server take pools that our definition refuses, as on a cluster with another one.
fn make_lenient_pools(scene: &Scene, bad: &[(&str, Value)]) -> Result<()> {
    let _alone = alone();
    let rules = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/maxUnavailable/x-kubernetes-validations";
    let patch = json!([{ "op": "remove", "path": rules }]).to_string();
    let control_plane = scene.control_plane;
    control_plane.kubectl(&["patch", "crd", DEFINITION, "--type=json", "-p", &patch])?;
    for (name, limit) in bad {
        let file = scene.scratch.path().join("pool.json");
        let pool = scene
            .pool_of(name, json!({ "maxUnavailable": limit }))
            .to_string();
        std::fs::write(&file, pool).doing(|| "cannot write the pool down")?;
        let file = file.display().to_string();
        until("the pool to be taken", SOON, || {
            Ok(match control_plane.kubectl(&["create", "-f", &file]) {
                Ok(_) => Look::Found(()),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })?;
    }
    let path = deployed("crds/machineconfigpools.yaml")
        .display()
        .to_string();
    control_plane.kubectl(&["apply", "-f", &path]).map(|_| ())
}

#[tokio::test]
async fn a_limit_that_is_none_is_refused_or_said_and_stops_that_pool_alone() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("limits").await?;
    let bad = [
        ("text", json!("60")),
        ("words", json!("50 percent")),
        ("none", json!(0)),
    ];
    for (name, limit) in &bad {
        let refused = scene
            .try_pool(name, json!({ "maxUnavailable": limit }))
            .await;
        let Err(kube::Error::Api(status)) = refused else {
            panic!("{limit} was taken");
        };
        assert_eq!(status.code, 422, "{status:?}");
        assert!(
            status.message.contains(&scene.own(name)),
            "{}",
            status.message
        );
        assert!(
            status.message.contains("spec.maxUnavailable"),
            "{}",
            status.message
        );
        assert!(status.message.contains("percentage"), "{}", status.message);
    }
    make_lenient_pools(&scene, &bad)?;
    for (name, _) in &bad {
        scene
            .config(name, &format!("00-{name}"), file("/etc/x", "1"))
            .await?;
        let node = scene
            .describe(name)
            .label(&format!("pool-{name}"), &scene.name);
        drop(scene.start(node).await?);
    }
    let nodes = scene.fleet("web", 1, 1).await?;
    let agents = Agents::start(&scene, &nodes).await?;
    scene.config("web", "00-web", file("/etc/x", "1")).await?;
    scene.pool("web", json!({})).await?;
    let _operator = scene.operator(&[])?;
    scene.until_updated("web", "", LONG).await?;
    agents.check_violations()?;
    for (name, limit) in &bad {
        let status = scene
            .until_pool(name, "to be degraded", SOON, |it| {
                is(it, condition::DEGRADED)
            })
            .await?;
        let (reason, message) = said(&status, condition::DEGRADED);
        assert_eq!(reason, "InvalidPool");
        let place = format!(
            "pool {}: spec.maxUnavailable: {limit} is not a valid number of nodes",
            scene.own(name)
        );
        assert!(message.starts_with(&place), "{message}");
        scene
            .told(&scene.own(name), "InvalidPool", "spec.maxUnavailable")
            .await?;
        let node = scene.node(&scene.own(name)).await?;
        assert_eq!(
            annotated(&node, annotation::DESIRED_CONFIG),
            None,
            "it moves"
        );
        assert!(
            !scene.target(name).await?.is_empty(),
            "it is rendered all the same"
        );
    }
    Ok(())
}

#[tokio::test]
async fn pools_without_nodes_and_pools_that_overlap_say_so() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("overlap").await?;
    let shared = scene
        .describe("both")
        .label("pool-a", &scene.name)
        .label("pool-b", &scene.name);
    let shared = scene.start(shared).await?;
    for pool in ["a", "b", "empty"] {
        scene
            .config(pool, &format!("00-{pool}"), file("/etc/x", pool))
            .await?;
        scene.pool(pool, json!({})).await?;
    }
    scene
        .pool(
            "unselective",
            json!({ "nodeSelector": null, "machineConfigSelector": null }),
        )
        .await?;
    let _operator = scene.operator(&[])?;
    for (pool, other) in [("a", "b"), ("b", "a")] {
        let status = scene
            .until_pool(pool, "to overlap", SOON, |it| {
                said(it, condition::NODE_DEGRADED).0 == "OverlappingPools"
            })
            .await?;
        let (_, message) = said(&status, condition::DEGRADED);
        let named = format!("{} (also in {})", shared.name(), scene.own(other));
        assert!(
            message.contains("spec.nodeSelector") && message.contains(&named),
            "{message}"
        );
        scene
            .told(&scene.own(pool), "OverlappingPools", shared.name())
            .await?;
    }
    let node = scene.node(shared.name()).await?;
    assert_eq!(annotated(&node, annotation::DESIRED_CONFIG), None);
    let status = scene
        .until_pool("empty", "to have no nodes", SOON, |it| {
            said(it, condition::UPDATED).0 == "NoNodes"
        })
        .await?;
    let (_, message) = said(&status, condition::UPDATED);
    assert_eq!(
        message,
        format!(
            "pool {}: spec.nodeSelector selects no node",
            scene.own("empty")
        )
    );
    let status = scene
        .until_pool("unselective", "to have no source", SOON, |it| {
            is(it, condition::RENDER_DEGRADED)
        })
        .await?;
    let (_, message) = said(&status, condition::RENDER_DEGRADED);
    assert!(
        message.contains("spec.machineConfigSelector is missing"),
        "{message}"
    );
    // One of them gives the node up, and it is the other one's.
    scene
        .patch(
            shared.name(),
            &json!({ "metadata": { "labels": { "pool-b": null } } }),
        )
        .await?;
    scene
        .until_pool("a", "to have its node", SOON, |it| {
            it.machine_count == 1 && !is(it, condition::NODE_DEGRADED)
        })
        .await?;
    Ok(())
}

/// Covers M02.
#[tokio::test]
async fn what_cannot_be_rendered_names_the_machine_config_and_the_old_one_stays_in_use()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("unrendered").await?;
    let (_, agents) = scene.web(2, 1, json!({})).await?;
    let _operator = scene.operator(&[])?;
    let first = scene.until_updated("web", "", LONG).await?;

    let nobodys = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": { "name": scene.own("nobodys") }, "spec": file("/etc/x", "1"),
    });
    let nobodys = serde_json::from_value(nobodys).doing(|| "no object")?;
    let made = scene
        .configs()
        .create(&PostParams::default(), &nobodys)
        .await;
    made.doing(|| "cannot make it")?;
    scene
        .told(&scene.own("nobodys"), "NoRole", label::ROLE)
        .await?;

    let mut large = file("/etc/large-a", &"x".repeat(600 * 1024));
    let files = &mut large["config"]["storage"]["files"];
    let mut second = files[0].clone();
    second["path"] = json!("/etc/large-b");
    *files = json!([files[0], second]);
    let invalid =
        json!({ "config": { "ignition": { "version": "3.2.0" }, "storage": { "fles": [] } } });
    let cases = [
        (
            vec![("60-bad", invalid)],
            "InvalidConfig",
            vec!["60-bad", "storage", "\"fles\" (did you mean \"files\"?)"],
        ),
        (
            vec![("60-bad", file("/etc/base/below", "1"))],
            "ImpossibleMerge",
            vec![
                "00-base",
                "60-bad",
                "storage.files /etc/base/below is below storage.files /etc/base",
            ],
        ),
        (
            vec![("60-bad", large)],
            "TooLarge",
            vec!["KiB", "/etc/large-a (801 KiB)", "/etc/large-b (801 KiB)"],
        ),
    ];
    for (configs, reason, words) in cases {
        for (name, spec) in &configs {
            scene.config("web", name, spec.clone()).await?;
        }
        let status = scene
            .until_pool("web", reason, SOON, |it| {
                said(it, condition::RENDER_DEGRADED).0 == reason
            })
            .await?;
        let (_, message) = said(&status, condition::RENDER_DEGRADED);
        assert!(is(&status, condition::DEGRADED), "{status:#?}");
        for word in words {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
        assert_eq!(scene.target("web").await?, first);
        scene
            .told(
                &scene.own("web"),
                reason,
                "the pool keeps its previous configuration",
            )
            .await?;
        for (name, _) in configs {
            let gone = scene
                .configs()
                .delete(&scene.own(name), &DeleteParams::default())
                .await;
            gone.doing(|| "cannot delete it")?;
        }
        scene
            .until_pool("web", "to be healthy", SOON, |it| {
                !is(it, condition::RENDER_DEGRADED)
            })
            .await?;
    }
    assert_eq!(scene.target("web").await?, first);
    agents.check_violations()
}

#[tokio::test]
async fn a_rendered_configuration_that_somebody_edits_or_deletes_is_put_back() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("tampered").await?;
    scene
        .config("web", "00-base", file("/etc/base", "1"))
        .await?;
    scene.pool("web", json!({})).await?;
    let _operator = scene.operator(&[])?;
    let target = until_async("the pool to have a configuration", SOON, async || {
        let target = scene.target("web").await?;
        Ok(if target.is_empty() {
            Look::NotYet(scene.log())
        } else {
            Look::Found(target)
        })
    })
    .await?;
    let made = scene
        .configs()
        .get(&target)
        .await
        .doing(|| "it is not there")?;
    let is_as_made = async || {
        until_async("it to be put back", SOON, async || {
            let found = scene
                .configs()
                .get_opt(&target)
                .await
                .doing(|| "cannot look")?;
            Ok(match found {
                Some(found) if found.data["spec"] == made.data["spec"] => Look::Found(found),
                other => Look::NotYet(format!("{other:?}")),
            })
        })
        .await
    };
    let edit = Patch::Merge(json!({ "spec": { "osImageURL": "evil" } }));
    let edited = scene
        .configs()
        .patch(&target, &PatchParams::default(), &edit)
        .await;
    edited.doing(|| "cannot edit it")?;
    is_as_made().await?;
    scene
        .told(
            &scene.own("web"),
            "RenderedConfigRestored",
            "which somebody edited",
        )
        .await?;
    let deleted = scene
        .configs()
        .delete(&target, &DeleteParams::default())
        .await;
    deleted.doing(|| "cannot delete it")?;
    let again = is_as_made().await?;
    assert_ne!(again.uid(), made.uid());
    scene
        .told(
            &scene.own("web"),
            "RenderedConfigRestored",
            "which somebody deleted",
        )
        .await?;
    // Nor is it of any use to name another one.
    scene
        .edit_pool(
            "web",
            json!({ "spec": { "configuration": { "name": "mine" } } }),
        )
        .await?;
    until_async("the pool to name it again", SOON, async || {
        let found = scene.target("web").await?;
        Ok(if found == target {
            Look::Found(())
        } else {
            Look::NotYet(found)
        })
    })
    .await
}

#[tokio::test]
async fn a_node_that_disappears_in_the_middle_is_said_and_keeps_nobody_waiting() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("gone").await?;
    // The oldest has no agent, and goes first.
    let silent = scene
        .describe("silent")
        .label("pool-web", &scene.name)
        .zone("z0");
    let silent = scene.start(silent).await?;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (_, agents) = scene.web(2, 1, json!({})).await?;
    let _operator = scene.operator(&[])?;
    scene
        .until_pool("web", "to wait for it", SOON, |it| {
            said(it, condition::UPDATING).1.contains("silent")
        })
        .await?;
    let name = silent.name().to_owned();
    silent
        .delete(&scene.control_plane.admin_kubeconfig())
        .await?;
    scene.told(&scene.own("web"), "NodeGone", &name).await?;
    scene.until_updated("web", "", LONG).await?;
    agents.check_violations()
}

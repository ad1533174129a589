//! What the owner says that changes need around them: nodes do that, and what makes no sense is told and taken with care.

use evenkeel_api::fleet::machine_config_pool::condition;
use evenkeel_api::names::{annotation, object};
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result, need};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::pools::{file, is, said};
use crate::rollout::LONG;
use crate::scene::{SOON, Scene, annotated};

/// Writes the ConfigMap of the owner, or takes it away.
async fn say(scene: &Scene, policy: Option<Value>) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), &scene.name);
    let name = object::DISRUPTION_POLICY;
    let Some(policy) = policy else {
        let gone = maps.delete(name, &DeleteParams::default()).await;
        return gone.map(|_| ()).doing(|| "cannot delete the policy");
    };
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
        "data": { object::DISRUPTION_POLICY_KEY: policy.to_string() },
    });
    let parameters = PatchParams::apply("test").force();
    let written = maps.patch(name, &parameters, &Patch::Apply(map)).await;
    written.map(|_| ()).doing(|| "cannot write the policy")
}

/// The policy that a rendered configuration has.
async fn handed_on(scene: &Scene, config: &str) -> Result<Option<String>> {
    let config = scene.configs().get(config).await;
    let config = config.doing(|| "no configuration")?;
    let annotations = config.metadata.annotations.unwrap_or_default();
    Ok(annotations.get(annotation::DISRUPTION_POLICY).cloned())
}

async fn until_handed_on(scene: &Scene, config: &str, words: &str) -> Result<()> {
    until_async(&format!("{config} to have {words:?}"), SOON, async || {
        let found = handed_on(scene, config).await?;
        Ok(match &found {
            Some(policy) if policy.contains(words) => Look::Found(()),
            found => Look::NotYet(format!("{found:?}\n{}", scene.log())),
        })
    })
    .await
}

/// Covers O09.
#[tokio::test]
async fn a_policy_of_the_owner_decides_what_a_rollout_disrupts() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let scene = Scene::new("disruption").await?;
    let (nodes, agents) = scene.web(2, 1, json!({ "maxUnavailable": 2 })).await?;
    let of_base = |kind: &str| {
        let actions = json!([{ "type": kind }]);
        Some(json!({ "files": [{ "path": "/etc/base", "actions": actions }] }))
    };
    let _operator = scene.operator(&[])?;
    let first = scene.until_updated("web", "", LONG).await?;
    let boots = agents.boots();
    assert!(boots >= 2, "nothing rebooted without a policy");

    say(&scene, of_base("None")).await?;
    until_handed_on(&scene, &first, "\"None\"").await?;
    scene
        .config("web", "00-base", file("/etc/base", "2"))
        .await?;
    let second = scene.until_updated("web", &first, LONG).await?;
    assert_eq!(agents.boots(), boots, "a reboot in spite of the policy");
    for node in nodes.iter() {
        assert_eq!(agents.file(node.name(), "/etc/base").as_deref(), Some("2"));
        let seen = scene.node(node.name()).await?;
        let asked = annotated(&seen, annotation::DESIRED_DRAIN).unwrap_or_default();
        assert!(!asked.contains(&second), "{asked}");
    }

    // What makes no sense is named, and the careful reading counts.
    say(&scene, of_base("Nothing")).await?;
    let kind = condition::DISRUPTION_POLICY_INVALID;
    let status = scene
        .until_pool("web", "to tell of the policy", SOON, |it| is(it, kind))
        .await?;
    let (reason, message) = said(&status, kind);
    assert_eq!(reason, "InvalidEntries");
    let entry =
        "ConfigMap evenkeel-disruption-policy: files[/etc/base].actions[0]: type \"Nothing\"";
    assert!(message.starts_with(entry), "{message}");
    until_handed_on(&scene, &second, "\"Reboot\"").await?;
    scene
        .config("web", "00-base", file("/etc/base", "3"))
        .await?;
    let third = scene.until_updated("web", &second, LONG).await?;
    assert_eq!(agents.boots(), boots + 2);

    say(&scene, None).await?;
    scene
        .until_pool("web", "to tell of nothing", SOON, |it| !is(it, kind))
        .await?;
    until_async("the policy to be gone", SOON, async || {
        let found = handed_on(&scene, &third).await?;
        Ok(match found {
            None => Look::Found(()),
            found => Look::NotYet(format!("{found:?}")),
        })
    })
    .await?;
    // An edit of the policy is no edit of the configuration.
    let told = scene.log();
    assert!(!told.contains("RenderedConfigRestored"), "{told}");
    agents.check_violations()
}

/// Covers O09.
#[tokio::test]
async fn the_policy_of_openshifts_own_kind_counts_as_soon_as_there_is_one() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    // It has one name for the whole cluster.
    let plane = ControlPlane::start_own()?;
    let scene = Scene::on(*plane, "openshift").await?;
    scene.pool("web", json!({})).await?;
    scene
        .config("web", "00-base", file("/etc/base", "1"))
        .await?;
    let _operator = scene.operator(&[])?;
    let config = until_async("a configuration", SOON, async || {
        Ok(match scene.target("web").await? {
            none if none.is_empty() => Look::NotYet(scene.log()),
            target => Look::Found(target),
        })
    })
    .await?;
    assert_eq!(handed_on(&scene, &config).await?, None);
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "machineconfigurations.operator.openshift.io",
            "annotations": { "api-approved.openshift.io": "unapproved, a stand-in" },
        },
        "spec": {
            "group": "operator.openshift.io", "scope": "Cluster",
            "names": { "kind": "MachineConfiguration", "plural": "machineconfigurations", "singular": "machineconfiguration" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": anything },
            }],
        },
    });
    let reload = json!([{ "type": "Reload", "reload": { "serviceName": "chronyd.service" } }]);
    let object = json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "MachineConfiguration",
        "metadata": { "name": "cluster" },
        "spec": {
            "managementState": "Managed",
            "nodeDisruptionPolicy": { "files": [{ "path": "/etc/chrony.conf", "actions": reload }] },
        },
    });
    let file = scene.scratch.path().join("object.json");
    let path = file.display().to_string();
    for (object, wait) in [
        (
            definition,
            Some("crd/machineconfigurations.operator.openshift.io"),
        ),
        (object, None),
    ] {
        std::fs::write(&file, object.to_string()).doing(|| "cannot write an object")?;
        plane.kubectl(&["apply", "-f", &path])?;
        if let Some(definition) = wait {
            plane.kubectl(&["wait", "--for=condition=Established", definition])?;
        }
    }
    until_handed_on(&scene, &config, "chronyd.service").await?;
    // Where both say something, both count.
    let own =
        json!({ "files": [{ "path": "/etc/chrony.conf", "actions": [{ "type": "Drain" }] }] });
    say(&scene, Some(own)).await?;
    until_handed_on(&scene, &config, "\"Drain\"").await?;
    until_handed_on(&scene, &config, "chronyd.service").await
}

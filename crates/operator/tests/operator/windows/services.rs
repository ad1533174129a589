//! The services ConfigMap is made, kept, and cleared of impostors.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_api::names::{annotation, label};
use evenkeel_api::windows::services::Services;
use evenkeel_api::windows::windows_pool::condition;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::{Doing, Result, need};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::bed::{Bed, OWN, OWN_MAP, is_right, worker_ignition};
use crate::scene::SOON;

/// What is wrong is put right in this time.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Contents that hold, and that nobody would write.
fn wrong() -> BTreeMap<String, String> {
    let services =
        json!([{ "name": "evil", "command": "evil.exe", "bootstrap": true, "priority": 0 }]);
    BTreeMap::from([
        ("services".to_owned(), services.to_string()),
        ("files".to_owned(), "[]".to_owned()),
    ])
}

/// Covers H01, H05, H06.
#[tokio::test]
async fn the_config_map_of_this_version_is_made_from_the_template_the_payload_and_the_workers()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("svc-made").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let _operator = bed.operator()?;
    let (map, services) = bed.own_map(SOON).await?;
    assert_eq!(map.immutable, Some(true));
    let order: Vec<_> = services
        .creation_order()
        .iter()
        .map(|it| (it.name.clone(), it.bootstrap, it.priority))
        .collect();
    let expected = [
        ("containerd", true, 0),
        ("kubelet", true, 1),
        ("csi-proxy", false, 2),
        ("hybrid-overlay-node", false, 2),
        ("windows_exporter", false, 2),
        ("kube-proxy", false, 3),
    ];
    let expected = expected.map(|(name, bootstrap, it)| (name.to_owned(), bootstrap, it));
    assert_eq!(order, expected);
    let kubelet = services.services.iter().find(|it| it.name == "kubelet");
    let command = kubelet.map_or("", |it| it.command.as_str());
    assert!(
        command.ends_with(
            "--register-with-taints=os=Windows:NoSchedule --hostname-override=NODE_NAME --node-ip=NODE_IP \
             --node-labels=node.openshift.io/os_id=Windows --windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS \
             --cloud-provider=external"
        ),
        "{command}"
    );
    assert_eq!(
        services.node_name_script(),
        Some(r"C:\k\scripts\node-name.ps1")
    );
    let paths: Vec<_> = services.files.iter().map(|it| it.path.as_str()).collect();
    for path in [
        r"C:\k\kubelet.exe",
        r"C:\k\evenkeel-agent.exe",
        r"C:\k\bootstrap-kubeconfig",
        r"C:\k\kubelet-ca.crt",
        r"C:\k\kubelet.conf",
        r"C:\k\scripts\network.ps1",
        r"C:\k\scripts\node-ip.ps1",
        r"C:\k\scripts\node-name.ps1",
        r"C:\k\scripts\node-name-aws.ps1",
        r"C:\k\scripts\node-name-azure.ps1",
        r"C:\k\scripts\node-name-gcp.ps1",
    ] {
        assert!(paths.contains(&path), "{path} is not among {paths:?}");
    }
    // The pool owns it, and says what is so.
    let pool = bed.pools().get(&bed.pool_name()).await;
    let uid = pool.doing(|| "no pool")?.metadata.uid;
    let owners = map.metadata.owner_references.unwrap_or_default();
    assert_eq!(owners.first().map(|it| it.uid.clone()), uid);
    let status = bed
        .until_status("the version", |it| it.version.to_string() == OWN)
        .await?;
    assert_eq!(status.nodes.total, 0);
    let upgradeable = status.condition(condition::UPGRADEABLE);
    assert_eq!(upgradeable.map(|it| it.status.as_str()), Some("True"));
    // No login is in it, nor in what the operator says.
    let text = format!("{:?}{}", map.data, bed.scene.log());
    assert!(!text.contains("very-secret"));
    Ok(())
}

/// Does this to the services ConfigMap, or puts another one beside it.
async fn spoil(bed: &Bed, how: &str) -> Result<()> {
    let other = match how {
        "deleted" => return bed.delete_map(OWN_MAP).await,
        "replaced" => {
            bed.delete_map(OWN_MAP).await?;
            // Ours may be there again already: then that one stays.
            let _ = bed.make_map(OWN_MAP, true, None, &wrong()).await;
            return Ok(());
        }
        "unmarked" => {
            let patch = json!({ "metadata": { "labels": { label::SERVICES: null }, "ownerReferences": null } });
            let (maps, parameters) = (bed.maps(), PatchParams::default());
            let patched = maps.patch(OWN_MAP, &parameters, &Patch::Merge(patch)).await;
            return patched.map(|_| ()).doing(|| "cannot take the label off");
        }
        // Newer than ours, and nothing that an operator would have written.
        "impostor" => "services-9-9-9-abcdef0",
        "odd" => "services-of-somebody",
        _ => "services-1-2-3-0000000",
    };
    bed.make_map(other, how != "impostor", None, &wrong()).await
}

/// Covers H02, H03.
#[tokio::test]
async fn a_config_map_that_is_deleted_edited_or_an_impostors_is_put_right_within_a_second()
-> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("svc-kept").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let _operator = bed.operator()?;
    let (first, services) = bed.own_map(SOON).await?;
    let hash = services.hash();
    let right = |maps: &[k8s_openapi::api::core::v1::ConfigMap]| {
        maps.len() == 1 && maps.iter().all(is_right)
    };
    let mut uid = first.metadata.uid;
    for what in [
        "deleted", "replaced", "unmarked", "impostor", "odd", "other",
    ] {
        let promise = format!("one that is {what} is put right within a second");
        let is_at_once = |took: &Duration| *took < AT_ONCE;
        kept_async(&promise, is_at_once, async || {
            spoil(&bed, what).await?;
            let began = Instant::now();
            bed.until_maps(&format!("right after {what}"), SOON, right)
                .await?;
            let took = began.elapsed();
            let (map, services) = bed.own_map(SOON).await?;
            assert_eq!(services.hash(), hash, "{what}");
            let owners = map.metadata.owner_references.unwrap_or_default();
            assert_eq!(owners.len(), 1, "{what}");
            if what == "deleted" {
                assert_ne!(map.metadata.uid, uid);
            }
            uid = map.metadata.uid;
            Ok(took)
        })
        .await?;
    }
    let pool = bed.pool_name();
    bed.scene
        .told(&pool, "ServicesRecreated", "was deleted")
        .await?;
    let notes = bed
        .scene
        .told(&pool, "ServicesRemoved", "services-of-somebody")
        .await?;
    assert!(notes.contains("no version"), "{notes}");

    // One that cannot go yet is told, keeps no other wrong, and is replaced as soon as it can go.
    let finalizers = |them: serde_json::Value| json!({ "metadata": { "finalizers": them } });
    let edit = async |patch: serde_json::Value| {
        let parameters = PatchParams::default();
        let edited = bed
            .maps()
            .patch(OWN_MAP, &parameters, &Patch::Merge(patch))
            .await;
        edited.map(|_| ()).doing(|| "cannot edit the ConfigMap")
    };
    edit(finalizers(json!(["example.com/holds"]))).await?;
    bed.delete_map(OWN_MAP).await?;
    bed.scene
        .told(&pool, "ServicesHeld", "it has finalizers: remove them")
        .await?;
    bed.make_map("services-again", true, None, &wrong()).await?;
    bed.until_maps("no impostor", SOON, |maps| maps.len() == 1)
        .await?;
    edit(finalizers(json!(null))).await?;
    bed.until_maps("right at last", SOON, right).await?;
    Ok(())
}

/// Covers H03.
#[tokio::test]
async fn the_config_map_of_another_version_stays_as_long_as_a_node_runs_it() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("svc-old").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let (old, version) = ("services-1-1-0-0000001", "1.1.0-0000001");
    let (services, _) = Services::from_data("old", &wrong()).doing(|| "it does not hold")?;
    bed.make_map(old, true, None, &services.canonical()).await?;
    let node = bed.node("old", version, &services.hash()).await?;
    let _operator = bed.operator()?;
    let (_, own) = bed.own_map(SOON).await?;
    // One with that name and other contents is no such thing.
    let told = bed.map_names().await?;
    assert_eq!(told, [old, OWN_MAP]);
    bed.delete_map(old).await?;
    let mut other = services.clone();
    other.watched.push("SOMETHING".to_owned());
    bed.make_map(old, true, None, &other.canonical()).await?;
    bed.until_maps("the other one to be gone", SOON, |maps| maps.len() == 1)
        .await?;
    bed.make_map(old, true, None, &services.canonical()).await?;
    let pool = bed.pool_name();
    let status = bed
        .until_status("one node", |it| it.nodes.total == 1)
        .await?;
    assert_eq!((status.nodes.updated, status.nodes.updating), (0, 0));
    assert_eq!(bed.map_names().await?, [old, OWN_MAP]);
    // It runs ours from now on.
    bed.annotate(
        node.name(),
        json!({
            annotation::WINDOWS_VERSION: OWN, annotation::CURRENT_SERVICES: own.hash(),
            annotation::WINDOWS_DESIRED_VERSION: OWN, annotation::DESIRED_SERVICES: own.hash(),
        }),
    )
    .await?;
    bed.until_maps("the old one to be collected", SOON, |maps| maps.len() == 1)
        .await?;
    bed.scene
        .told(&pool, "ServicesRemoved", "no node runs 1.1.0-0000001")
        .await?;
    Ok(())
}

#[tokio::test]
async fn an_operator_does_not_go_back_under_a_newer_version_that_is_installed() -> Result<()> {
    if need::skip(ControlPlane::NEEDS)? {
        return Ok(());
    }
    let bed = Bed::new("svc-newer").await?;
    bed.give_worker(&worker_ignition("first")).await?;
    let pool = bed.pools().get(&bed.pool_name()).await;
    let uid = pool.doing(|| "no pool")?.metadata.uid.unwrap_or_default();
    let newer = "services-1-3-0-fffffff";
    let (services, _) = Services::from_data("newer", &wrong()).doing(|| "it does not hold")?;
    bed.make_map(newer, true, Some(&uid), &services.canonical())
        .await?;
    let node = bed.node("w", "1.3.0-fffffff", &services.hash()).await?;
    let _operator = bed.operator()?;
    let reason = "NewerVersionInstalled";
    let message = bed
        .until_condition(condition::UPGRADEABLE, false, reason)
        .await?;
    assert!(
        message.contains(newer) && message.contains(OWN),
        "{message}"
    );
    bed.scene.told(&bed.pool_name(), reason, "1.3.0").await?;
    assert_eq!(bed.map_names().await?, [newer], "nothing is made");
    // What that version granted is still kept.
    bed.annotate(
        node.name(),
        json!({ annotation::WINDOWS_DESIRED_VERSION: OWN }),
    )
    .await?;
    bed.scene
        .event(node.name(), "DesiredVersionPutBack")
        .await?;
    // It was uninstalled: ours converges.
    bed.delete_map(newer).await?;
    bed.own_map(SOON).await?;
    bed.until_condition(condition::UPGRADEABLE, true, "AsExpected")
        .await?;
    Ok(())
}

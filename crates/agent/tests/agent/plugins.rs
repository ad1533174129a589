//! The kubelet's plugins, which an agent registers as extensions of its node.

use std::time::{Duration, Instant};

use evenkeel_api::names::annotation;
use evenkeel_testbed::promise::kept_async;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::readiness::Reports;
use super::scene::{SOON, Scene};

const SOCKET: &str = "/var/lib/kubelet/plugins_registry/csi.example.com-reg.sock";

async fn list(scene: &Scene) -> Result<Value> {
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let node = nodes.get(&scene.name).await.doing(|| "no node")?;
    let text = node.annotations().get(annotation::SYSTEM_EXTENSIONS);
    let read = text.map(|text| serde_json::from_str(text).doing(|| "no list"));
    read.unwrap_or(Ok(Value::Null))
}

async fn until(scene: &Scene, what: &str, wanted: Value) -> Result<Instant> {
    until_async(what, SOON, async || {
        let seen = list(scene).await?;
        Ok(if seen == wanted {
            Look::Found(Instant::now())
        } else {
            Look::NotYet(seen.to_string())
        })
    })
    .await
}

/// A kubelet that starts removes the sockets of device plugins, which then come back.
///
/// Covers R01.
#[tokio::test]
async fn a_device_plugin_that_the_kubelet_threw_out_is_missed_until_it_is_back() -> Result<()> {
    let Some(scene) = Scene::start("devices").await? else {
        return Ok(());
    };
    let reports = Reports::of(&scene);
    let folder = "/var/lib/kubelet/device-plugins";
    let path = format!("{folder}/gpu.sock");
    for (name, socket) in [("registry", "kubelet.sock"), ("gpu", "gpu.sock")] {
        let unit = format!("/etc/systemd/system/{name}");
        let socket = format!("[Socket]\nListenStream={folder}/{socket}\n");
        scene.node.write(&format!("{unit}.socket"), socket)?;
        let service = "[Service]\nExecStart=/bin/sleep infinity\n";
        scene.node.write(&format!("{unit}.service"), service)?;
    }
    scene.node.run(&["systemctl", "daemon-reload"])?;
    scene.start_with(&["--register-kubelet-plugins"])?;
    let start = ["systemctl", "start", "registry.socket", "gpu.socket"];
    scene.node.run(&start)?;
    let ours = json!([{ "name": "gpu", "probe": { "unixSocket": { "path": path } } }]);
    until(&scene, "the device plugin to be there", ours.clone()).await?;
    let is_healthy = |healthy| {
        move |it: &evenkeel_api::readiness::Report| {
            it.probes.get("gpu").map(|it| it.healthy) == Some(healthy)
        }
    };
    reports
        .until("the device plugin to be healthy", is_healthy(true))
        .await?;
    let units = ["gpu.socket", "gpu.service", "registry.socket"];
    scene
        .node
        .run(&[&["systemctl", "stop"][..], &units].concat())?;
    scene
        .node
        .run(&["sh", "-c", &format!("rm -f {folder}/*.sock")])?;
    scene.node.run(&["systemctl", "start", "registry.socket"])?;
    reports
        .until("the device plugin to be missed", is_healthy(false))
        .await?;
    assert_eq!(list(&scene).await?, ours, "it is not forgotten");
    scene.node.run(&["systemctl", "start", "gpu.socket"])?;
    reports
        .until("the device plugin to be healthy again", is_healthy(true))
        .await?;
    assert_eq!(list(&scene).await?, ours);
    Ok(())
}

/// Covers R01.
#[tokio::test]
async fn the_kubelets_plugins_are_registered_and_what_others_registered_stays() -> Result<()> {
    let Some(scene) = Scene::start("plugins").await? else {
        return Ok(());
    };
    let reports = Reports::of(&scene);
    let socket = format!("[Socket]\nListenStream={SOCKET}\n");
    let unit = "/etc/systemd/system/csi";
    scene.node.write(&format!("{unit}.socket"), socket)?;
    let service = "[Service]\nExecStart=/bin/sleep infinity\n";
    scene.node.write(&format!("{unit}.service"), service)?;
    // Somebody else has registered something, in their own way.
    let theirs = json!({ "name": "cni", "lease": {}, "affectsReadiness": false });
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let set = async |list: Value| -> Result<()> {
        let annotations = json!({ annotation::SYSTEM_EXTENSIONS: list.to_string() });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let set = nodes
            .patch(&scene.name, &PatchParams::default(), &patch)
            .await;
        set.map(|_| ()).doing(|| "cannot annotate")
    };
    set(json!([theirs])).await?;
    // As the DaemonSet runs it: the machine's root is elsewhere.
    scene.mount_the_root()?;
    let options = "--root /host --register-kubelet-plugins --forget-plugins-after 8s";
    scene.start_with(&[options])?;
    reports.until("a report", |_| true).await?;
    assert_eq!(
        list(&scene).await?,
        json!([theirs]),
        "there is no plugin yet"
    );

    // The folder comes with the first plugin.
    let ours = json!({ "name": "csi.example.com", "probe": { "unixSocket": { "path": SOCKET } } });
    let is_healthy = |it: &evenkeel_api::readiness::Report| {
        it.probes.get("csi.example.com").map(|it| it.healthy)
    };
    let stop = ["systemctl", "stop", "csi.socket", "csi.service"];
    let promise = "a plugin is registered within three seconds";
    let is_soon = |took: &Duration| *took < Duration::from_secs(3);
    let took = kept_async(promise, is_soon, async || {
        scene.node.run(&stop)?;
        scene.node.run(&["rm", "-f", SOCKET])?;
        until(&scene, "the plugin to be gone", json!([theirs])).await?;
        let begun = Instant::now();
        scene.node.run(&["systemctl", "start", "csi.socket"])?;
        let at = until(&scene, "the plugin to be there", json!([theirs, ours])).await?;
        let took = at.duration_since(begun);
        reports
            .until("the plugin to be healthy", |it| {
                is_healthy(it) == Some(true)
            })
            .await?;
        Ok(took)
    })
    .await?;
    println!("proof: a plugin was registered {took:?} after its start was asked for");
    // Whoever takes it off the list finds it there again. At rest nothing is asked: what followed the last change is over
    // when the report is renewed.
    set(json!([theirs])).await?;
    until(&scene, "the plugin to be back", json!([theirs, ours])).await?;
    // (Rules of other tests come and go, and are read.)
    let asked = || -> Result<usize> {
        let all = scene.requests()?;
        Ok(all.iter().filter(|it| !it.contains("rules")).count())
    };
    reports.renewed().await?;
    let before = asked()?;
    reports.renewed().await?;
    assert_eq!(asked()?, before, "{:?}", scene.requests()?);

    // It ends and leaves its socket behind: it is missing. The socket goes, too: it is missed for a while, and then it is no
    // plugin any more.
    // (The first question has started its service, which holds the socket.)
    scene.node.run(&stop)?;
    let failing = reports
        .until("the plugin to be missed", |it| {
            is_healthy(it) == Some(false)
        })
        .await?;
    let why = &failing.probes["csi.example.com"].message;
    assert!(why.contains("cannot connect to socket"), "{why}");
    scene.node.run(&["rm", SOCKET])?;
    let begun = Instant::now();
    let gone = until(&scene, "the plugin to be gone", json!([theirs])).await?;
    let missed = gone.duration_since(begun);
    assert!(missed > Duration::from_secs(6), "{missed:?}");
    reports
        .until("nothing to be probed", |it| it.probes.is_empty())
        .await
        .map(|_| ())
}

//! Which unit runs the kubelet, and where its folder is: other distributions than kubeadm's.

use evenkeel_api::names::annotation;
use evenkeel_testbed::Result;
use evenkeel_testbed::wait::{Look, until_async};

use super::readiness::Reports;
use super::scene::{SOON, Scene};

const SERVICE: &str = "[Service]\nExecStart=/bin/sleep infinity\n";
const KUBELITE: &str = "snap.microk8s.daemon-kubelite.service";
const MICROK8S: &str = "/var/snap/microk8s/common/var/lib/kubelet/device-plugins/gpu.sock";

/// Waits until the node's own list names the socket.
async fn until_registered(scene: &Scene, socket: &str) -> Result<()> {
    until_async(&format!("{socket} to be registered"), SOON, async || {
        let annotations = scene.annotations().await?;
        let list = annotations.get(annotation::SYSTEM_EXTENSIONS);
        Ok(match list.filter(|it| it.contains(socket)) {
            Some(_) => Look::Found(()),
            None => Look::NotYet(format!("{list:?}")),
        })
    })
    .await
}

/// Covers R08.
#[tokio::test]
async fn the_kubelet_is_found_under_other_names_and_folders_or_is_the_one_that_was_set()
-> Result<()> {
    let Some(scene) = Scene::start("kubelets").await? else {
        return Ok(());
    };
    let reports = Reports::of(&scene);
    for unit in ["k3s.service", KUBELITE, "our-kubelet.service"] {
        let path = format!("/etc/systemd/system/{unit}");
        scene.node.write(&path, SERVICE)?;
    }
    for (name, path) in [
        ("micro", MICROK8S),
        ("own", "/data/kubelet/plugins_registry/csi-reg.sock"),
    ] {
        let path = format!("[Socket]\nListenStream={path}\n");
        scene
            .node
            .write(&format!("/etc/systemd/system/{name}.socket"), path)?;
        let path = format!("/etc/systemd/system/{name}.service");
        scene.node.write(&path, SERVICE)?;
    }
    scene.node.run(&["systemctl", "daemon-reload"])?;
    scene.start_with(&["--register-kubelet-plugins"])?;
    reports
        .until("no kubelet", |it| it.kubelet_start.is_empty())
        .await?;

    scene.node.run(&["systemctl", "start", "k3s.service"])?;
    let first = reports
        .until("a start of k3s", |it| !it.kubelet_start.is_empty())
        .await?;
    scene.node.run(&["systemctl", "restart", "k3s.service"])?;
    let second = reports
        .until("another start of k3s", |it| {
            it.kubelet_start != first.kubelet_start
        })
        .await?;

    // The machine becomes a node of another distribution, whose kubelet has another folder.
    scene.node.run(&["systemctl", "stop", "k3s.service"])?;
    scene.node.run(&["systemctl", "start", KUBELITE])?;
    let third = reports
        .until("a start of MicroK8s", |it| {
            it.kubelet_start != second.kubelet_start
        })
        .await?;
    scene.node.run(&["systemctl", "start", "micro.socket"])?;
    until_registered(&scene, MICROK8S).await?;

    // What is set is not detected.
    let options = ["--kubelet-unit=our-kubelet", "--kubelet-dir=/data/kubelet"];
    scene.start_with(&[&["--register-kubelet-plugins"][..], &options].concat())?;
    scene
        .node
        .run(&["systemctl", "start", "our-kubelet.service"])?;
    let own = scene.node.run(&[
        "readlink",
        "/run/systemd/units/invocation:our-kubelet.service",
    ])?;
    let told = reports
        .until("a start of what was set", |it| {
            it.kubelet_start == own.trim()
        })
        .await?;
    assert_ne!(told.kubelet_start, third.kubelet_start);
    scene.node.run(&["systemctl", "start", "own.socket"])?;
    until_registered(&scene, "/data/kubelet/plugins_registry/csi-reg.sock").await
}

//! What a systemd machine has on it when it is a node: container runtime, kubelet, network plugins, and their settings.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_xtask::archive::Archive;
use evenkeel_xtask::image::{ImageConfig, Layout};
use serde_json::json;

use crate::control_plane::{ControlPlane, programs};
use crate::need::{self, Need};
use crate::network::GATEWAY;
use crate::process::run;
use crate::scratch::Scratch;
use crate::systemd_node::Equipment;
use crate::{Doing, Error, Result, cache};

pub(super) const NEEDS: &[Need] = &[
    Need::Program("containerd", "containerd"),
    Need::Program("runc", "runc"),
    Need::Program("/usr/lib/cni/ptp", "containernetworking-plugins"),
    Need::Program("musl-gcc", "musl-tools"),
];

/// What each pod's first container runs: it holds the name spaces, and reaps what others leave.
const PAUSE: &str = r"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main() {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
";
const PAUSE_IMAGE: &str = "pause:1";
/// A device plugin (`device NAME`) and a storage driver (`driver NAME`) of the kubelet.
pub(super) const EXTENSION_IMAGE: &str = "extension:1";

const CONTAINERD: &str = r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
# This machine may lack the right to raise its own priority.
restrict_oom_score_adj = true
sandbox_image = "pause:1"
[plugins."io.containerd.grpc.v1.cri".containerd]
# The machine's tree is an overlay already.
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
"#;

const KUBELET: &str = r"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/kubelet-ca.crt}
authorization: {mode: Webhook}
resolvConf: ''
staticPodPath: /etc/kubernetes/manifests
";

/// The units of the machine's systemd by which people, and agents, know them.
const UNITS: [&str; 2] = ["containerd.service", "kubelet.service"];

/// There is no kube-proxy: the machine's systemd forwards the one Service that everybody needs.
const SERVICE_ADDRESS: &str = "[Unit]
DefaultDependencies=no
Before=sockets.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=-/usr/sbin/ip address add 10.96.0.1/32 dev lo
";
const SERVICE_SOCKET: &str = "[Unit]
Requires=kubernetes-address.service
After=kubernetes-address.service
[Socket]
ListenStream=10.96.0.1:443
FreeBind=yes
";

/// The range of a node's pods, by the node's own address.
pub(super) fn pods_of(address: Ipv4Addr) -> String {
    let [_, _, high, low] = address.octets();
    format!("10.{}.{low}.0/24", 192_u8.saturating_add(high))
}

/// The programs of nodes, made once.
pub(super) fn layer() -> Result<PathBuf> {
    let kubelet = programs::kubelet()?;
    let version = kubelet
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default();
    // The number is raised whenever what is in it changes.
    let name = format!("cluster-node/{}-2", version.to_string_lossy());
    cache::entry(&name, 400, |place| {
        let bin = place.join("usr/bin");
        let cni = place.join("opt/cni/bin");
        for folder in [&bin, &cni] {
            std::fs::create_dir_all(folder).doing(|| "cannot make the node's folders")?;
        }
        let copy = |from: &Path, folder: &Path| {
            let to = folder.join(from.file_name().unwrap_or_default());
            std::fs::copy(from, to)
                .map(|_| ())
                .doing(|| format!("cannot copy {}", from.display()))
        };
        copy(&kubelet, &bin)?;
        for program in ["containerd", "containerd-shim-runc-v2", "ctr", "runc"] {
            let found = need::find(program)
                .ok_or_else(|| Error::Missing(format!("{program} is not installed")))?;
            copy(&found, &bin)?;
        }
        for plugin in ["host-local", "loopback", "ptp"] {
            copy(&Path::new("/usr/lib/cni").join(plugin), &cni)?;
        }
        let images = place.join("var/lib/images");
        std::fs::create_dir_all(&images).doing(|| "cannot make the node's folders")?;
        std::fs::write(images.join("pause.tar"), pause()?).doing(|| "cannot write the image")
    })
}

fn pause() -> Result<Vec<u8>> {
    let scratch = Scratch::new("pause")?;
    let source = scratch.path().join("pause.c");
    std::fs::write(&source, PAUSE).doing(|| "cannot write pause.c")?;
    let program = scratch.path().join("pause");
    run(Command::new("musl-gcc")
        .args(["-static", "-Os", "-s", "-o"])
        .args([&program, &source]))?;
    image(PAUSE_IMAGE, &program, "65535:65535")
}

/// An image that `name` names, of one static program, run by `user`: an OCI archive.
fn image(name: &str, program: &Path, user: &'static str) -> Result<Vec<u8>> {
    let contents = std::fs::read(program);
    let contents = contents.doing(|| format!("cannot read {}", program.display()))?;
    let mut files = Archive::default();
    files.program("program", contents);
    let config = ImageConfig {
        user,
        entrypoint: &["/program"],
        labels: &[],
    };
    let mut layout = Layout::new(0);
    let packed = layout
        .image("amd64", &files, &config)
        .and_then(|image| layout.packed(name, image));
    packed.map_err(|error| Error::failed(format!("cannot pack the image {name}: {error}")))
}

/// Packs the image [`EXTENSION_IMAGE`] into `folder`.
pub(super) fn extension(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("extension.tar");
    let packed = image(EXTENSION_IMAGE, &programs::extension()?, "0:0")?;
    std::fs::write(&path, packed).doing(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Lays what is the node's own into `upper`, the layer of its files.
pub(super) fn lay(
    name: &str,
    address: Ipv4Addr,
    upper: &Path,
    control_plane: &ControlPlane,
    images: &[PathBuf],
) -> Result<Equipment> {
    let layer = layer()?;
    let port = control_plane.address().port();
    let login = control_plane
        .kubeconfig_for_node(name)?
        .at(&GATEWAY.to_string());
    let network = json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": pods_of(address) }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    });
    let forward = format!(
        "[Unit]\nRequires=kubernetes.socket\n[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd {GATEWAY}:{port}\n"
    );
    for (path, text) in [
        ("etc/kubernetes/containerd.toml", CONTAINERD.to_owned()),
        ("etc/kubernetes/kubelet.yaml", KUBELET.to_owned()),
        ("etc/kubernetes/kubelet.kubeconfig", login.as_yaml()?),
        ("etc/kubernetes/kubelet-ca.crt", control_plane.authority()),
        (
            "etc/systemd/system/containerd.service",
            unit(
                "containerd",
                "containerd --config /etc/kubernetes/containerd.toml",
            ),
        ),
        (
            "etc/systemd/system/kubelet.service",
            unit(
                "kubelet",
                &format!(
                    "kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --hostname-override={name} --node-ip={address}"
                ),
            ),
        ),
        ("etc/cni/net.d/10-pods.conflist", network.to_string()),
        (
            "etc/systemd/system/kubernetes-address.service",
            SERVICE_ADDRESS.to_owned(),
        ),
        (
            "etc/systemd/system/kubernetes.socket",
            SERVICE_SOCKET.to_owned(),
        ),
        ("etc/systemd/system/kubernetes.service", forward),
        (
            "usr/local/lib/evenkeel-testbed/enter.sh",
            include_str!("enter.sh").to_owned(),
        ),
        (
            "usr/local/lib/evenkeel-testbed/unit.sh",
            include_str!("unit.sh").to_owned(),
        ),
    ] {
        write(&upper.join(path), text.as_bytes())?;
    }
    enable(upper, "sockets.target", "kubernetes.socket")?;
    for unit in UNITS {
        enable(upper, "multi-user.target", unit)?;
    }
    for image in images {
        let contents = std::fs::read(image).doing(|| format!("cannot read {}", image.display()))?;
        let file = image.file_name().unwrap_or_default().to_string_lossy();
        write(&upper.join("var/lib/images").join(&*file), &contents)?;
    }
    Ok(Equipment {
        layer,
        companion: include_str!("companion.sh").to_owned(),
    })
}

/// A unit of the machine for a program that runs next to it.
fn unit(name: &str, command: &str) -> String {
    format!(
        "[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh /usr/local/lib/evenkeel-testbed/unit.sh {name} {command}
KillMode=mixed
Restart=always
RestartSec=1
"
    )
}

fn enable(upper: &Path, target: &str, unit: &str) -> Result<()> {
    let wants = upper.join(format!("etc/systemd/system/{target}.wants"));
    std::fs::create_dir_all(&wants)
        .and_then(|()| std::os::unix::fs::symlink(format!("../{unit}"), wants.join(unit)))
        .doing(|| format!("cannot enable {unit}"))
}

fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, contents))
        .doing(|| format!("cannot write {}", path.display()))
}

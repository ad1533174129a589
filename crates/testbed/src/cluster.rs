//! A real cluster: a control plane, and nodes that are systemd machines with a container runtime and a kubelet of their own.
//! Pods run, and have a network; an agent in a pod writes its machine's files, speaks to its systemd and reboots it. Container
//! runtime and kubelet are `containerd.service` and `kubelet.service` of the machine: `systemctl` there does to them what it says.

mod equipment;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::control_plane::{ControlPlane, OwnControlPlane};
use crate::need::Need;
use crate::process::run;
use crate::wait::{Look, until_async};
use crate::{Doing, Result, SystemdNode};

/// How long a node may take from its boot to being ready, on a machine that is busy.
const READY: Duration = Duration::from_mins(3);

/// A cluster with real nodes. Nothing of it is left when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<SystemdNode>,
    control_plane: OwnControlPlane,
}

impl Cluster {
    /// What a machine must have to run one, besides what a control plane and systemd nodes need.
    pub const NEEDS: &[Need] = equipment::NEEDS;

    /// Makes the programs of its nodes ready, so that the first one does not have to.
    pub fn prepare() -> Result<()> {
        for need in Self::NEEDS {
            need.check()?;
        }
        equipment::layer().map(|_| ())
    }

    /// The name of the image that [`extension_image`](Self::extension_image) packs. Its words are `device NAME`, a device plugin
    /// with one device, or `driver NAME`, a storage driver that only registers.
    pub const EXTENSION_IMAGE: &str = equipment::EXTENSION_IMAGE;

    /// Packs an image of something that extends a kubelet into `folder`, for [`start`](Self::start).
    pub fn extension_image(folder: &Path) -> Result<PathBuf> {
        equipment::extension(folder)
    }

    /// Starts a cluster with nodes of these names, on which the images in `images` (OCI archives) are already there, and waits
    /// until all of them are ready.
    pub async fn start(names: &[&str], images: &[PathBuf]) -> Result<Self> {
        let control_plane = ControlPlane::start_own()?;
        let mut cluster = Self {
            nodes: Vec::new(),
            control_plane,
        };
        for name in names {
            cluster.add(name, images)?;
        }
        for name in names {
            cluster.until_ready(name).await?;
        }
        Ok(cluster)
    }

    /// Boots one more node.
    fn add(&mut self, name: &str, images: &[PathBuf]) -> Result<()> {
        let control_plane: &ControlPlane = &self.control_plane;
        let node = SystemdNode::boot_equipped(name, |upper, address| {
            equipment::lay(name, address, upper, control_plane, images).map(Some)
        })?;
        // Answers to its pods find the way back.
        run(Command::new("ip")
            .args(["route", "add", &equipment::pods_of(node.address()), "via"])
            .arg(node.address().to_string()))?;
        self.nodes.push(node);
        Ok(())
    }

    /// The control plane.
    pub fn control_plane(&self) -> &'static ControlPlane {
        &self.control_plane
    }

    /// The machine of a node, by its place among the names.
    pub fn node(&self, number: usize) -> &SystemdNode {
        &self.nodes[number]
    }

    /// The same, to boot or cut it.
    pub fn node_mut(&mut self, number: usize) -> &mut SystemdNode {
        &mut self.nodes[number]
    }

    /// Waits until the kubelet of `name` says that it is ready.
    pub async fn until_ready(&self, name: &str) -> Result<()> {
        let api: Api<Node> = Api::all(self.control_plane.admin_kubeconfig().client().await?);
        until_async(&format!("node {name} to be ready"), READY, async || {
            let node = api
                .get_opt(name)
                .await
                .doing(|| format!("cannot read node {name}"))?;
            let conditions = node
                .and_then(|it| it.status?.conditions)
                .unwrap_or_default();
            let ready = conditions.iter().find(|it| it.type_ == "Ready");
            Ok(match ready {
                Some(ready) if ready.status == "True" => Look::Found(()),
                Some(ready) => Look::NotYet(ready.message.clone().unwrap_or_default()),
                None => Look::NotYet(self.words_of(name)),
            })
        })
        .await
    }

    /// What the kubelet of a node, and what starts it, said last.
    fn words_of(&self, name: &str) -> String {
        let node = self.nodes.iter().find(|it| it.name() == name);
        let Some(node) = node else {
            return "there is no such node".to_owned();
        };
        let kubelet = node.own_files().join("var/log/kubernetes/kubelet.log");
        [kubelet.as_path(), node.console().as_path()]
            .iter()
            .map(|log| last_line(log))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("nothing was said").to_owned()
}

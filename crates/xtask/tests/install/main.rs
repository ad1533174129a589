//! A release, installed as a person installs it, on clusters with real nodes: real kubelets, containers and reboots.

#![cfg(target_os = "linux")]

mod arm64;
mod artifacts;
mod extensions;
mod installed;
mod kubelet;
mod monitoring;
mod monitors;
mod objects;
mod one_node;
mod page;
mod people;
mod previous;
mod release;
mod reproducible;
mod service;
mod three_nodes;
mod uninstall;
mod upgrade;
mod watch;

use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::control_plane::ControlPlane;
use evenkeel_testbed::{Result, SystemdNode, need};

/// Whether this machine lacks something for a real cluster.
fn skip() -> Result<bool> {
    Ok(need::skip(ControlPlane::NEEDS)?
        || need::skip(SystemdNode::NEEDS)?
        || need::skip(Cluster::NEEDS)?)
}

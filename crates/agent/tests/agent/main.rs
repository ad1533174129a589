//! What a Linux node's agent promises, tried on a real control plane and a node with a real systemd,
//! with the privileges that we ship.
#![cfg(target_os = "linux")]

mod fleet;
mod scene;

mod adoption;
mod coexistence;
mod disruption_policy;
mod drift;
mod health;
mod kubelet;
mod logins;
mod oddities;
mod os;
mod outages;
mod plugins;
mod policy;
mod power;
mod probes;
mod reachability;
mod readiness;
mod refusals;
mod rights;
mod ssh_keys;
mod updates;
mod whole;
mod windows;

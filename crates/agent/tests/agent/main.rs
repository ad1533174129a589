//! What a Linux node's agent promises, tried on a real control plane and a node with a real systemd,
//! with the privileges that we ship.
#![cfg(target_os = "linux")]

mod fleet;
mod scene;

mod coexistence;
mod drift;
mod health;
mod logins;
mod oddities;
mod os;
mod outages;
mod plugins;
mod policy;
mod power;
mod reachability;
mod readiness;
mod refusals;
mod rights;
mod updates;
mod whole;
mod windows;

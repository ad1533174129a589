//! The operator on a real control plane, with the rights that it ships with.

mod agents;
mod bad_input;
mod cluster_proxy;
mod drain;
mod fencing;
mod hostile;
mod idle;
mod instances;
mod interruptions;
mod memory;
mod metrics;
mod own_pods;
mod panics;
mod pools;
mod reachability;
mod readiness;
mod records;
mod removal_watcher;
mod replay;
mod rollout;
mod rollout_watcher;
mod scene;
mod settings;
mod systemd;
mod uninstall;
mod windows;

//! The nodes of the cluster and their pools: rendered, rolled out, drained within one budget.

pub(crate) mod coexistence;
pub(crate) mod configs;
pub(crate) mod disruption_policy;
pub(crate) mod drain;
pub(crate) mod metrics;
pub(crate) mod nodes;
pub(crate) mod permits;
pub(crate) mod pods;
pub(crate) mod policies;
pub(crate) mod pools;
pub(crate) mod render;
pub(crate) mod rollout;
pub(crate) mod uninstall;

//! Windows nodes: instances that become nodes, what these run, and whom they trust.

pub(crate) mod certificates;
pub(crate) mod instances;
pub(crate) mod metrics;
pub(crate) mod nodes;
pub(crate) mod offer;
pub(crate) mod operator_condition;
pub(crate) mod payload;
pub(crate) mod pool;
pub(crate) mod proxy;
pub(crate) mod services;
pub(crate) mod ssh;
pub(crate) mod trusted_ca;
pub(crate) mod upgrade_context;

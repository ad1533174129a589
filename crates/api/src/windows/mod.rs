//! Windows nodes: their pool, their instances, and what these run and trust.

pub mod payload;
pub mod services;
pub mod trust_bundle;
pub mod version;
pub mod windows_instances;
pub mod windows_pool;
pub mod worker;

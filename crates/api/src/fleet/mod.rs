//! Pools of nodes, and the permits to disrupt one.

pub mod machine_config_pool;
pub mod max_unavailable;
pub mod permits;

//! Pools of nodes, the permits to disrupt one, and how pools are rolled out.

pub mod machine_config_pool;
pub mod max_unavailable;
pub mod permits;
pub mod rollout_policy;

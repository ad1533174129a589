//! Commands about pools and their nodes.

pub(crate) mod explain;
pub(crate) mod leader;
pub(crate) mod pool_plan;
pub(crate) mod rollout;
pub(crate) mod status;
pub(crate) mod windows;

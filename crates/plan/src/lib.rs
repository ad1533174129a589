//! The only place that decides: from what is desired and what was seen, to a plan.
//!
//! Everything here is a pure function of its arguments. There is no I/O, no runtime, no client, and
//! time is an argument. Whoever carries a plan out has no choices left.

pub mod desired;
pub mod diff;
pub mod disruption;
pub mod drain;
pub mod entry;
pub mod fleet;
pub mod journal;
mod json_path;
pub mod labels;
pub mod linux_node;
pub mod machine;
pub mod node;
pub mod os;
pub mod phase;
pub mod place;
pub mod pool;
pub mod problem;
pub mod readiness;
pub mod record;
pub mod render;
pub mod resource;
pub mod rollout;
pub mod secret;
pub mod services;
pub mod step;
pub mod targets;
pub mod uninstall;
pub mod units;
pub mod variables;
pub mod windows_node;

pub use disruption::Disruption;

//! The only place that decides: from what is desired and what was seen, to a plan.
//!
//! Everything here is a pure function of its arguments. There is no I/O, no runtime, no client, and
//! time is an argument. Whoever carries a plan out has no choices left.

pub mod attributes;
pub mod bounds;
pub mod certificates;
pub mod coexistence;
pub mod desired;
pub mod diff;
pub mod disruption;
pub mod drain;
pub mod entry;
pub mod excerpt;
pub mod fleet;
pub mod instances;
pub mod journal;
mod json_path;
pub mod labels;
pub mod linux_node;
pub mod machine;
pub mod node;
pub mod operator_condition;
pub mod os;
pub mod payload;
pub mod phase;
pub mod place;
pub mod pool;
pub mod problem;
pub mod proxy;
pub mod readiness;
pub mod record;
pub mod render;
pub mod resource;
pub mod rollout;
pub mod secret;
pub mod service_maps;
pub mod services;
pub mod standing;
pub mod state;
pub mod step;
pub mod targets;
pub mod trust;
pub mod trusted_ca;
pub mod uninstall;
pub mod units;
pub mod upgrade;
pub mod variables;
pub mod voucher;
pub mod waiting;
pub mod windows_node;
pub mod windows_pool;

pub use disruption::Disruption;

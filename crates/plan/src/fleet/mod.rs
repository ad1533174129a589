//! All nodes of a cluster: which configuration a pool has, who gets it next, how many may be down at once, and how a
//! node is drained.

pub mod autoscaler_marks;
pub mod bounds;
pub mod budget;
pub mod coexistence;
pub mod drain;
pub mod field_problem;
mod first_config;
pub mod labels;
pub mod maintenance;
pub mod node;
pub mod node_facts;
pub mod overview;
pub mod permit;
pub mod policy;
pub mod pool;
pub mod render;
pub mod requests;
pub mod rollout;
pub mod uninstall;

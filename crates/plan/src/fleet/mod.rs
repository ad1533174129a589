//! All nodes of a cluster: which configuration a pool has, who gets it next, how many may be down at once, and how a
//! node is drained.

pub mod bounds;
pub mod budget;
pub mod coexistence;
pub mod drain;
pub mod field_problem;
pub mod labels;
pub mod node;
pub mod overview;
pub mod permit;
pub mod pool;
pub mod render;
pub mod requests;
pub mod rollout;
pub mod uninstall;

//! What people write and read: the names that others rely on, the objects, and their validation.
//!
//! This crate does no I/O: it opens no file, no socket and no clock, and builds without an async
//! runtime. Text comes in, typed values or errors that name the place come out.

pub mod crds;
pub mod document;
pub mod duration;
pub mod fragment;
mod ignition;
mod located;
pub mod machine_config;
pub mod machine_config_pool;
pub mod names;
pub mod payload;
pub mod permits;
mod problem;
pub mod readiness;
mod schema;
pub mod selector;
pub mod services;
mod shape;
pub mod trust_bundle;
pub mod version;
pub mod windows_instances;
pub mod windows_pool;
pub mod worker;

pub use problem::{Place, Problem, Problems, Warning};

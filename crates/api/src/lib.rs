//! What people write and read: the names that others rely on, the objects, and their validation.
//!
//! This crate does no I/O: it opens no file, no socket and no clock, and builds without an async
//! runtime. Text comes in, typed values or errors that name the place come out.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod crds;
pub mod document;
pub mod duration;
pub mod field;
pub mod fleet;
mod located;
pub mod machine;
pub mod names;
pub mod notice;
mod problem;
pub mod readiness;
mod schema;
pub mod selector;
mod shape;
pub mod windows;

pub use problem::{Place, Problem, Problems, Warning};

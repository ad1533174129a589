//! What people write and read: the names that others rely on, the objects, and their validation.
//!
//! This crate does no I/O: it opens no file, no socket and no clock, and builds without an async
//! runtime. Text comes in, typed values or errors that name the place come out.

pub mod machine_config;
pub mod names;

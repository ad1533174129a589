//! What a machine can do, and the only place that touches an operating system.
//!
//! Nothing here decides: a plan from `evenkeel-plan` comes in, and what happened goes out. The
//! other crates make no system call, start no program and open no file of the managed machine.

mod accounts;
pub mod disk;
mod error;
pub mod execute;
pub mod memory;
pub mod metadata;
pub mod observe;
mod os;
mod place;
pub mod probe;
pub mod provision;
pub mod simulated;
mod store;
mod temporary;
pub mod verify;
pub mod watch;

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(windows)]
pub mod windows;

pub use error::{Error, Result};

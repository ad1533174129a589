//! What the command line promises to whoever types it.
#![cfg(target_os = "linux")]

mod apply;
mod live;
mod plan;
mod refusals;
mod scene;

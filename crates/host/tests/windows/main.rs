//! What a Windows machine promises, on the machine that this runs on. `under_wine` runs it on an
//! instance of the test bed; it changes services and variables, so do not run it on a machine of yours.
#![cfg(windows)]

mod engine;
mod files;
mod machine;
mod noticing;
#[path = "../engine/service_promises.rs"]
mod service_promises;
mod services;
mod trust;

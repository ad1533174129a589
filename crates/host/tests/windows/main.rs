//! What a Windows machine promises, on the machine that this runs on. `under_wine` runs it on an
//! instance of the test bed; it changes services and variables, so do not run it on a machine of yours.
#![cfg(windows)]

#[cfg(test)]
mod engine;
#[cfg(test)]
mod files;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod noticing;
#[cfg(test)]
mod restarts;
#[cfg(test)]
#[path = "../engine/service_promises.rs"]
mod service_promises;
#[cfg(test)]
mod services;
#[cfg(test)]
mod trust;

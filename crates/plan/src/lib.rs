//! The only place that decides: from what is desired and what was seen, to a plan.
//!
//! Everything here is a pure function of its arguments. There is no I/O, no runtime, no client, and
//! time is an argument. Whoever carries a plan out has no choices left.
//!
//! The folders are the product's domains, by the same names in every crate: one [`machine`], the [`fleet`],
//! what only [`windows`] nodes need, and [`readiness`].

#![forbid(unsafe_code)]

pub mod excerpt;
pub mod fleet;
mod json_path;
pub mod listing;
pub mod machine;
pub mod readiness;
pub mod secret;
pub mod windows;

pub use machine::disruption::Disruption;

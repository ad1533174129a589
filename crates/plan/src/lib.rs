//! The only place that decides: from what is desired and what was seen, to a plan.
//!
//! Everything here is a pure function of its arguments. There is no I/O, no runtime, no client, and
//! time is an argument. Whoever carries a plan out has no choices left.

mod disruption;

pub use disruption::Disruption;

//! What the operator does, one controller a file: observe, plan, apply, report.

pub(crate) mod drain;

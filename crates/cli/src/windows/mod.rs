//! Commands about Windows nodes and instances.

pub(crate) mod egress;
pub(crate) mod instances;
pub(crate) mod payload;
pub(crate) mod upgrade;

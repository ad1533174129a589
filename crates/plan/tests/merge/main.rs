//! MachineConfigs of one pool are merged as Ignition merges: field by field, and what a higher one does
//! not say is what the lower one said.

#[cfg(test)]
mod fields;
#[cfg(test)]
mod model;

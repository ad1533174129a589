//! The operator on a real control plane, with the rights that it ships with.

mod drain;
mod interruptions;
mod scene;

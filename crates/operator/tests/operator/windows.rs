//! Windows nodes: their services ConfigMap, what they are told, and their pool. Nodes and agents are the
//! harness's; what is tested is what the operator writes.

mod alerts;
mod bed;
mod gate;
mod idle;
mod nodes;
mod old_kinds;
mod olm;
mod payload;
mod proxy;
mod recreate;
mod removal;
mod services;
mod trust;
mod worker;

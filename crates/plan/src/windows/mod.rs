//! What only Windows nodes need: instances that become nodes, their services, versions, proxy, trust and certificates.

pub mod certificates;
pub mod instances;
pub mod node_name;
pub mod operator_condition;
pub mod payload;
pub mod proxy;
pub mod service_maps;
pub mod services;
pub mod take_over;
pub mod trust;
pub mod trusted_ca;
pub mod upgrade;
pub mod variables;
pub mod windows_node;
pub mod windows_pool;

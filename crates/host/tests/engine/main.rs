//! What every host promises, and what the engine promises on every host.
//!
//! The promises are written once and kept by the simulated machine and by the real one, so that what
//! is proved on the first holds on the second.

#[cfg(test)]
mod adoption;
#[cfg(test)]
mod attributes;
#[cfg(test)]
mod configs;
#[cfg(test)]
mod key_promises;
#[cfg(test)]
mod labels;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod large;
#[cfg(test)]
mod machine;

#[cfg(test)]
mod os_promises;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod policy_labels;
#[cfg(all(test, target_os = "linux"))]
mod power_cuts;
#[cfg(test)]
mod primitives;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod random;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod real_kills;
#[cfg(test)]
#[cfg(not(windows))]
mod service_promises;
#[cfg(test)]
mod simulated_kills;
#[cfg(test)]
mod unit_promises;
#[cfg(test)]
mod versions;

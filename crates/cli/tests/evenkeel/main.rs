//! What the command line promises to whoever types it.
#![cfg(target_os = "linux")]

#[cfg(test)]
mod adopt;
#[cfg(test)]
mod apply;
#[cfg(test)]
mod bundle;
#[cfg(test)]
mod coexistence;
#[cfg(test)]
mod console;
#[cfg(test)]
mod egress;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod import;
#[cfg(test)]
mod instances;
#[cfg(test)]
mod interruptions;
#[cfg(test)]
mod live;
#[cfg(test)]
mod maintenance;
#[cfg(test)]
mod merge;
#[cfg(test)]
mod payload;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod readiness;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod upgrade;

//! What node readiness promises, on a real API server, scheduler and controller manager.

mod bad_input;
pub(crate) mod bed;
mod boot;
mod busy;
mod crowd;
mod evidence;
mod fleet;
mod machine;
mod missing;
mod nrc;
mod once;
mod powers;
mod recovery;
mod register;
mod rules;
mod silence;
mod status;
mod storm;
mod waiting;
mod zones;

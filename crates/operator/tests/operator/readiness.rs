//! What node readiness promises, on a real API server, scheduler and controller manager.

mod bed;
mod boot;
mod crowd;
mod rules;
mod silence;

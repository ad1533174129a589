//! Windows machines become nodes and bare machines again, on real instances behind a real sshd.

mod back;
pub(crate) mod bed;
pub(crate) mod certificates;
mod fleet;
mod life;
mod login;
mod machines;
mod meddler;
mod naming;
mod proxy;
mod release;
mod removal;
mod take_over;
mod trouble;
mod upgrade;
mod upgrade_watcher;

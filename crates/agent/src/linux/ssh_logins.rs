//! Warns whoever logs in over SSH, and tells the worker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_host::linux::Login;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::trigger::{Change, Trigger};

/// How long after logind went away it is looked for again.
const AGAIN: Duration = Duration::from_secs(30);
const WARNING: &str = "\r\n*** Evenkeel manages this node. Manual changes are reported or undone: change the \
    MachineConfig of the node instead. This login was recorded. ***\r\n";

/// Watches until it is aborted.
pub(crate) async fn watch(machine: Arc<Machine>, triggers: UnboundedSender<Trigger>) {
    let mut known = BTreeSet::new();
    loop {
        let tell = |login: Login| {
            let machine = Arc::clone(&machine);
            // Without a worker there is nobody to tell.
            _ = triggers.send(Trigger::System(Change::Login(login.clone())));
            tokio::spawn(async move { machine.host.warn(&login, WARNING).await });
        };
        if let Err(error) = machine.host.logins(&mut known, tell).await {
            tracing::warn!(
                "cannot watch SSH logins, will retry: {}",
                error.with_causes()
            );
        }
        tokio::time::sleep(AGAIN).await;
    }
}

//! Watches what is ours on the machine in a thread of its own, heals what drifts, and puts what changes
//! into the worker's queue.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_host::Result;
use evenkeel_host::watch::{Monitor, Watching};
use evenkeel_plan::machine::targets::Targets;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::trigger::{Change, Trigger};
use crate::drift_watcher::DriftWatcher;

/// How often everything is looked at without a hint.
const FULL_CHECK: Duration = Duration::from_mins(2);

/// Begins to watch and heal `targets`.
pub(crate) fn start(
    machine: Arc<Machine>,
    targets: Targets,
    triggers: UnboundedSender<Trigger>,
) -> Result<DriftWatcher> {
    let mut watcher = machine.host.watch(targets.keys().map(String::as_str))?;
    let stopper = watcher.stopper();
    let watch = move || {
        let mut monitor =
            Monitor::healing(&machine.host, &machine.state, targets).checking_every(FULL_CHECK);
        // Without a worker there is nobody to tell.
        let tell = |trigger| _ = triggers.send(trigger);
        let mut looked = false;
        loop {
            let watched = monitor.watch_once(&mut watcher, Duration::MAX, &mut |event| {
                tell(Trigger::Drift {
                    event: Box::new(event),
                    difference: String::new(),
                });
            });
            match watched {
                Ok(Watching::GoOn) => {}
                Ok(Watching::Stopped) => return,
                Err(error) => return tell(Trigger::WatchEnded(error)),
            }
            if !looked && !monitor.is_looking_at_everything() {
                looked = true;
                tell(Trigger::System(Change::Looked));
            }
        }
    };
    DriftWatcher::start("drift-watcher", move || stopper.stop(), watch)
}

//! Watches what is ours on the machine in a thread of its own, heals what drifts, and puts what changes
//! into the worker's queue.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_host::watch::{Monitor, Watching};
use evenkeel_host::windows::Stopper;
use evenkeel_host::{Error, Result};
use evenkeel_plan::machine::targets::Targets;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::trigger::{MachineChange, Trigger};

/// How often everything is looked at without a hint.
const FULL_CHECK: Duration = Duration::from_mins(2);

/// A thread that watches and heals. Ends when it is told to.
pub(crate) struct DriftWatcher {
    stopper: Stopper,
    thread: JoinHandle<()>,
}

impl DriftWatcher {
    /// Begins to watch `targets`.
    pub(crate) fn start(
        machine: Arc<Machine>,
        targets: Targets,
        triggers: UnboundedSender<Trigger>,
    ) -> Result<Self> {
        let mut watcher = machine.host.watch(targets.keys().map(String::as_str))?;
        let stopper = watcher.stopper();
        let watch = move || {
            let mut monitor =
                Monitor::healing(&machine.host, &machine.state, targets).checking_every(FULL_CHECK);
            // Without a worker there is nobody to tell.
            let tell = |change| _ = triggers.send(Trigger::Machine(change));
            let mut looked = false;
            loop {
                let watched = monitor.watch_once(&mut watcher, Duration::MAX, &mut |event| {
                    tell(MachineChange::Event(Box::new(event)));
                });
                match watched {
                    Ok(Watching::GoOn) => {}
                    Ok(Watching::Stopped) => return,
                    Err(error) => return tell(MachineChange::Ended(error)),
                }
                if !looked && !monitor.is_looking_at_everything() {
                    looked = true;
                    tell(MachineChange::Looked);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("drift-watcher".to_owned())
            .spawn(watch)
            .map_err(|error| Error::path("start", "the thread of the drift watcher", error))?;
        Ok(Self { stopper, thread })
    }

    /// Waits until nobody watches and nothing is healed any more.
    pub(crate) fn stop(self) {
        self.stopper.stop();
        if self.thread.join().is_err() {
            tracing::error!(
                "internal error (please report): the thread of the drift watcher has panicked"
            );
        }
    }
}

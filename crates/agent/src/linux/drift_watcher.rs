//! Watches a configuration's paths, and the force file, in a thread of its own, and puts what changes into
//! the worker's queue.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_api::names::linux::FORCE_FILE;
use evenkeel_host::linux::{Stopper, Watcher};
use evenkeel_host::watch::{Event, Heard, Look, Monitor, Source};
use evenkeel_host::{Error, Result, memory};
use evenkeel_plan::machine::phase::OnDrift;
use evenkeel_plan::machine::targets::Targets;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::trigger::{MachineChange, Trigger};

/// A thread that watches. Ends when it is told to.
pub(crate) struct DriftWatcher {
    stopper: Stopper,
    thread: JoinHandle<()>,
}

impl DriftWatcher {
    /// Begins to watch `targets`.
    pub(crate) fn start(
        machine: Arc<Machine>,
        targets: Targets,
        on_drift: OnDrift,
        triggers: UnboundedSender<Trigger>,
    ) -> Result<Self> {
        let paths = targets.keys().map(String::as_str).chain([FORCE_FILE]);
        let watcher = machine.host.watch(paths)?;
        for (path, error) in watcher.blind() {
            tracing::warn!(path, %error, "cannot watch this path; it is only checked periodically");
        }
        let stopper = watcher.stopper();
        let thread = std::thread::Builder::new()
            .name("drift-watcher".to_owned())
            .spawn(move || watch(&machine, watcher, targets, on_drift, &triggers))
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

fn watch(
    machine: &Machine,
    watcher: Watcher,
    targets: Targets,
    on_drift: OnDrift,
    triggers: &UnboundedSender<Trigger>,
) {
    let mut monitor = match on_drift {
        OnDrift::Degrade => Monitor::reporting(&machine.host, targets),
        OnDrift::Heal => Monitor::healing(&machine.host, &machine.state, targets),
    };
    memory::trim();
    let mut source = Listener { watcher, triggers };
    let ended = monitor.run(&mut source, &mut |event| {
        let difference = match &event {
            Event::Drifted { finding, .. } => machine.difference(finding),
            _ => String::new(),
        };
        // Without a worker there is nobody to tell.
        _ = triggers.send(Trigger::Machine(MachineChange::Path {
            event: Box::new(event),
            difference,
        }));
    });
    if let Err(error) = ended {
        _ = triggers.send(Trigger::Machine(MachineChange::Ended(error)));
    }
}

/// Hears for the monitor, and of the force file for the worker.
struct Listener<'a> {
    watcher: Watcher,
    triggers: &'a UnboundedSender<Trigger>,
}

impl Source for Listener<'_> {
    fn next(&mut self, timeout: Duration) -> Result<Heard> {
        let heard = self.watcher.next(timeout)?;
        if let Heard::Looks(looks) = &heard {
            let forced = looks.iter().any(|look| match look {
                Look::Path(path) => path == FORCE_FILE,
                Look::Everything => true,
            });
            if forced {
                _ = self
                    .triggers
                    .send(Trigger::Machine(MachineChange::ForceFile));
            }
        }
        Ok(heard)
    }
}

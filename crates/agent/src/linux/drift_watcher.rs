//! Watches a configuration's paths, and the force file, in a thread of its own, and puts what changes into
//! the worker's queue.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::names::linux::FORCE_FILE;
use evenkeel_host::linux::{Blindness, Watcher};
use evenkeel_host::watch::{Event, Heard, Look, Monitor, Source};
use evenkeel_host::{Result, memory};
use evenkeel_plan::machine::phase::OnDrift;
use evenkeel_plan::machine::targets::Targets;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::trigger::{Change, Trigger};
use crate::drift_watcher::DriftWatcher;

/// Begins to watch `targets`, and says what cannot be watched.
pub(crate) fn start(
    machine: Arc<Machine>,
    targets: Targets,
    on_drift: OnDrift,
    triggers: UnboundedSender<Trigger>,
) -> Result<(DriftWatcher, Option<Blindness>)> {
    let paths = targets.keys().map(String::as_str).chain([FORCE_FILE]);
    let watcher = machine.host.watch(paths)?;
    let (stopper, blindness) = (watcher.stopper(), watcher.blindness());
    let watching = DriftWatcher::start(
        "drift-watcher",
        move || stopper.stop(),
        move || watch(&machine, watcher, targets, on_drift, &triggers),
    );
    Ok((watching?, blindness))
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
        _ = triggers.send(Trigger::Drift {
            event: Box::new(event),
            difference,
        });
    });
    if let Err(error) = ended {
        _ = triggers.send(Trigger::WatchEnded(error));
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
                _ = self.triggers.send(Trigger::System(Change::ForceFile));
            }
        }
        Ok(heard)
    }
}

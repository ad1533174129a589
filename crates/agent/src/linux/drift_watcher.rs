//! Watches a configuration's paths, and the force file, in a thread of its own, and puts the news into
//! the worker's queue.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_api::names::linux::FORCE_FILE;
use evenkeel_host::linux::{Stopper, Watcher};
use evenkeel_host::watch::{Event, Heard, Look, Monitor, Source};
use evenkeel_host::{Error, Result, memory};
use evenkeel_plan::phase::OnDrift;
use evenkeel_plan::targets::Targets;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::worker::Key;

/// What happened on the machine.
#[derive(Debug)]
pub(crate) enum News {
    /// A path drifted, or is right again.
    Path {
        /// What became of it.
        event: Box<Event>,
        /// How it differs, as it stood there.
        difference: String,
    },
    /// The force file may have come.
    ForceFile,
    /// Nobody watches any more.
    Ended(Error),
}

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
        keys: UnboundedSender<Key>,
    ) -> Result<Self> {
        let paths = targets.keys().map(String::as_str).chain([FORCE_FILE]);
        let watcher = machine.host.watch(paths)?;
        for (path, error) in watcher.blind() {
            tracing::warn!(path, %error, "cannot be watched and is only checked now and then");
        }
        let stopper = watcher.stopper();
        let thread = std::thread::Builder::new()
            .name("lookout".to_owned())
            .spawn(move || watch(&machine, watcher, targets, on_drift, &keys))
            .map_err(|error| Error::path("start", "a thread that watches", error))?;
        Ok(Self { stopper, thread })
    }

    /// Waits until nobody watches and nothing is healed any more.
    pub(crate) fn stop(self) {
        self.stopper.stop();
        if self.thread.join().is_err() {
            tracing::error!("the thread that watched has panicked");
        }
    }
}

fn watch(
    machine: &Machine,
    watcher: Watcher,
    targets: Targets,
    on_drift: OnDrift,
    keys: &UnboundedSender<Key>,
) {
    let mut monitor = match on_drift {
        OnDrift::Degrade => Monitor::reporting(&machine.host, targets),
        OnDrift::Heal => Monitor::healing(&machine.host, &machine.state, targets),
    };
    memory::rest();
    let mut source = Listener { watcher, keys };
    let ended = monitor.run(&mut source, &mut |event| {
        let difference = match &event {
            Event::Drifted { finding, .. } => machine.difference(finding),
            _ => String::new(),
        };
        // Without a worker there is nobody to tell.
        _ = keys.send(Key::Machine(News::Path {
            event: Box::new(event),
            difference,
        }));
    });
    if let Err(error) = ended {
        _ = keys.send(Key::Machine(News::Ended(error)));
    }
}

/// Hears for the monitor, and of the force file for the worker.
struct Listener<'a> {
    watcher: Watcher,
    keys: &'a UnboundedSender<Key>,
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
                _ = self.keys.send(Key::Machine(News::ForceFile));
            }
        }
        Ok(heard)
    }
}

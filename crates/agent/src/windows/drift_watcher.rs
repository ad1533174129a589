//! Watches what is ours on the machine in a thread of its own, puts back what drifts, and puts the news
//! into the worker's queue.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_host::watch::{Event, Monitor, Turn};
use evenkeel_host::windows::Stopper;
use evenkeel_host::{Error, Result};
use evenkeel_plan::targets::Targets;
use tokio::sync::mpsc::UnboundedSender;

use super::machine::Machine;
use super::worker::Key;

/// How often everything is looked at without a hint.
const FULL_CHECK: Duration = Duration::from_mins(2);

/// What happened on the machine.
#[derive(Debug)]
pub(crate) enum News {
    /// Something drifted, or is right again.
    Event(Box<Event>),
    /// Everything was looked at once.
    Looked,
    /// Nobody watches any more.
    Ended(Error),
}

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
        keys: UnboundedSender<Key>,
    ) -> Result<Self> {
        let mut watcher = machine.host.watch(targets.keys().map(String::as_str))?;
        let stopper = watcher.stopper();
        let watch = move || {
            let mut monitor =
                Monitor::healing(&machine.host, &machine.state, targets).checking_every(FULL_CHECK);
            // Without a worker there is nobody to tell.
            let tell = |news| _ = keys.send(Key::Machine(news));
            let mut looked = false;
            loop {
                let turn = monitor.turn(&mut watcher, Duration::MAX, &mut |event| {
                    tell(News::Event(Box::new(event)));
                });
                match turn {
                    Ok(Turn::GoOn) => {}
                    Ok(Turn::Stopped) => return,
                    Err(error) => return tell(News::Ended(error)),
                }
                if !looked && !monitor.is_looking_at_everything() {
                    looked = true;
                    tell(News::Looked);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("lookout".to_owned())
            .spawn(watch)
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

//! A thread that watches the machine until it is told to stop. What it watches is up to each system.

use std::thread::JoinHandle;

use evenkeel_host::{Error, Result};

/// A thread that watches.
pub(crate) struct DriftWatcher {
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl DriftWatcher {
    /// Starts a thread that is called `name` and watches until `stop` tells it to end.
    pub(crate) fn start(
        name: &'static str,
        stop: impl Fn() + Send + Sync + 'static,
        watch: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(watch)
            .map_err(|error| Error::path("start", format!("the thread {name}"), error))?;
        Ok(Self {
            stop: Box::new(stop),
            thread: Some(thread),
        })
    }
}

/// Waits until nobody watches and nothing is healed any more.
impl Drop for DriftWatcher {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!("internal error (please report): the thread {name} has panicked");
            }
        }
    }
}

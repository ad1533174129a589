//! How busy the machine of a test is, by requests of the test's own. Of many measurements, one during which a
//! bare request takes as long as all that is measured may take says nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::scene::Scene;

/// What a bare request may take while something is measured.
pub(crate) const BARE: Duration = Duration::from_millis(400);

/// Asks the API server for a Lease again and again.
pub(crate) struct Busy {
    slowest: Arc<Mutex<Duration>>,
    task: tokio::task::JoinHandle<()>,
}

impl Busy {
    pub(crate) fn look(scene: &Scene) -> Self {
        let slowest = Arc::<Mutex<Duration>>::default();
        let (api, seen) = (scene.leases(), Arc::clone(&slowest));
        let task = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                _ = api.get_opt("nobody").await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                let took = begun.elapsed();
                let mut slowest = seen.lock().unwrap_or_else(PoisonError::into_inner);
                *slowest = took.max(*slowest);
            }
        });
        Self { slowest, task }
    }

    /// The slowest request since the last time that this was asked.
    pub(crate) fn slowest(&self) -> Duration {
        std::mem::take(&mut *self.slowest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

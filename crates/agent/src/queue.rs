//! The queue of a worker, as it waits for it.

use std::pin::pin;
use std::time::{Duration, Instant};

use evenkeel_daemon::{Daemon, Heartbeat};
use futures::future::{Either, select};
use tokio::sync::mpsc::UnboundedReceiver;

/// How often a worker without work says that it is alive; less than the shortest `--stuck-after`.
const BEAT: Duration = Duration::from_secs(5);

/// The next key, or nothing if there is none within `limit` or the program shall stop. Whoever waits
/// for something to do is alive.
pub(crate) async fn next<Change>(
    daemon: &Daemon,
    queue: &mut UnboundedReceiver<Change>,
    heart: &Heartbeat,
    limit: Option<Duration>,
) -> Option<Change> {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        heart.beat();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let nap = left.unwrap_or(BEAT).min(BEAT);
        let next = tokio::time::timeout(nap, queue.recv());
        match select(pin!(next), pin!(daemon.stop().stopped())).await {
            Either::Left((Ok(key), _)) => return key,
            Either::Right(_) => return None,
            Either::Left((Err(_), _)) if left.is_some_and(|left| left <= nap) => return None,
            Either::Left((Err(_), _)) => {}
        }
    }
}

//! When a controller reconciles again without being told to.

use std::time::Duration;

/// Waits for `pause`, or for ever if there is none.
pub(crate) async fn after(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// The pause after so many failures in a row, for what shall be right within a second: it doubles. None after none.
pub(crate) fn backoff(failures: u32) -> Option<Duration> {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);
    let doubled = FIRST * 2u32.saturating_pow(failures.checked_sub(1)?.min(9));
    Some(doubled.min(LONGEST))
}

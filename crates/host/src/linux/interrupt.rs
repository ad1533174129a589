//! Ctrl-C and a polite request to end, as something that a program can hear.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{Error, Result};

/// Calls `act` on Ctrl-C or SIGTERM, from a thread of its own. The second one ends the program as if
/// nobody had listened.
pub fn on_interrupt(act: impl FnOnce() + Send + 'static) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Error::path("listen for", "Ctrl-C", error))?;
    std::thread::spawn(move || {
        let mut waiting = signals.forever();
        if waiting.next().is_some() {
            act();
        }
        if let Some(signal) = waiting.next() {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}

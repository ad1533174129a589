//! Being asked to stop: by a signal, by Ctrl-C, or by the program itself.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Error, Result};

/// Tells whoever holds a clone of it that the program shall stop. Once asked, it stays asked.
#[derive(Debug, Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Stop {
    /// Asks everybody to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether somebody has asked.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Comes back once somebody has asked.
    pub async fn stopped(&self) {
        // It cannot be closed: its sender is in our hand.
        let _ = self.0.subscribe().wait_for(|asked| *asked).await;
    }
}

/// The signals that end a program.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(windows)]
    ctrl_c: tokio::signal::windows::CtrlC,
    #[cfg(windows)]
    close: tokio::signal::windows::CtrlClose,
    #[cfg(windows)]
    shutdown: tokio::signal::windows::CtrlShutdown,
}

impl Signals {
    /// From now on a signal does not end the process, but is told by [`Signals::next`].
    #[cfg(unix)]
    pub(crate) fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(Error::Signals)?,
            interrupt: signal(SignalKind::interrupt()).map_err(Error::Signals)?,
        })
    }

    /// From now on Ctrl-C does not end the process, but is told by [`Signals::next`].
    #[cfg(windows)]
    pub(crate) fn listen() -> Result<Self> {
        use tokio::signal::windows;
        Ok(Self {
            ctrl_c: windows::ctrl_c().map_err(Error::Signals)?,
            close: windows::ctrl_close().map_err(Error::Signals)?,
            shutdown: windows::ctrl_shutdown().map_err(Error::Signals)?,
        })
    }

    /// The name of the next signal.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// The name of the next signal.
    #[cfg(windows)]
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.ctrl_c.recv() => "Ctrl-C",
            _ = self.close.recv() => "the console was closed",
            _ = self.shutdown.recv() => "the system shuts down",
        }
    }
}

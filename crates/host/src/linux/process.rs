//! Programs that are started to be ended: how a kill in the middle is shown and tested for real.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Error, Result};

const PAUSE: Duration = Duration::from_millis(1);

/// Runs `program` silently and kills it, with no chance to clean up, as soon as `enough` says so.
/// `true` if it was killed; `false` if it came to its end before.
pub fn kill_when(
    program: &Path,
    arguments: &[&OsStr],
    deadline: Duration,
    mut enough: impl FnMut() -> bool,
) -> Result<bool> {
    let failed = |error| Error::path("run", program.display().to_string(), error);
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let start = Instant::now();
    loop {
        if child.try_wait().map_err(failed)?.is_some() {
            return Ok(false);
        }
        if enough() || start.elapsed() > deadline {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Ok(true);
        }
        std::thread::sleep(PAUSE);
    }
}

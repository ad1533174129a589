//! The last line of tidiness: a small shell that outlives the test process and clears away what it
//! could not.
//!
//! `Drop` does not run for statics, nor after Ctrl-C or a kill. So everything that must not survive
//! is also told to the reaper, over a pipe; when the pipe closes, the reaper kills, unmounts and
//! removes whatever was not taken down before.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::{Doing, Error, Result};

static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// A process that leads its own group must not outlive us.
pub(crate) fn process(pid: u32) -> Result<()> {
    tell(&format!("process {}", identity(pid)?))
}

/// That process was ended by its owner.
pub(crate) fn ended(identity: &str) {
    forget(&format!("ended {identity}"));
}

/// A mount must not outlive us.
pub fn mount(path: &Path) -> Result<()> {
    tell(&format!("mount {}", path.display()))
}

/// That mount was taken down by its owner.
pub fn unmounted(path: &Path) {
    forget(&format!("unmounted {}", path.display()));
}

/// A control group, and all below it, must not outlive us.
pub(crate) fn cgroup(path: &Path) -> Result<()> {
    tell(&format!("cgroup {}", path.display()))
}

/// That control group was removed by its owner.
pub(crate) fn vacated(path: &Path) {
    forget(&format!("vacated {}", path.display()));
}

/// A scratch folder must not outlive us.
pub(crate) fn folder(path: &Path) -> Result<()> {
    tell(&format!("folder {}", path.display()))
}

/// That folder was removed by its owner.
pub(crate) fn removed(path: &Path) {
    forget(&format!("removed {}", path.display()));
}

/// `PID:START`, which no later process with the same number has.
pub(crate) fn identity(pid: u32) -> Result<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .doing(|| format!("process {pid} ended as soon as it was started"))?;
    let start = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(19));
    start
        .map(|start| format!("{pid}:{start}"))
        .ok_or_else(|| Error::failed(format!("/proc/{pid}/stat has no start time")))
}

fn tell(line: &str) -> Result<()> {
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    let open = match pipe.as_mut() {
        Some(open) => open,
        None => pipe.insert(start()?),
    };
    writeln!(open, "{line}").doing(|| "the test bed's reaper is gone")
}

/// Forgetting may fail: the reaper then finds nothing to do where it looks.
fn forget(line: &str) {
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(open) = pipe.as_mut() {
        let _ = writeln!(open, "{line}");
    }
}

fn start() -> Result<ChildStdin> {
    Command::new("/bin/sh")
        .args(["-c", include_str!("reaper.sh"), "evenkeel-testbed-reaper"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .doing(|| "cannot start the test bed's reaper (/bin/sh)")?
        .stdin
        .ok_or_else(|| Error::failed("the test bed's reaper has no standard input"))
}

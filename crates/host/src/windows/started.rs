//! Which start of a service this is. It is told by the service's process, which is held: while it lives
//! nobody has to ask the service manager anything.

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::Threading::GetProcessTimes;

use super::services::{Process, process_of};

/// A service that ran when it was looked at.
#[derive(Debug)]
pub struct Started {
    process: Process,
    mark: String,
}

impl Started {
    /// The start of the service `name` that it runs since; nothing if it does not run.
    pub fn of(name: &str) -> Option<Self> {
        let process = process_of(name)?;
        let mark = format!("{}-{}", begun(&process)?, process.id());
        Some(Self { process, mark })
    }

    /// Whether it still runs.
    pub fn lasts(&self) -> bool {
        self.process.lives()
    }

    /// A text that no other start of it has: when its process began, by this machine's clock, and its number.
    pub fn mark(&self) -> &str {
        &self.mark
    }
}

/// When a process began, in tenths of microseconds since 1601.
fn begun(process: &Process) -> Option<u64> {
    let mut times = [FILETIME::default(); 4];
    let [begun, ended, kernel, user] = &mut times;
    // SAFETY: the handle is open to query, and the four times are written before one is read.
    let done = unsafe { GetProcessTimes(process.handle(), begun, ended, kernel, user) };
    let FILETIME {
        dwLowDateTime: low,
        dwHighDateTime: high,
    } = *begun;
    (done != 0).then(|| u64::from(high) << 32 | u64::from(low))
}

//! PowerShell scripts whose output fills a command: run with a limit, and judged strictly.

use std::io::{self, Read};
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use windows_sys::Win32::Foundation::WAIT_OBJECT_0;
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    SetInformationJobObject,
};
use windows_sys::Win32::System::Threading::WaitForSingleObject;

use super::power::system;
use crate::{Error, Result};

const POWERSHELL: &str = r"WindowsPowerShell\v1.0\powershell.exe";
/// How long the rest of the output may take once the script has ended.
const REST: Duration = Duration::from_secs(5);

/// The one line that the script at `path` prints within `limit`.
pub fn output_of(path: &str, limit: Duration) -> Result<String> {
    let failed = |why: String| Error::Services {
        doing: format!("run script {path}"),
        source: why.into(),
    };
    let broken = |error: io::Error| failed(error.to_string());
    let mut child = Command::new(system(POWERSHELL))
        .args([
            "-NoProfile",
            "-NonInteractive",
            "-ExecutionPolicy",
            "Bypass",
        ])
        .args(["-File", path])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(broken)?;
    // Ends with all that it started as soon as this is dropped.
    let _job = Job::around(&child).map_err(broken)?;
    let (out, errors) = (gather(child.stdout.take()), gather(child.stderr.take()));
    let patience = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    // SAFETY: the handle is that of our child, open until it is dropped.
    if unsafe { WaitForSingleObject(child.as_raw_handle(), patience) } != WAIT_OBJECT_0 {
        return Err(failed(format!(
            "the script did not end within {limit:?}: make it print its value sooner"
        )));
    }
    let status = child.wait().map_err(broken)?;
    let out = out.recv_timeout(REST).unwrap_or_default();
    if !status.success() {
        let said = errors.recv_timeout(REST).unwrap_or_default();
        return Err(failed(format!(
            "the script ended with {status}: {}",
            said.trim()
        )));
    }
    one_line(&out).map_err(failed)
}

/// The line, if it is one.
fn one_line(out: &str) -> Result<String, String> {
    let mut lines = out.lines().map(str::trim).filter(|line| !line.is_empty());
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(line.to_owned()),
        (None, _) => Err("the script printed nothing: make it print its value".to_owned()),
        (Some(_), Some(_)) => {
            Err("the script printed more than one line: make it print only its value".to_owned())
        }
    }
}

/// Reads to the end, in a thread of its own.
fn gather(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (done, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before a failure counts.
            _ = pipe.read_to_end(&mut bytes);
        }
        _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    told
}

/// A group of processes that ends when this is dropped.
struct Job {
    _handle: OwnedHandle,
}

impl Job {
    fn around(child: &Child) -> io::Result<Self> {
        // SAFETY: no attributes and no name; the handle, if there is one, is nobody else's.
        let handle = unsafe {
            let handle = CreateJobObjectW(std::ptr::null(), std::ptr::null());
            if handle.is_null() {
                return Err(io::Error::last_os_error());
            }
            OwnedHandle::from_raw_handle(handle)
        };
        let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
        limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
        let length = u32::try_from(size_of_val(&limits)).unwrap_or_default();
        // SAFETY: the job and the child are open, and the structure is the one this class wants.
        let done = unsafe {
            SetInformationJobObject(
                handle.as_raw_handle(),
                JobObjectExtendedLimitInformation,
                (&raw const limits).cast(),
                length,
            ) != 0
                && AssignProcessToJobObject(handle.as_raw_handle(), child.as_raw_handle()) != 0
        };
        // A script that is over already belongs to no job and needs none.
        if !done && !is_over(child) {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { _handle: handle })
    }
}

fn is_over(child: &Child) -> bool {
    // SAFETY: the handle is that of a child, open as long as it.
    unsafe { WaitForSingleObject(child.as_raw_handle(), 0) == WAIT_OBJECT_0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_exactly_one_line() {
        assert_eq!(one_line("10.0.0.1\r\n").unwrap(), "10.0.0.1");
        assert_eq!(one_line("\n a b \n\n").unwrap(), "a b");
        assert!(one_line("").unwrap_err().contains("nothing"));
        assert!(one_line("a\nb").unwrap_err().contains("more than one"));
    }
}

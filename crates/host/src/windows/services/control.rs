//! What services do: started once what they need serves, stopped with those that depend on them,
//! removed.

use std::io;
use std::time::{Duration, Instant};

use evenkeel_plan::machine::entry::{Activity, Entry};
use evenkeel_plan::windows::services::pipes_of;
use windows_sys::Win32::Foundation::{
    ERROR_BROKEN_PIPE, ERROR_PIPE_BUSY, ERROR_PIPE_NOT_CONNECTED, ERROR_PROCESS_ABORTED,
    ERROR_SERVICE_ALREADY_RUNNING, ERROR_SERVICE_CANNOT_ACCEPT_CTRL,
    ERROR_SERVICE_MARKED_FOR_DELETE, ERROR_SERVICE_NEVER_STARTED, ERROR_SERVICE_NOT_ACTIVE,
    ERROR_SERVICE_SPECIFIC_ERROR,
};
use windows_sys::Win32::Storage::FileSystem::DELETE;
use windows_sys::Win32::System::Services::{
    ControlService, DeleteService, QueryServiceStatusEx, SC_STATUS_PROCESS_INFO,
    SERVICE_CONTROL_STOP, SERVICE_QUERY_STATUS, SERVICE_RUNNING, SERVICE_START,
    SERVICE_START_PENDING, SERVICE_STATUS, SERVICE_STATUS_PROCESS, SERVICE_STOP,
    SERVICE_STOP_PENDING, SERVICE_STOPPED, StartServiceW,
};

use super::{Handle, KEY, Services, count, dependencies, failed, is, is_going, open, process};
use crate::windows::registry::Key;
use crate::windows::services::Process;
use crate::{Error, Result};

/// How long a service may take to start or to stop before that counts as a failure.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long after the end of its process the manager may still say that a service runs.
const HEARD: Duration = Duration::from_millis(500);
/// How long what a service needs may take to serve before the start is given up and tried again later:
/// whoever starts it has other services to look after.
const SERVES: Duration = Duration::from_secs(5);
/// How long a service that was deleted may stay.
const GONE: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// What the manager says when a service cannot be told anything at this moment.
const NOT_NOW: [u32; 3] = [
    ERROR_SERVICE_CANNOT_ACCEPT_CTRL,
    ERROR_BROKEN_PIPE,
    ERROR_PIPE_NOT_CONNECTED,
];

/// What the manager says of a service.
pub(super) struct Status {
    state: u32,
    process: u32,
    code: u32,
}

pub(super) fn status(service: &Handle, name: &str) -> Result<Status> {
    let mut status = SERVICE_STATUS_PROCESS::default();
    let length = u32::try_from(size_of::<SERVICE_STATUS_PROCESS>()).unwrap_or_default();
    let mut needed = 0;
    count();
    // SAFETY: the service is open to query, and the structure is `length` bytes long.
    let done = unsafe {
        QueryServiceStatusEx(
            service.0,
            SC_STATUS_PROCESS_INFO,
            (&raw mut status).cast(),
            length,
            &raw mut needed,
        )
    };
    if done == 0 {
        let error = io::Error::last_os_error();
        return Err(failed("read the status of", name, error));
    }
    let code = match status.dwWin32ExitCode {
        ERROR_SERVICE_SPECIFIC_ERROR => status.dwServiceSpecificExitCode,
        code => code,
    };
    Ok(Status {
        state: status.dwCurrentState,
        process: status.dwProcessId,
        code,
    })
}

impl Services {
    /// Whether a service with this status runs.
    pub(super) fn activity(&self, name: &str, status: &Status) -> Activity {
        let lives = || Process::open(status.process).is_some_and(|process| process.lives());
        match status.state {
            // The manager has taken the start in, and makes the process next; and a driver never has one.
            SERVICE_START_PENDING | SERVICE_RUNNING if status.process == 0 => Activity::Running,
            SERVICE_STOP_PENDING => Activity::Stopped,
            SERVICE_STOPPED => match status.code {
                0 | ERROR_SERVICE_NEVER_STARTED => Activity::Stopped,
                ERROR_PROCESS_ABORTED => Activity::Ended(self.exit_code(name, 0)),
                code => Activity::Ended(Some(code)),
            },
            _ if lives() => Activity::Running,
            _ => Activity::Ended(self.exit_code(name, status.process)),
        }
    }

    fn runs(&self, name: &str) -> Result<bool> {
        let Some(service) = open(name, SERVICE_QUERY_STATUS)? else {
            return Ok(false);
        };
        let status = status(&service, name)?;
        Ok(self.activity(name, &status) == Activity::Running)
    }

    /// Starts a service, after what it depends on, and waits until it runs.
    pub(in crate::windows) fn start(&self, name: &str) -> Result<()> {
        let Entry::Service(config) = self.look(name)? else {
            let gone = io::Error::new(io::ErrorKind::NotFound, "the service does not exist");
            return Err(failed("start", name, gone));
        };
        if config.activity == Activity::Running {
            return Ok(());
        }
        for dependency in &config.dependencies {
            if !self.runs(dependency)? {
                self.start(dependency)?;
            }
        }
        for pipe in pipes_of(&config.command, &config.dependencies) {
            until_served(name, &pipe)?;
        }
        let access = SERVICE_START | SERVICE_QUERY_STATUS;
        let Some(service) = open(name, access)? else {
            return Ok(());
        };
        until(name, "stop", || {
            Ok(status(&service, name)?.state != SERVICE_STOP_PENDING)
        })?;
        count();
        // SAFETY: the service is open to start, with no arguments.
        if unsafe { StartServiceW(service.0, 0, std::ptr::null()) } == 0 {
            let error = io::Error::last_os_error();
            if !is(&error, ERROR_SERVICE_ALREADY_RUNNING) {
                return Err(failed("start", name, error));
            }
        }
        let mut is_held = false;
        until(name, "start", || {
            let now = status(&service, name)?;
            if !is_held && let Some(process) = Process::open(now.process) {
                self.hold(name, process);
                is_held = true;
            }
            Ok(now.state != SERVICE_START_PENDING)
        })?;
        let now = status(&service, name)?;
        match self.activity(name, &now) {
            Activity::Running => Ok(()),
            other => Err(failed("start", name, io::Error::other(other.to_string()))),
        }
    }

    /// Stops a service after all that depend on it, and says which it stopped, the last one first. One
    /// that does not stop in time is ended.
    pub(in crate::windows) fn stop(&self, name: &str) -> Result<Vec<String>> {
        let mut stopped = Vec::new();
        if !self.runs(name)? {
            return Ok(stopped);
        }
        for dependent in dependents(name)? {
            let mut before = self.stop(&dependent)?;
            before.append(&mut stopped);
            stopped = before;
        }
        let Some(service) = open(name, SERVICE_STOP | SERVICE_QUERY_STATUS)? else {
            return Ok(stopped);
        };
        let mut process = None;
        let deadline = Instant::now() + PATIENCE;
        let mut told = false;
        let mut gone_since = None;
        loop {
            let now = status(&service, name)?;
            process = process.or_else(|| Process::open(now.process));
            let gone = match &process {
                Some(process) => !process.lives(),
                // One that is about to start has none yet.
                None => now.state != SERVICE_START_PENDING,
            };
            // The manager hears of the end a moment later, or (Wine) never.
            gone_since = gone.then(|| gone_since.unwrap_or_else(Instant::now));
            if gone && now.state == SERVICE_STOPPED
                || gone_since.is_some_and(|since| since.elapsed() >= HEARD)
            {
                break;
            }
            if Instant::now() >= deadline {
                self.terminate(&service, name, now.process);
                break;
            }
            if !told {
                told = tell_to_stop(&service, name)?;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        stopped.insert(0, name.to_owned());
        Ok(stopped)
    }

    /// Stops a running service and those that depend on it, and starts them again.
    pub(in crate::windows) fn restart(&self, name: &str) -> Result<()> {
        for stopped in self.stop(name)? {
            self.start(&stopped)?;
        }
        Ok(())
    }

    /// Stops a service and removes it; that there is none is fine.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.stop(name)?;
        self.until_ended(name)?;
        self.notices.forget(name);
        let Some(service) = open(name, DELETE)? else {
            return Ok(());
        };
        count();
        // SAFETY: the service is open to be deleted.
        if unsafe { DeleteService(service.0) } == 0 {
            let error = io::Error::last_os_error();
            if !is(&error, ERROR_SERVICE_MARKED_FOR_DELETE) {
                return Err(failed("remove", name, error));
            }
        }
        drop(service);
        let deadline = Instant::now() + GONE;
        while open(name, SERVICE_QUERY_STATUS)?.is_some() {
            if Instant::now() >= deadline {
                // It is as good as gone: it cannot be started, and goes with whoever holds it. A manager
                // that does not write that down (Wine) would bring it back with the next boot.
                if !is_going(name)? {
                    Key::delete(&format!(r"{KEY}\{name}"))?;
                }
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Ok(())
    }

    /// Waits until a service has ended that is on its way to it, by whose word ever: one that is deleted with its
    /// process still there stays for as long as that does. One that does not end in time is ended.
    fn until_ended(&self, name: &str) -> Result<()> {
        let Some(service) = open(name, SERVICE_QUERY_STATUS)? else {
            return Ok(());
        };
        let now = status(&service, name)?;
        let process = Process::open(now.process).filter(|_| now.state == SERVICE_STOP_PENDING);
        let deadline = Instant::now() + PATIENCE;
        while process.as_ref().is_some_and(Process::lives) {
            if Instant::now() >= deadline {
                self.terminate(&service, name, now.process);
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Ok(())
    }

    /// Ends the process of a service by force, which the manager would take for a crash.
    fn terminate(&self, service: &Handle, name: &str, process: u32) {
        self.without_restart(name, || {
            process::terminate(process);
            let deadline = Instant::now() + HEARD;
            let has_heard = || status(service, name).is_ok_and(|now| now.state == SERVICE_STOPPED);
            while !has_heard() && Instant::now() < deadline {
                std::thread::sleep(BETWEEN_LOOKS);
            }
        });
    }
}

/// What there is of a service now.
pub(in crate::windows) enum Seen {
    /// Its process.
    Runs(Process),
    /// It is about to start, and has no process yet.
    Starts,
    /// It does not run.
    Rests,
}

/// What there is of a service.
pub(in crate::windows) fn seen(name: &str) -> Seen {
    let look = || {
        let service = open(name, SERVICE_QUERY_STATUS).ok()??;
        status(&service, name).ok()
    };
    match look() {
        Some(status) if [SERVICE_STOP_PENDING, SERVICE_STOPPED].contains(&status.state) => {
            Seen::Rests
        }
        Some(status) => match Process::open(status.process).filter(Process::lives) {
            Some(process) => Seen::Runs(process),
            None if status.state == SERVICE_START_PENDING && status.process == 0 => Seen::Starts,
            None => Seen::Rests,
        },
        None => Seen::Rests,
    }
}

/// The process of a running service.
pub(in crate::windows) fn process(name: &str) -> Option<Process> {
    match seen(name) {
        Seen::Runs(process) => Some(process),
        Seen::Starts | Seen::Rests => None,
    }
}

/// Whether it was told: one that is just starting cannot be, and one whose pipe breaks is just ending,
/// by our word or by itself.
fn tell_to_stop(service: &Handle, name: &str) -> Result<bool> {
    let mut status = SERVICE_STATUS::default();
    count();
    // SAFETY: the service is open to be stopped; the structure is written by the call.
    if unsafe { ControlService(service.0, SERVICE_CONTROL_STOP, &raw mut status) } != 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if is(&error, ERROR_SERVICE_NOT_ACTIVE) => Ok(true),
        error if NOT_NOW.iter().any(|code| is(&error, *code)) => Ok(false),
        error => Err(failed("stop", name, error)),
    }
}

/// Services that say they depend on `name`. The manager's own list is not there on every Windows.
fn dependents(name: &str) -> Result<Vec<String>> {
    let Some(all) = Key::read(KEY)? else {
        return Ok(Vec::new());
    };
    let mut dependents = Vec::new();
    for other in all.below()? {
        let needs = |on: &String| on.eq_ignore_ascii_case(name);
        if dependencies(&other).iter().any(needs) {
            dependents.push(other);
        }
    }
    Ok(dependents)
}

fn until_served(name: &str, pipe: &str) -> Result<()> {
    let deadline = Instant::now() + SERVES;
    loop {
        let said = match std::fs::File::options().read(true).write(true).open(pipe) {
            Ok(_) => return Ok(()),
            Err(error) if is(&error, ERROR_PIPE_BUSY) => return Ok(()),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            let source = Error::path("open", pipe, said).with_causes();
            return Err(Error::Services {
                doing: format!("start service {name}: a named pipe that it needs is not served"),
                source: source.into(),
            });
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

fn until(name: &str, doing: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() >= deadline {
            let late = io::Error::from(io::ErrorKind::TimedOut);
            return Err(failed(doing, name, late));
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers W10.
    #[test]
    fn a_start_that_has_no_process_yet_is_no_end_and_one_that_lost_its_process_is() {
        let services = Services::default();
        let ours = std::process::id();
        // Windows never gives this number to a process.
        let nobodys = 3;
        let activity = |state, process| {
            let code = 0;
            let status = Status {
                state,
                process,
                code,
            };
            services.activity("no such service", &status)
        };
        assert_eq!(activity(SERVICE_START_PENDING, 0), Activity::Running);
        assert_eq!(activity(SERVICE_START_PENDING, ours), Activity::Running);
        assert_eq!(activity(SERVICE_RUNNING, ours), Activity::Running);
        assert_eq!(activity(SERVICE_RUNNING, 0), Activity::Running);
        for (state, process) in [(SERVICE_START_PENDING, nobodys), (SERVICE_RUNNING, nobodys)] {
            assert_eq!(activity(state, process), Activity::Ended(None));
        }
        assert_eq!(activity(SERVICE_STOP_PENDING, ours), Activity::Stopped);
        assert_eq!(activity(SERVICE_STOPPED, 0), Activity::Stopped);
    }
}

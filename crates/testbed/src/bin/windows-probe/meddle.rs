//! Does by hand what nobody should do on a managed machine, and says how long it stayed so. It looks
//! with calls of its own, so that it does not believe what our programs believe.

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_testbed::chance::Chance;
use evenkeel_testbed::{Doing, Error, Result};
use windows_service::service::{Service, ServiceAccess, ServiceState};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_sys::Win32::Foundation::{CloseHandle, WAIT_TIMEOUT};
use windows_sys::Win32::System::Services::{
    ChangeServiceConfigW, SERVICE_DISABLED, SERVICE_NO_CHANGE,
};
use windows_sys::Win32::System::Threading::{
    OpenProcess, PROCESS_SYNCHRONIZE, PROCESS_TERMINATE, TerminateProcess, WaitForSingleObject,
};

use crate::service::failed as refused;
use crate::{registry, sha256, trust};

const SERVICES: &str = r"SYSTEM\CurrentControlSet\Services";
const ENVIRONMENT: &str = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment";
/// How long it may stay as it should not be.
const PATIENCE: Duration = Duration::from_secs(100);
/// How long a manager may refuse to stop a service that runs.
const STUBBORN: Duration = Duration::from_secs(40);
/// What is kept of a service in the registry.
const VALUES: [&str; 5] = [
    "ImagePath",
    "Start",
    "Description",
    "DependOnService",
    "ObjectName",
];
const SERVICE_EDITS: [&str; 7] = [
    "stop",
    "kill",
    "delete",
    "command",
    "dependencies",
    "start",
    "description",
];

/// What can be meddled with, as it is.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Service(Vec<Option<Vec<u8>>>, bool),
    Variable(Option<Vec<u8>>),
    File(Option<String>),
    Root(bool),
}

/// Does one thing and waits until it is as before; says how many milliseconds that took.
pub(crate) fn once(what: &str, on: &str) -> Result<String> {
    let before = look(what, on);
    let start = Instant::now();
    edit(what, on)?;
    if let Seen::Service(..) = before {
        // The edit itself may take a while to be done, and is not ours to measure.
        wait_for(what, on, |seen| *seen != before || what == "kill", start)?;
    }
    let done = Instant::now();
    wait_for(what, on, |seen| *seen == before, start)?;
    let aside = format!("{on}.meddled");
    if Path::new(&aside).exists() {
        std::fs::remove_file(&aside).ok();
    }
    Ok(done.elapsed().as_millis().to_string())
}

/// So many things by chance, one after the other as fast as it goes, to any of `on`: a service, a
/// variable (`$NAME`) or a file (`C:\…`). Says how many of each were done.
pub(crate) fn many(seed: &str, count: &str, pause_ms: &str, on: &[&str]) -> Result<String> {
    let number = |text: &str| {
        text.parse::<u64>()
            .doing(|| format!("{text} is not a number"))
    };
    let mut chance = Chance(number(seed)?);
    let pause = Duration::from_millis(number(pause_ms)?);
    let (mut done, mut refused) = (0, 0);
    for _ in 0..number(count)? {
        let on = on[chance.below(on.len())];
        let what = match on {
            file if file.contains(':') => ["tamper", "remove"][chance.below(2)],
            variable if variable.starts_with('$') => ["set", "unset"][chance.below(2)],
            _ => SERVICE_EDITS[chance.below(SERVICE_EDITS.len())],
        };
        // What is just being put back may be in the way of the next edit.
        match edit(what, on.trim_start_matches('$')) {
            Ok(()) => done += 1,
            Err(_) => refused += 1,
        }
        std::thread::sleep(pause);
    }
    Ok(format!("{done} done, {refused} refused"))
}

fn wait_for(what: &str, on: &str, is_so: impl Fn(&Seen) -> bool, start: Instant) -> Result<()> {
    loop {
        let seen = look(what, on);
        if is_so(&seen) {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::failed(format!("{what} {on} stayed: {seen:?}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn look(what: &str, on: &str) -> Seen {
    match what {
        "set" | "unset" => Seen::Variable(registry::value(ENVIRONMENT, on)),
        "tamper" | "remove" => Seen::File(sha256(on).ok()),
        "untrust" => Seen::Root(trust::is_trusted(on).unwrap_or_default()),
        _ => {
            let key = format!(r"{SERVICES}\{on}");
            let values = VALUES.map(|name| registry::value(&key, name));
            Seen::Service(values.to_vec(), runs(on))
        }
    }
}

fn runs(name: &str) -> bool {
    let Ok(service) = open(name, ServiceAccess::QUERY_STATUS) else {
        return false;
    };
    let Ok(status) = service.query_status() else {
        return false;
    };
    let process = status.process_id.unwrap_or_default();
    status.current_state == ServiceState::Running && lives(process)
}

pub(crate) fn lives(process: u32) -> bool {
    // SAFETY: the calls take numbers, and a handle that is closed once.
    unsafe {
        let handle = OpenProcess(PROCESS_SYNCHRONIZE, 0, process);
        if handle.is_null() {
            return false;
        }
        let waited = WaitForSingleObject(handle, 0);
        CloseHandle(handle);
        waited == WAIT_TIMEOUT
    }
}

fn open(name: &str, access: ServiceAccess) -> Result<Service> {
    let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT)
        .map_err(|error| refused("reach the service manager", &error))?;
    manager
        .open_service(name, access)
        .map_err(|error| refused(&format!("open {name}"), &error))
}

fn edit(what: &str, on: &str) -> Result<()> {
    let failed = || format!("cannot {what} {on}");
    match what {
        "set" => registry::set(ENVIRONMENT, on, "meddled").map(|_| ()),
        "unset" => registry::unset(ENVIRONMENT, on),
        "tamper" | "remove" => {
            // A program that runs can be renamed, and nothing else.
            std::fs::rename(on, format!("{on}.meddled")).doing(failed)?;
            if what == "tamper" {
                std::fs::write(on, "meddled").doing(failed)?;
            }
            Ok(())
        }
        "untrust" => trust::remove(on).map(|_| ()),
        "stop" => stop(on),
        "delete" => {
            let service = open(on, ServiceAccess::STOP | ServiceAccess::DELETE)?;
            // One that does not run cannot be stopped, and need not be.
            service.stop().ok();
            service
                .delete()
                .map_err(|error| refused(&format!("delete {on}"), &error))
        }
        "kill" => {
            let status = open(on, ServiceAccess::QUERY_STATUS)?.query_status();
            let status = status.map_err(|error| refused(&format!("kill {on}"), &error))?;
            if status.current_state != ServiceState::Running {
                // It is about to call the manager. Under Wine whoever dies in a call keeps its service
                // open until the next boot; nobody could delete it and make it again.
                return Err(Error::failed(format!("{on} is not running yet")));
            }
            kill(status.process_id.unwrap_or_default())
        }
        "description" => {
            let service = open(on, ServiceAccess::CHANGE_CONFIG)?;
            service
                .set_description("meddled")
                .map_err(|error| refused(&format!("describe {on}"), &error))
        }
        "command" | "dependencies" | "start" => reconfigure(what, on),
        other => Err(Error::failed(format!("unknown: meddle {other}"))),
    }
}

/// A manager that has just started a service, or has much to do, refuses or gives up (after 30 seconds): it
/// is asked again.
fn stop(on: &str) -> Result<()> {
    let service = open(on, ServiceAccess::STOP | ServiceAccess::QUERY_STATUS)?;
    let start = Instant::now();
    loop {
        let Err(error) = service.stop() else {
            return Ok(());
        };
        let state = service.query_status().map(|it| it.current_state);
        match state {
            // What it did not say in time, it did.
            Ok(ServiceState::StopPending | ServiceState::Stopped) => return Ok(()),
            Ok(_) if start.elapsed() < STUBBORN => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                let error = refused(&format!("stop {on}"), &error);
                return Err(Error::failed(format!("{error}; it is {state:?}")));
            }
        }
    }
}

/// Changes one part of a service's configuration, and leaves the others alone.
fn reconfigure(what: &str, on: &str) -> Result<()> {
    let service = open(on, ServiceAccess::CHANGE_CONFIG)?;
    let now = registry::value(&format!(r"{SERVICES}\{on}"), "ImagePath").unwrap_or_default();
    let units = now
        .as_chunks::<2>()
        .0
        .iter()
        .copied()
        .map(u16::from_le_bytes);
    let mut command: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    command.extend(" --meddled\0".encode_utf16());
    let other: Vec<u16> = "EventLog\0\0".encode_utf16().collect();
    let part = |is_this: bool, text: &[u16]| {
        if is_this {
            text.as_ptr()
        } else {
            std::ptr::null()
        }
    };
    let start = if what == "start" {
        SERVICE_DISABLED
    } else {
        SERVICE_NO_CHANGE
    };
    // SAFETY: the service is open to be changed; every text ends with a zero and the list with two;
    // null leaves a part as it is.
    let done = unsafe {
        ChangeServiceConfigW(
            service.raw_handle(),
            SERVICE_NO_CHANGE,
            start,
            SERVICE_NO_CHANGE,
            part(what == "command", &command),
            std::ptr::null(),
            std::ptr::null_mut(),
            part(what == "dependencies", &other),
            std::ptr::null(),
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    if done == 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::because(format!("cannot change {on}"), error));
    }
    Ok(())
}

fn kill(process: u32) -> Result<()> {
    // SAFETY: the calls take numbers, and a handle that is closed once.
    unsafe {
        let handle = OpenProcess(PROCESS_TERMINATE, 0, process);
        if handle.is_null() {
            return Err(Error::failed(format!("there is no process {process}")));
        }
        TerminateProcess(handle, 9);
        CloseHandle(handle);
    }
    Ok(())
}

//! Services, through the Service Control Manager: how they are configured, and what they do.
//!
//! What a service depends on is read from the registry, which has it on every Windows. Whether it runs
//! is judged by its process: the manager may say so of one that is gone.

mod config;
mod control;
mod process;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use evenkeel_plan::entry::{Activity, Entry, ServiceEntry};
use windows_sys::Win32::Foundation::ERROR_SERVICE_DOES_NOT_EXIST;
use windows_sys::Win32::System::Services::{
    CloseServiceHandle, OpenSCManagerW, OpenServiceW, SC_HANDLE, SC_MANAGER_CONNECT,
    SC_MANAGER_CREATE_SERVICE, SERVICE_QUERY_CONFIG, SERVICE_QUERY_STATUS,
};

pub(super) use control::process as process_of;
pub(super) use process::Process;

use super::registry::{Key, Value};
use super::text::wide;
use crate::{Error, Result};

/// Where services are kept.
pub(super) const KEY: &str = r"SYSTEM\CurrentControlSet\Services";

/// The services of this machine.
#[derive(Debug, Default)]
pub(super) struct Services {
    /// With which code the process of a service ended, by the service's name; for those that somebody
    /// watched.
    exits: Mutex<BTreeMap<String, Exit>>,
}

/// The end of a service's process.
#[derive(Debug, Clone, Copy)]
struct Exit {
    process: u32,
    code: u32,
}

/// A handle of the manager, or of a service; closed when dropped.
struct Handle(SC_HANDLE);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle was opened by us and is closed once.
        unsafe {
            CloseServiceHandle(self.0);
        }
    }
}

impl Services {
    /// What is known of the service `name`.
    pub(super) fn look(&self, name: &str) -> Result<Entry> {
        let Some(service) = open(name, SERVICE_QUERY_CONFIG | SERVICE_QUERY_STATUS)? else {
            return Ok(Entry::Absent);
        };
        if is_going(name)? {
            return Ok(Entry::Absent);
        }
        let config = config::read(&service, name)?;
        let status = control::status(&service, name)?;
        Ok(Entry::Service(ServiceEntry {
            activity: self.activity(name, &status),
            dependencies: dependencies(name)?,
            ..config
        }))
    }

    /// Makes the service `name` be as `entry` says.
    pub(super) fn put(&self, name: &str, entry: &Entry) -> Result<()> {
        let Entry::Service(wanted) = entry else {
            return self.remove(name);
        };
        if is_going(name)? {
            // Somebody deleted it, and it only waits for its end: until then it takes no change.
            self.remove(name)?;
        }
        config::write(name, wanted)?;
        match wanted.activity {
            // Whether it stays up shows at the next look.
            Activity::Running => _ = self.start(name),
            Activity::Stopped | Activity::Ended(_) => _ = self.stop(name)?,
        }
        Ok(())
    }

    /// Takes note of how the process of a service ended.
    pub(super) fn ended(&self, name: &str, process: u32, code: u32) {
        let exit = Exit { process, code };
        let mut exits = self.exits.lock().unwrap_or_else(PoisonError::into_inner);
        exits.insert(name.to_owned(), exit);
    }

    fn exit_code(&self, name: &str, process: u32) -> Option<u32> {
        let exits = self.exits.lock().unwrap_or_else(PoisonError::into_inner);
        let exit = exits.get(name)?;
        // The manager forgets which process it was; Wine remembers.
        (process == 0 || exit.process == process).then_some(exit.code)
    }

    /// All services whose description begins with `tag`.
    pub(super) fn tagged(&self, tag: &str) -> Result<Vec<String>> {
        let Some(all) = Key::read(KEY)? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for name in all.below()? {
            if let Entry::Service(found) = self.look(&name)?
                && found.description.starts_with(tag)
            {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// The service `name`; `None` if there is none.
fn open(name: &str, access: u32) -> Result<Option<Handle>> {
    let manager = manager(SC_MANAGER_CONNECT)?;
    let wide_name = wide(name);
    // SAFETY: the manager is open and the name ends with a zero.
    let service = unsafe { OpenServiceW(manager.0, wide_name.as_ptr(), access) };
    if !service.is_null() {
        return Ok(Some(Handle(service)));
    }
    match io::Error::last_os_error() {
        error if is(&error, ERROR_SERVICE_DOES_NOT_EXIST) => Ok(None),
        error => Err(failed("open", name, error)),
    }
}

fn manager(access: u32) -> Result<Handle> {
    // SAFETY: null names mean this machine and its active services.
    let manager = unsafe { OpenSCManagerW(std::ptr::null(), std::ptr::null(), access) };
    if manager.is_null() {
        return Err(Error::Services {
            doing: "reach the service manager".to_owned(),
            source: io::Error::last_os_error().into(),
        });
    }
    Ok(Handle(manager))
}

/// The manager, to make services.
fn maker() -> Result<Handle> {
    manager(SC_MANAGER_CONNECT | SC_MANAGER_CREATE_SERVICE)
}

/// What a service says it depends on.
fn dependencies(name: &str) -> Result<Vec<String>> {
    let key = Key::read(&format!(r"{KEY}\{name}"))?;
    let value = match key {
        Some(key) => key.value("DependOnService")?,
        None => None,
    };
    Ok(match value {
        Some(Value::List(names)) => names,
        _ => Vec::new(),
    })
}

/// Whether a service is deleted, and only there because somebody holds it open.
fn is_going(name: &str) -> Result<bool> {
    let key = Key::read(&format!(r"{KEY}\{name}"))?;
    let Some(key) = key else { return Ok(false) };
    Ok(key.value("DeleteFlag")?.is_some())
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

fn failed(doing: &str, name: &str, source: io::Error) -> Error {
    Error::Services {
        doing: format!("{doing} service {name}"),
        source: source.into(),
    }
}

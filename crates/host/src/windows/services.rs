//! Services, through the Service Control Manager: how they are configured, and what they do.
//!
//! How a service is configured is read from the registry: what stands there is what counts after the
//! next boot, also if somebody wrote it past the manager; and it asks nothing of the manager, which is
//! only asked whether the service runs. That is judged by its process: the manager may say so of one
//! that is gone.

mod config;
mod control;
mod notice;
mod process;
mod restarts;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use evenkeel_plan::machine::entry::{Activity, Entry, ServiceEntry};
use evenkeel_plan::machine::place;
use windows_sys::Win32::Foundation::{
    ERROR_SERVICE_DOES_NOT_EXIST, ERROR_SERVICE_MARKED_FOR_DELETE,
};
use windows_sys::Win32::System::Services::{
    CloseServiceHandle, OpenSCManagerW, OpenServiceW, SC_HANDLE, SC_MANAGER_CONNECT,
    SC_MANAGER_CREATE_SERVICE, SERVICE_QUERY_STATUS,
};

pub(super) use config::{set_preshutdown, shares_its_process};
pub(super) use control::{Seen, process as process_of, seen};
use notice::Notices;
pub(super) use process::Process;
use restarts::Restarts;

use super::registry::Key;
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
    /// The processes of services that we started, until somebody watches them: one that ends at once
    /// still has its exit code as long as somebody holds it.
    started: Mutex<BTreeMap<String, Process>>,
    /// Whose end the manager tells.
    pub(super) notices: Notices,
    /// Which services the manager starts again.
    restarts: Restarts,
    /// Why services could not be started when they were put, by place.
    troubles: Mutex<BTreeMap<String, String>>,
}

/// The end of a service's process.
#[derive(Debug, Clone, Copy)]
struct Exit {
    process: u32,
    code: u32,
}

/// A handle of the manager, or of a service; closed when dropped.
struct Handle(SC_HANDLE);

// SAFETY: a handle of the manager belongs to the process; every thread may use it.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing is changed through a shared one but at the manager, which expects that.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        count();
        // SAFETY: the handle was opened by us and is closed once.
        unsafe {
            CloseServiceHandle(self.0);
        }
    }
}

impl Services {
    /// What is known of the service `name`.
    pub(super) fn look(&self, name: &str) -> Result<Entry> {
        let Some(config) = config::read(name)? else {
            return Ok(Entry::Absent);
        };
        let Some(service) = open(name, SERVICE_QUERY_STATUS)? else {
            return Ok(Entry::Absent);
        };
        let status = control::status(&service, name)?;
        Ok(Entry::Service(ServiceEntry {
            activity: self.activity(name, &status),
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
        let restarts = self.restarts.are_the_managers(name);
        match config::write(name, wanted, restarts) {
            Err(error) if is_marked_for_delete(&error) => {
                // The same, and the registry did not say so.
                self.remove(name)?;
                config::write(name, wanted, restarts).map_err(|error| held(name, error))?;
            }
            done => done?,
        }
        match wanted.activity {
            // Whether it stays up shows at the next look.
            Activity::Running => {
                let trouble = self.start(name).err().map(|error| error.with_causes());
                let mut troubles = locked(&self.troubles);
                match trouble {
                    Some(trouble) => _ = troubles.insert(place::service(name), trouble),
                    None => _ = troubles.remove(&place::service(name)),
                }
            }
            Activity::Stopped | Activity::Ended(_) => _ = self.stop(name)?,
        }
        Ok(())
    }

    /// Why a service could not be started when it was put last.
    pub(super) fn trouble_of(&self, name: &str) -> Option<String> {
        locked(&self.troubles).get(&place::service(name)).cloned()
    }

    /// Takes note of how the process of a service ended.
    pub(super) fn ended(&self, name: &str, process: u32, code: u32) {
        let exit = Exit { process, code };
        locked(&self.exits).insert(name.to_owned(), exit);
    }

    /// The process of a service that we started, for whoever watches it from now on.
    pub(super) fn take_started(&self, name: &str) -> Option<Process> {
        locked(&self.started).remove(name)
    }

    fn hold(&self, name: &str, process: Process) {
        locked(&self.started).insert(name.to_owned(), process);
    }

    fn exit_code(&self, name: &str, process: u32) -> Option<u32> {
        let started = locked(&self.started);
        let held = started
            .get(name)
            .filter(|held| process == 0 || held.id() == process);
        if let Some(code) = held.and_then(Process::exit_code) {
            return Some(code);
        }
        drop(started);
        let exits = locked(&self.exits);
        let exit = exits.get(name)?;
        // The manager forgets which process it was; Wine remembers.
        (process == 0 || exit.process == process).then_some(exit.code)
    }
}

/// The services that carry a tag, and those of which nobody can tell.
#[derive(Debug, Default)]
pub struct TaggedServices {
    /// Those that carry it.
    pub names: Vec<String>,
    /// Those whose keys cannot be read, with the reason: security products close theirs to all others.
    pub unreadable: Vec<(String, Error)>,
}

/// All services whose description begins with `tag`.
pub(super) fn tagged(tag: &str) -> Result<TaggedServices> {
    let mut tagged = TaggedServices::default();
    let Some(all) = Key::read(KEY)? else {
        return Ok(tagged);
    };
    for name in all.below()? {
        match config::read(&name) {
            Ok(Some(found)) if found.description.starts_with(tag) => tagged.names.push(name),
            Ok(_) => {}
            Err(error) => tagged.unreadable.push((name, error)),
        }
    }
    Ok(tagged)
}

/// Nothing that is kept here is half done if somebody panics.
fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The service `name`; `None` if there is none.
fn open(name: &str, access: u32) -> Result<Option<Handle>> {
    let manager = manager()?;
    let wide_name = wide(name);
    count();
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

/// The manager, to find services and to make them. It is reached once, and kept.
fn manager() -> Result<&'static Handle> {
    static MANAGER: OnceLock<Handle> = OnceLock::new();
    static REACHING: Mutex<()> = Mutex::new(());
    // Two that reach for it at once would not both have a handle that holds (Wine).
    let _alone = locked(&REACHING);
    if let Some(manager) = MANAGER.get() {
        return Ok(manager);
    }
    let access = SC_MANAGER_CONNECT | SC_MANAGER_CREATE_SERVICE;
    count();
    // SAFETY: null names mean this machine and its active services.
    let manager = unsafe { OpenSCManagerW(std::ptr::null(), std::ptr::null(), access) };
    if manager.is_null() {
        return Err(Error::Services {
            doing: "connect to the service manager".to_owned(),
            source: io::Error::last_os_error().into(),
        });
    }
    Ok(MANAGER.get_or_init(|| Handle(manager)))
}

/// What the manager was asked so far.
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// How often this program has called the service manager so far.
pub(super) fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// What a service says it depends on. Of one that cannot be read that is nothing: it is no service of ours, and
/// what it needs of ours nobody here can find out.
fn dependencies(name: &str) -> Vec<String> {
    let found = config::read(name).ok().flatten();
    found.map_or_else(Vec::new, |found| found.dependencies)
}

/// Whether a service is deleted, and only there because somebody holds it open.
fn is_going(name: &str) -> Result<bool> {
    let key = Key::read(&format!(r"{KEY}\{name}"))?;
    let Some(key) = key else { return Ok(false) };
    Ok(key.value("DeleteFlag")?.is_some())
}

fn is_marked_for_delete(error: &Error) -> bool {
    let Error::Services { source, .. } = error else {
        return false;
    };
    let source = source.downcast_ref::<io::Error>();
    source.is_some_and(|source| is(source, ERROR_SERVICE_MARKED_FOR_DELETE))
}

/// Says who is in the way of a service that is deleted and does not go.
fn held(name: &str, error: Error) -> Error {
    if !is_marked_for_delete(&error) {
        return error;
    }
    let held = "the service is deleted, but a program still holds it open (the Services window, a monitor, a process of the \
                service): close that program, or reboot the machine";
    failed("create", name, io::Error::other(held))
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

//! Hints that something on a Windows machine may have changed: the end of a service's process, what the
//! service manager tells, a write to the key of a service or to the Environment key, a change in a folder.
//!
//! Below the Services key others write all day (BAM, HNS and many drivers): only the keys of our services are
//! watched, and the list of all for one that comes or goes.
//!
//! One thread waits for all of them at once. Windows waits for 64 things at most; what is beyond that
//! is found by the slow check alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle, RawHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_plan::machine::place::{self, Location};
use windows_sys::Win32::Foundation::{
    ERROR_FILE_NOT_FOUND, INVALID_HANDLE_VALUE, WAIT_IO_COMPLETION, WAIT_OBJECT_0, WAIT_TIMEOUT,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_NOTIFY_CHANGE_FILE_NAME, FILE_NOTIFY_CHANGE_LAST_WRITE, FILE_NOTIFY_CHANGE_SIZE,
    FindCloseChangeNotification, FindFirstChangeNotificationW, FindNextChangeNotification,
};
use windows_sys::Win32::System::Registry::{
    REG_NOTIFY_CHANGE_LAST_SET, REG_NOTIFY_CHANGE_NAME, REG_NOTIFY_THREAD_AGNOSTIC,
    RegNotifyChangeKeyValue,
};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, SetEvent, WaitForMultipleObjectsEx,
};

use super::disk::WindowsDisk;
use super::registry::{Key, failed};
use super::services::{Process, Seen, Services, seen, shares_its_process};
use super::text::wide;
use super::{environment, services, trust};
use crate::watch::{Heard, Look, Source};
use crate::{Error, Result};

/// Windows waits for no more at once.
const MOST: usize = 64;
/// How long the manager is not asked again about a service that it has just told of: what it would tell
/// at once is known.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// How soon a service that is about to start is looked at again: its process is then there to be waited for.
const STARTS: Duration = Duration::from_millis(250);

/// Listens for changes of some places.
pub struct Watcher {
    services: Arc<Services>,
    stop: Arc<SystemEvent>,
    /// The variables of the machine.
    variables: Option<(WatchedKey, BTreeSet<String>)>,
    /// The list of all services.
    all_services: Option<WatchedKey>,
    /// The keys of services by name, if they are there.
    service_keys: BTreeMap<String, Option<WatchedKey>>,
    folders: Vec<WatchedFolder>,
    /// Services by name, with their process if it lives.
    processes: BTreeMap<String, Option<Process>>,
    /// A service is about to have a process.
    starts: bool,
    /// Services that the manager has just told of, and when.
    told_of: BTreeMap<String, Instant>,
    told: bool,
}

/// Ends the [`Watcher`] it belongs to.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<SystemEvent>);

impl Stopper {
    /// Whoever waits is told to end.
    pub fn stop(&self) {
        // SAFETY: the event is open as long as anybody has it.
        unsafe {
            SetEvent(self.0.handle());
        }
    }
}

impl Watcher {
    pub(super) fn new<'p>(
        disk: &WindowsDisk,
        places: impl IntoIterator<Item = &'p str>,
    ) -> Result<Self> {
        let mut of_variables = BTreeSet::new();
        let mut of_folders: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut processes = BTreeMap::new();
        for text in places {
            match Location::of(text) {
                Location::Service(name) => {
                    processes.insert(name.to_owned(), None);
                }
                Location::Variable(_) => _ = of_variables.insert(text.to_owned()),
                Location::Path(path) => {
                    let folder = crate::temporary::folder_of(path);
                    of_folders
                        .entry(folder)
                        .or_default()
                        .insert(text.to_owned());
                }
            }
        }
        let variables = if of_variables.is_empty() {
            None
        } else {
            Some((WatchedKey::arm(environment::KEY, Of::Values)?, of_variables))
        };
        let all_services = if processes.is_empty() {
            None
        } else {
            Some(WatchedKey::arm(services::KEY, Of::Names)?)
        };
        let service_keys = processes.keys();
        let service_keys = service_keys.map(|name| (name.clone(), key_of(name)));
        let service_keys = service_keys.collect();
        let folders = of_folders
            .into_iter()
            .map(|(folder, places)| WatchedFolder::arm(folder, places))
            .collect();
        let services = Arc::clone(&disk.services);
        services.take_restarts(processes.keys().map(String::as_str));
        Ok(Self {
            services,
            stop: Arc::new(SystemEvent::new(true)?),
            variables,
            all_services,
            service_keys,
            folders,
            processes,
            starts: false,
            told_of: BTreeMap::new(),
            told: false,
        })
    }

    /// What ends this watcher, from any thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Looks for the processes of services that have none yet, and for folders that were not there.
    fn find(&mut self) {
        self.told_of.retain(|_, at| at.elapsed() < ASKED_AGAIN);
        self.starts = false;
        for (name, process) in &mut self.processes {
            if process.is_none() {
                *process = self.services.take_started(name);
            }
            if process.is_none() {
                match seen(name) {
                    Seen::Runs(found) => *process = Some(found),
                    Seen::Starts => self.starts = true,
                    Seen::Rests => {}
                }
            }
            // The end of a process of its own says the same, and costs less.
            let is_due = process.is_some() && !self.told_of.contains_key(name);
            if is_due && shares_its_process(name) {
                self.services.notices.ask(name);
            }
        }
        for folder in &mut self.folders {
            folder.arm_again();
        }
    }

    /// Everything to wait for, in a fixed order.
    fn sources(&self) -> Vec<(RawHandle, What)> {
        let variables = self.variables.iter();
        let variables = variables.map(|(key, _)| (key.event.handle(), What::Variables));
        let all = self.all_services.iter();
        let all = all.map(|key| (key.event.handle(), What::AllServices));
        let keys = self.service_keys.iter();
        let keys = keys.filter_map(|(name, key)| {
            Some((key.as_ref()?.event.handle(), What::Service(name.clone())))
        });
        let folders = self.folders.iter().enumerate();
        let folders =
            folders.filter_map(|(at, folder)| Some((folder.handle.as_ref()?.0, What::Folder(at))));
        let processes = self.processes.iter();
        let processes = processes.filter_map(|(name, process)| {
            Some((process.as_ref()?.handle(), What::Process(name.clone())))
        });
        std::iter::once((self.stop.handle(), What::Stop))
            .chain(variables)
            .chain(all)
            .chain(processes)
            .chain(keys)
            .chain(folders)
            .take(MOST)
            .collect()
    }

    /// Notes what the manager has told, and says where to look.
    fn told(&mut self) -> Vec<Look> {
        let now = Instant::now();
        let services = self.services.notices.heard().into_iter();
        let looks = services.map(|name| {
            // It may run in another process next.
            self.processes.insert(name.clone(), None);
            let look = Look::Path(place::service(&name));
            self.told_of.insert(name, now);
            look
        });
        looks.collect()
    }

    /// The services of ours whose keys have come or gone; of any other nobody is told here.
    fn come_or_gone(&mut self) -> Vec<Look> {
        let mut looks = Vec::new();
        for (name, key) in &mut self.service_keys {
            if key.as_ref().is_some_and(|key| !key.key.is_deleted()) {
                continue;
            }
            let was_there = key.is_some();
            *key = key_of(name);
            if was_there || key.is_some() {
                looks.push(Look::Path(place::service(name)));
            }
        }
        looks
    }

    /// Notes what happened to one source, and says where to look.
    fn heard(&mut self, what: What) -> Result<Vec<Look>> {
        let looks = |places: &BTreeSet<String>| places.iter().cloned().map(Look::Path).collect();
        Ok(match what {
            What::Stop => Vec::new(),
            What::Variables => match &mut self.variables {
                Some((key, places)) => {
                    key.arm_again()?;
                    looks(places)
                }
                None => Vec::new(),
            },
            What::AllServices => {
                if let Some(key) = &mut self.all_services {
                    key.arm_again()?;
                }
                self.come_or_gone()
            }
            What::Service(name) => {
                if let Some(key) = self.service_keys.get_mut(&name) {
                    // One that is deleted meanwhile may be back already.
                    let lasts = key.as_mut().is_some_and(|key| key.arm_again().is_ok());
                    if !lasts {
                        *key = key_of(&name);
                    }
                }
                vec![Look::Path(place::service(&name))]
            }
            What::Folder(at) => match self.folders.get_mut(at) {
                Some(folder) => {
                    folder.next();
                    looks(&folder.places)
                }
                None => Vec::new(),
            },
            What::Process(name) => {
                let ended = self.processes.get_mut(&name).and_then(Option::take);
                if let Some((id, code)) = ended.and_then(|it| Some((it.id(), it.exit_code()?))) {
                    self.services.ended(&name, id, code);
                }
                vec![Look::Path(place::service(&name))]
            }
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let names = self.processes.keys().map(String::as_str);
        self.services.give_restarts_back(names);
    }
}

#[derive(Debug, Clone)]
enum What {
    Stop,
    Variables,
    AllServices,
    Service(String),
    Folder(usize),
    Process(String),
}

impl Source for Watcher {
    fn next(&mut self, timeout: Duration) -> Result<Heard> {
        self.find();
        if !self.told {
            self.told = true;
            return Ok(Heard::Looks(vec![Look::Everything]));
        }
        let asked_again = |at: &Instant| ASKED_AGAIN.saturating_sub(at.elapsed());
        let asked_again = self.told_of.values().map(asked_again).min();
        let starts = self.starts.then_some(STARTS);
        let pauses = asked_again.into_iter().chain(starts);
        let timeout = pauses.fold(timeout, Duration::min);
        let mut timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX - 1);
        let mut found = Vec::new();
        // All that has happened by now, one after the other: the first of them hides the others.
        loop {
            let sources = self.sources();
            let handles: Vec<RawHandle> = sources.iter().map(|(handle, _)| *handle).collect();
            let count = u32::try_from(handles.len()).unwrap_or_default();
            // SAFETY: all handles are open as long as `self`, which nobody else changes meanwhile.
            let woken = unsafe { WaitForMultipleObjectsEx(count, handles.as_ptr(), 0, timeout, 1) };
            if woken == WAIT_TIMEOUT {
                return Ok(Heard::Looks(found));
            }
            let at = woken.wrapping_sub(WAIT_OBJECT_0) as usize;
            let looks = match sources.get(at) {
                Some((_, What::Stop)) => return Ok(Heard::Stopped),
                Some((_, what)) => self.heard(what.clone())?,
                None if woken == WAIT_IO_COMPLETION => self.told(),
                None => {
                    let error = io::Error::last_os_error();
                    return Err(Error::path("wait for", "changes on this machine", error));
                }
            };
            for look in looks {
                if !found.contains(&look) {
                    found.push(look);
                }
            }
            if found.len() > MOST {
                return Ok(Heard::Looks(found));
            }
            timeout = 0;
        }
    }
}

/// Listens for changes of the machine's trusted roots, whoever makes them.
pub struct RootsWatcher {
    key: WatchedKey,
    stop: Arc<SystemEvent>,
}

impl RootsWatcher {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            key: WatchedKey::arm(trust::KEY, Of::Everything)?,
            stop: Arc::new(SystemEvent::new(true)?),
        })
    }

    /// What ends this watcher, from any thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Waits for a change; `false` if somebody wants this to end.
    pub fn changed(&mut self) -> Result<bool> {
        let handles = [self.stop.handle(), self.key.event.handle()];
        // SAFETY: both handles are open as long as `self`.
        let woken = unsafe { WaitForMultipleObjectsEx(2, handles.as_ptr(), 0, INFINITE, 0) };
        match woken.wrapping_sub(WAIT_OBJECT_0) {
            0 => Ok(false),
            1 => self.key.arm_again().map(|()| true),
            _ => {
                let error = io::Error::last_os_error();
                Err(Error::path(
                    "wait for",
                    "changes of the trusted roots",
                    error,
                ))
            }
        }
    }
}

/// An event of our own; closed when dropped.
#[derive(Debug)]
struct SystemEvent(OwnedHandle);

impl SystemEvent {
    /// `stays`: it is signalled until the end once it was; else until somebody has heard it.
    fn new(stays: bool) -> Result<Self> {
        // SAFETY: no attributes and no name; the handle, if there is one, is nobody else's.
        unsafe {
            let handle = CreateEventW(std::ptr::null(), stays.into(), 0, std::ptr::null());
            if handle.is_null() {
                let error = io::Error::last_os_error();
                return Err(Error::path("create", "an event object", error));
            }
            Ok(Self(OwnedHandle::from_raw_handle(handle)))
        }
    }

    fn handle(&self) -> RawHandle {
        self.0.as_raw_handle()
    }
}

/// A key that tells when it changes. The event outlives the key.
struct WatchedKey {
    key: Key,
    event: SystemEvent,
    path: String,
    of: Of,
}

/// What of a key is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Which keys are directly below it.
    Names,
    /// Its own values.
    Values,
    /// Its values and keys, and all that is below them.
    Everything,
}

impl WatchedKey {
    fn arm(path: &str, of: Of) -> Result<Self> {
        let found = Self::arm_if_there(path, of)?;
        found.ok_or_else(|| failed("open", path, ERROR_FILE_NOT_FOUND))
    }

    /// `None` if there is no such key.
    fn arm_if_there(path: &str, of: Of) -> Result<Option<Self>> {
        let Some(key) = Key::notify(path)? else {
            return Ok(None);
        };
        let mut watched = Self {
            key,
            event: SystemEvent::new(false)?,
            path: path.to_owned(),
            of,
        };
        watched.arm_again().map(|()| Some(watched))
    }

    fn arm_again(&mut self) -> Result<()> {
        let what = match self.of {
            Of::Names => REG_NOTIFY_CHANGE_NAME,
            Of::Values => REG_NOTIFY_CHANGE_LAST_SET,
            Of::Everything => REG_NOTIFY_CHANGE_NAME | REG_NOTIFY_CHANGE_LAST_SET,
        };
        // Who arms a key and who waits may be two threads, and the first one may end.
        let what = what | REG_NOTIFY_THREAD_AGNOSTIC;
        let below = self.of == Of::Everything;
        let (key, event) = (self.key.handle(), self.event.handle());
        // SAFETY: key and event are open, and stay so until the key is closed, which ends this.
        match unsafe { RegNotifyChangeKeyValue(key, below.into(), what, event, 1) } {
            0 => Ok(()),
            code => Err(failed("watch", &self.path, code)),
        }
    }
}

/// The key of the service `name`, watched; none if it is not there, or goes at this moment: the list of all tells
/// when it comes.
fn key_of(name: &str) -> Option<WatchedKey> {
    let path = format!(r"{}\{name}", services::KEY);
    WatchedKey::arm_if_there(&path, Of::Values).ok().flatten()
}

/// A folder that tells when something in it changes, if it is there.
struct WatchedFolder {
    folder: String,
    places: BTreeSet<String>,
    handle: Option<Notification>,
}

struct Notification(RawHandle);

// SAFETY: the handle belongs to the process; every thread may use it.
unsafe impl Send for Notification {}

impl Drop for Notification {
    fn drop(&mut self) {
        // SAFETY: the handle was opened by us and is closed once.
        unsafe {
            FindCloseChangeNotification(self.0);
        }
    }
}

impl WatchedFolder {
    fn arm(folder: &str, places: BTreeSet<String>) -> Self {
        let mut watched = Self {
            folder: folder.to_owned(),
            places,
            handle: None,
        };
        watched.arm_again();
        watched
    }

    fn arm_again(&mut self) {
        if self.handle.is_some() {
            return;
        }
        let what =
            FILE_NOTIFY_CHANGE_FILE_NAME | FILE_NOTIFY_CHANGE_LAST_WRITE | FILE_NOTIFY_CHANGE_SIZE;
        let path = wide(&self.folder.replace('/', r"\"));
        // SAFETY: the path ends with a zero; the handle, if there is one, is nobody else's.
        let handle = unsafe { FindFirstChangeNotificationW(path.as_ptr(), 0, what) };
        self.handle =
            (handle != INVALID_HANDLE_VALUE && !handle.is_null()).then_some(Notification(handle));
    }

    /// Listens for the next change; a folder that is gone is found again later.
    fn next(&mut self) {
        let heard = self.handle.as_ref().is_some_and(|handle| {
            // SAFETY: the handle is open.
            unsafe { FindNextChangeNotification(handle.0) != 0 }
        });
        if !heard {
            self.handle = None;
        }
    }
}

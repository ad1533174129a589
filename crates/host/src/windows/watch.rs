//! Hints that something on a Windows machine may have changed: the end of a service's process, what the
//! service manager tells, a write to the Services or the Environment key, a change in a folder.
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
    INVALID_HANDLE_VALUE, WAIT_IO_COMPLETION, WAIT_OBJECT_0, WAIT_TIMEOUT,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_NOTIFY_CHANGE_FILE_NAME, FILE_NOTIFY_CHANGE_LAST_WRITE, FILE_NOTIFY_CHANGE_SIZE,
    FindCloseChangeNotification, FindFirstChangeNotificationW, FindNextChangeNotification,
};
use windows_sys::Win32::System::Registry::{
    REG_NOTIFY_CHANGE_LAST_SET, REG_NOTIFY_CHANGE_NAME, RegNotifyChangeKeyValue,
};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, SetEvent, WaitForMultipleObjectsEx,
};

use super::disk::WindowsDisk;
use super::registry::{Key, failed};
use super::services::{Process, Services, process_of, shares_its_process};
use super::text::wide;
use super::{environment, services, trust};
use crate::watch::{Heard, Look, Source};
use crate::{Error, Result};

/// Windows waits for no more at once.
const MOST: usize = 64;
/// How long the manager is not asked again about a service that it has just told of: what it would tell
/// at once is known.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// Listens for changes of some places.
pub struct Watcher {
    services: Arc<Services>,
    stop: Arc<Event>,
    keys: Vec<WatchedKey>,
    folders: Vec<WatchedFolder>,
    /// Services by name, with their process if it lives.
    processes: BTreeMap<String, Option<Process>>,
    /// Services that the manager has just told of, and when.
    told_of: BTreeMap<String, Instant>,
    told: bool,
}

/// Ends the [`Watcher`] it belongs to.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Event>);

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
        let (mut of_services, mut of_variables) = (BTreeSet::new(), BTreeSet::new());
        let mut of_folders: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut processes = BTreeMap::new();
        for text in places {
            match Location::of(text) {
                Location::Service(name) => {
                    of_services.insert(text.to_owned());
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
        let mut keys = Vec::new();
        for (key, below, places) in [
            (services::KEY, true, of_services),
            (environment::KEY, false, of_variables),
        ] {
            if !places.is_empty() {
                keys.push(WatchedKey::arm(key, below, places)?);
            }
        }
        let folders = of_folders
            .into_iter()
            .map(|(folder, places)| WatchedFolder::arm(folder, places))
            .collect();
        Ok(Self {
            services: Arc::clone(&disk.services),
            stop: Arc::new(Event::new(true)?),
            keys,
            folders,
            processes,
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
        for (name, process) in &mut self.processes {
            if process.is_none() {
                let started = self.services.take_started(name);
                *process = started.or_else(|| process_of(name));
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
        let keys = self.keys.iter().enumerate();
        let keys = keys.map(|(at, key)| (key.event.handle(), What::Key(at)));
        let folders = self.folders.iter().enumerate();
        let folders =
            folders.filter_map(|(at, folder)| Some((folder.handle.as_ref()?.0, What::Folder(at))));
        let processes = self.processes.iter();
        let processes = processes.filter_map(|(name, process)| {
            Some((process.as_ref()?.handle(), What::Process(name.clone())))
        });
        std::iter::once((self.stop.handle(), What::Stop))
            .chain(keys)
            .chain(processes)
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

    /// Notes what happened to one source, and says where to look.
    fn heard(&mut self, what: What) -> Result<Vec<Look>> {
        let looks = |places: &BTreeSet<String>| places.iter().cloned().map(Look::Path).collect();
        Ok(match what {
            What::Stop => Vec::new(),
            What::Key(at) => match self.keys.get_mut(at) {
                Some(key) => {
                    key.arm_again()?;
                    looks(&key.places)
                }
                None => Vec::new(),
            },
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

#[derive(Debug, Clone)]
enum What {
    Stop,
    Key(usize),
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
        let timeout = asked_again.map_or(timeout, |pause| timeout.min(pause));
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
    stop: Arc<Event>,
}

impl RootsWatcher {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            key: WatchedKey::arm(trust::KEY, true, BTreeSet::new())?,
            stop: Arc::new(Event::new(true)?),
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
struct Event(OwnedHandle);

impl Event {
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
    event: Event,
    path: &'static str,
    below: bool,
    places: BTreeSet<String>,
}

impl WatchedKey {
    fn arm(path: &'static str, below: bool, places: BTreeSet<String>) -> Result<Self> {
        let mut watched = Self {
            key: Key::notify(path)?,
            event: Event::new(false)?,
            path,
            below,
            places,
        };
        watched.arm_again()?;
        Ok(watched)
    }

    fn arm_again(&mut self) -> Result<()> {
        let what = REG_NOTIFY_CHANGE_NAME | REG_NOTIFY_CHANGE_LAST_SET;
        let (key, event) = (self.key.handle(), self.event.handle());
        // SAFETY: key and event are open, and stay so until the key is closed, which ends this.
        match unsafe { RegNotifyChangeKeyValue(key, self.below.into(), what, event, 1) } {
            0 => Ok(()),
            code => Err(failed("watch", self.path, code)),
        }
    }
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

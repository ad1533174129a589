//! Tells at once which of a set of paths may have changed, from the kernel's notifications.
//!
//! Every folder on the way to a path is watched, those behind links too, and a folder is watched
//! before anything in it is looked at. So whatever changes is either seen by that look, or announced
//! after it. What the kernel does not announce (a write through another hard link or a memory map,
//! something mounted over a folder) is for the slow full check. A folder that the kernel does not let us watch, because of a
//! limit or of missing rights, is looked at again and again instead, until it can be watched.

mod arm;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_plan::machine::pace::LOOKS_AGAIN;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags};
use rustix::io::Errno;

use self::tree::{Id, ROOT, Tree, Wd};
use super::RootedDisk;
use crate::watch::{Heard, Look, Source};
use crate::{Error, Result};

/// Room for a few hundred events at a time.
const BUFFER: usize = 16 * 1024;
/// Events that are taken in before somebody hears of them, so that none is lost in a flood.
const MANY: usize = 4096;

/// Watches a set of paths below a root.
#[derive(Debug)]
pub struct Watcher {
    root: OwnedFd,
    /// Nothing if the machine has no more of these for us.
    inotify: Option<OwnedFd>,
    stop: Arc<OwnedFd>,
    buffer: Box<[MaybeUninit<u8>]>,
    tree: Tree,
    /// Folders that could not be watched, and why.
    blind: BTreeMap<Id, Errno>,
    /// When they are looked at next.
    next_look: Instant,
    /// What is to be looked at and nobody was told yet.
    owed: BTreeSet<Id>,
    all_owed: bool,
    /// Nothing is known to be as it was: every folder is visited.
    afresh: bool,
}

/// Folders that cannot be watched. What changes below them is noticed at the next look.
#[derive(Debug)]
pub struct Blindness {
    /// How many there are.
    pub folders: usize,
    /// Why the first one cannot be watched.
    pub first: Error,
}

impl fmt::Display for Blindness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folders = match self.folders {
            1 => "a folder".to_owned(),
            many => format!("{many} folders"),
        };
        let (every, first) = (LOOKS_AGAIN.as_secs(), self.first.with_causes());
        write!(
            f,
            "{folders} cannot be watched, and what is in them is checked every {every}s instead: {first}"
        )
    }
}

/// Ends the waiting of a [`Watcher`] at once, and for good.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Whoever listens to the watcher hears [`Heard::Stopped`]. It only writes to a descriptor, so a
    /// signal handler may call it.
    pub fn stop(&self) {
        // It can only fail if it was called so often that the counter is full: stopped it is.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Watcher {
    /// Watches `paths`, which are absolute and need not be there.
    pub fn new<'p>(disk: &RootedDisk, paths: impl IntoIterator<Item = &'p str>) -> Result<Self> {
        let failed = |error: Errno| Error::path("watch", "/", error);
        let inotify = open_inotify()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = rustix::event::eventfd(0, flags).map_err(failed)?;
        let mut watcher = Self {
            root: disk
                .root()
                .try_clone()
                .map_err(|error| Error::path("watch", "/", error))?,
            inotify,
            next_look: Instant::now() + LOOKS_AGAIN,
            stop: Arc::new(stop),
            buffer: Box::new_uninit_slice(BUFFER),
            tree: Tree::new(),
            blind: BTreeMap::new(),
            owed: BTreeSet::new(),
            all_owed: true,
            afresh: false,
        };
        for path in paths {
            check(path)?;
            watcher.tree.want(path);
        }
        watcher.arm_all()?;
        watcher.owed.clear();
        Ok(watcher)
    }

    /// Watches one more path. It is the first to be looked at.
    pub fn add(&mut self, path: &str) -> Result<()> {
        check(path)?;
        let id = self.tree.want(path);
        self.owed.insert(id);
        let mut ways = Vec::new();
        let mut folder = id;
        while folder != ROOT {
            folder = self.tree.node(folder).parent;
            ways.push(folder);
        }
        for folder in ways.into_iter().rev() {
            if self.tree.node(folder).folder.is_none() {
                // The folders below it come along.
                return self.arm_again(folder);
            }
        }
        Ok(())
    }

    /// What ends the waiting from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Nothing if every folder is watched that there is.
    pub fn blindness(&self) -> Option<Blindness> {
        let (id, error) = self.blind.first_key_value()?;
        Some(Blindness {
            folders: self.blind.len(),
            first: refusal(&self.tree.node(*id).path, *error),
        })
    }

    /// Owes a look at all that is below folders that cannot be watched, and tries whether they can be by now.
    fn look_again(&mut self) -> Result<()> {
        self.next_look = Instant::now() + LOOKS_AGAIN;
        if self.inotify.is_none() {
            self.inotify = open_inotify()?;
        }
        let blind: Vec<Id> = self.blind.keys().copied().collect();
        for id in &blind {
            if self.tree.node(*id).wanted {
                self.owed.insert(*id);
            }
            self.tree.wanted_below(*id, &mut self.owed);
        }
        for id in blind {
            if self.blind.contains_key(&id) {
                self.arm_again(id)?;
            }
        }
        Ok(())
    }

    fn has_news(&self) -> bool {
        self.all_owed || !self.owed.is_empty()
    }

    /// Takes in what the kernel has to say, without waiting for more.
    fn listen(&mut self) -> Result<()> {
        let mut heard = Noted::default();
        let Some(inotify) = &self.inotify else {
            return Ok(());
        };
        let mut reader = inotify::Reader::new(inotify, &mut self.buffer);
        let mut taken = 0;
        // What is read and not yet taken in would be lost with the reader.
        while taken < MANY || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map_or(&b""[..], CStr::to_bytes);
                    heard.note(&mut self.tree, event.wd(), event.events(), name);
                    taken += 1;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::path("watch for changes below", "/", error)),
            }
        }
        self.owed.extend(heard.look);
        if heard.overflow {
            self.all_owed = true;
            return self.arm_all();
        }
        for id in heard.arm {
            self.arm_again(id)?;
        }
        Ok(())
    }

    fn wait(&self, timeout: Duration) -> Result<Woken> {
        // Where there are no notifications, what ends the waiting is waited for twice.
        let inotify = self.inotify.as_ref().unwrap_or(&self.stop);
        let mut polled = [
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(inotify, PollFlags::IN),
        ];
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
            tv_sec: i64::from(i32::MAX),
            tv_nsec: 0,
        });
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            // A signal: whoever listens decides whether to go on.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::path("wait for changes below", "/", error)),
        }
        Ok(Woken {
            stop: !polled[0].revents().is_empty(),
            events: !polled[1].revents().is_empty(),
        })
    }
}

impl Source for Watcher {
    fn next(&mut self, timeout: Duration) -> Result<Heard> {
        let mut timeout = if self.has_news() {
            Duration::ZERO
        } else {
            timeout
        };
        if !self.blind.is_empty() {
            timeout = timeout.min(self.next_look.saturating_duration_since(Instant::now()));
        }
        let woken = self.wait(timeout)?;
        if woken.stop {
            return Ok(Heard::Stopped);
        }
        if woken.events {
            self.listen()?;
        }
        if !self.blind.is_empty() && Instant::now() >= self.next_look {
            self.look_again()?;
        }
        let owed = std::mem::take(&mut self.owed);
        if std::mem::take(&mut self.all_owed) {
            return Ok(Heard::Looks(vec![Look::Everything]));
        }
        let look = |id: Id| Look::Path(self.tree.node(id).path.to_string());
        Ok(Heard::Looks(owed.into_iter().map(look).collect()))
    }
}

struct Woken {
    stop: bool,
    events: bool,
}

/// What a batch of events comes to.
#[derive(Debug, Default)]
struct Noted {
    look: BTreeSet<Id>,
    /// Folders that may be others than they were; parents come before their children.
    arm: BTreeSet<Id>,
    overflow: bool,
}

impl Noted {
    fn note(&mut self, tree: &mut Tree, wd: Wd, events: ReadFlags, name: &[u8]) {
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.overflow = true;
        } else if events.contains(ReadFlags::IGNORED) {
            // Removed, or unmounted.
            for id in tree.folders_at(wd) {
                tree.wanted_below(*id, &mut self.look);
            }
            self.arm.extend(tree.lose(wd));
        } else if name.is_empty() {
            // The folder itself. Its own folder is watched and says the same; the root has none.
            if tree.folders_at(wd).contains(&ROOT) && tree.node(ROOT).wanted {
                self.look.insert(ROOT);
            }
        } else {
            for id in tree.named(wd, name) {
                let node = tree.node(id);
                if node.wanted {
                    self.look.insert(id);
                }
                if !node.children.is_empty() {
                    self.arm.insert(id);
                }
            }
        }
    }
}

/// The kernel's notifications; nothing if the machine has no more of these for us.
fn open_inotify() -> Result<Option<OwnedFd>> {
    match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
        Ok(inotify) => Ok(Some(inotify)),
        Err(NO_INSTANCE) => Ok(None),
        Err(error) => Err(Error::path("watch", "/", error)),
    }
}

/// What the kernel says at its limit of instances, and of watches.
const NO_INSTANCE: Errno = Errno::MFILE;
const NO_WATCH: Errno = Errno::NOSPC;

/// Why a folder cannot be watched, and what to do about it.
fn refusal(path: &str, error: Errno) -> Error {
    let (limit, enough) = match error {
        NO_INSTANCE => ("fs.inotify.max_user_instances", 1024),
        NO_WATCH => ("fs.inotify.max_user_watches", 1 << 20),
        _ => return Error::path("watch", path, error),
    };
    Error::WatchLimit {
        path: path.to_owned(),
        limit,
        enough,
        source: error.into(),
    }
}

fn check(path: &str) -> Result<()> {
    let mut names = path.split('/');
    let absolute = names.next() == Some("");
    if absolute && names.all(|name| !matches!(name, "" | "." | "..")) {
        Ok(())
    } else {
        Err(Error::path("watch", path, Errno::INVAL))
    }
}

//! Puts the kernel's watches where they belong, and moves them when folders move.
//!
//! The order is what makes it complete: a folder is watched first, and only then are the names in it
//! followed. If a folder turns out to be another one than before, everything below it is owed a look,
//! since it may have changed while nobody watched.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::super::disk::open_below;
use super::tree::{Id, ROOT, Wd};
use super::{NO_INSTANCE, NO_WATCH, Watcher};
use crate::{Error, Result};

/// As many links on one way as the kernel itself would follow.
const LINKS: usize = 40;
const FOLDER: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Where a way ends.
enum Arrival {
    At(OwnedFd, Wd),
    /// There is nothing, or no folder.
    Nowhere,
    /// We may not see it.
    Blind(Errno),
}

impl Watcher {
    /// Watches everything anew, for when it is not known what has changed.
    pub(super) fn arm_all(&mut self) -> Result<()> {
        self.afresh = true;
        let armed = self.arm_again(ROOT);
        self.afresh = false;
        armed
    }

    /// Watches a folder that may have changed, and whatever is below it if it has.
    pub(super) fn arm_again(&mut self, id: Id) -> Result<()> {
        if id == ROOT {
            let root = clone(self.root.as_fd())?;
            let wd = match self.watch(root.as_fd(), ROOT)? {
                Ok(wd) => wd,
                Err(error @ (NO_INSTANCE | NO_WATCH)) => {
                    return self.arrive(ROOT, Arrival::Blind(error));
                }
                Err(error) => return Err(Error::path("watch", "/", error)),
            };
            self.blind.remove(&ROOT);
            self.settle(ROOT, Some(wd));
            return self.arm_below(ROOT, root.as_fd());
        }
        let parent = self.tree.node(id).parent;
        if self.tree.node(parent).folder.is_none() && !self.blind.contains_key(&parent) {
            // There is nothing it could be in. When there is, it comes along.
            return Ok(());
        }
        let path = &self.tree.node(parent).path;
        match open_below(&self.root, path, FOLDER | OFlags::DIRECTORY, Mode::empty()) {
            Ok(parent) => self.arm(id, parent.as_fd()),
            // A folder above has just gone; its own event is on its way.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(error) => self.arrive(id, Arrival::Blind(error)),
        }
    }

    fn arm(&mut self, id: Id, parent: BorrowedFd<'_>) -> Result<()> {
        let strayed = self.tree.stray(id);
        let arrival = self.walk(id, parent)?;
        let armed = self.arrive(id, arrival);
        for wd in strayed {
            self.drop_if_idle(wd);
        }
        armed
    }

    fn arrive(&mut self, id: Id, arrival: Arrival) -> Result<()> {
        let before = self.tree.node(id).folder;
        let unsure = self.afresh || !self.blind.is_empty();
        self.blind.remove(&id);
        match arrival {
            // It is the same folder and was watched all the time, with all that is below it.
            Arrival::At(_, wd) if before == Some(wd) && !unsure => Ok(()),
            Arrival::At(folder, wd) => {
                self.settle(id, Some(wd));
                self.arm_below(id, folder.as_fd())
            }
            Arrival::Nowhere | Arrival::Blind(_) => {
                let mut changed = before.is_some() || unsure;
                if let Arrival::Blind(error) = arrival {
                    self.blind.insert(id, error);
                    changed = true;
                }
                if changed {
                    self.leave(id);
                }
                Ok(())
            }
        }
    }

    /// Everything below a folder that was not watched until now.
    fn arm_below(&mut self, id: Id, folder: BorrowedFd<'_>) -> Result<()> {
        for child in self.tree.folders_in(id) {
            self.arm(child, folder)?;
        }
        let children = self.tree.node(id).children.values().copied();
        let wanted = children.filter(|child| self.tree.node(*child).wanted);
        self.owed.extend(wanted);
        Ok(())
    }

    /// The folder is gone, and all that is below it.
    fn leave(&mut self, id: Id) {
        self.tree.wanted_below(id, &mut self.owed);
        let mut gone = vec![id];
        while let Some(folder) = gone.pop() {
            self.settle(folder, None);
            if folder != id {
                self.blind.remove(&folder);
                for wd in self.tree.stray(folder) {
                    self.drop_if_idle(wd);
                }
            }
            gone.extend(self.tree.folders_in(folder));
        }
    }

    /// From the folder that holds a node to the folder that the node is, through links inside the
    /// root. Every name on the way is watched before it is looked up.
    fn walk(&mut self, id: Id, parent: BorrowedFd<'_>) -> Result<Arrival> {
        let mut here = clone(parent)?;
        let mut names = vec![self.tree.node(id).name().as_bytes().to_vec()];
        let mut links = 0;
        while let Some(name) = names.pop() {
            let next = match name.as_slice() {
                b"" | b"." => continue,
                b".." if is_same(here.as_fd(), self.root.as_fd()) => continue,
                b".." => rustix::fs::openat(&here, "..", FOLDER, Mode::empty()),
                name => {
                    // The first name is one of the tree, and its folder is watched already.
                    if links > 0 {
                        match self.watch(here.as_fd(), id)? {
                            Ok(wd) => self.tree.lead(id, wd, name),
                            Err(error) => return Ok(Arrival::Blind(error)),
                        }
                    }
                    rustix::fs::openat(&here, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
                }
            };
            let next = match next {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Arrival::Nowhere),
                Err(error) => return Ok(Arrival::Blind(error)),
            };
            match kind(next.as_fd()) {
                Ok(FileType::Directory) => here = next,
                Ok(FileType::Symlink) if links < LINKS => {
                    links += 1;
                    let target = match rustix::fs::readlinkat(&next, "", Vec::new()) {
                        Ok(target) => target.into_bytes(),
                        Err(error) => return Ok(Arrival::Blind(error)),
                    };
                    if target.starts_with(b"/") {
                        here = clone(self.root.as_fd())?;
                    }
                    let parts = target.split(|byte| *byte == b'/');
                    names.extend(parts.rev().map(<[u8]>::to_vec));
                }
                Ok(_) => return Ok(Arrival::Nowhere),
                Err(error) => return Ok(Arrival::Blind(error)),
            }
        }
        Ok(match self.watch(here.as_fd(), id)? {
            Ok(wd) => Arrival::At(here, wd),
            Err(error) => Arrival::Blind(error),
        })
    }

    /// Watches exactly the folder that is open, whatever its name leads to by now. A refusal of this
    /// folder is the inner error; the outer one means that no other can be watched either.
    fn watch(&self, folder: BorrowedFd<'_>, id: Id) -> Result<Result<Wd, Errno>> {
        let mask = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        let Some(inotify) = &self.inotify else {
            return Ok(Err(NO_INSTANCE));
        };
        let handle = format!("/proc/self/fd/{}", folder.as_raw_fd());
        match inotify::add_watch(inotify, handle, mask) {
            Ok(wd) => Ok(Ok(wd)),
            Err(error @ (Errno::NOMEM | Errno::NOENT)) => {
                // Without /proc no folder can be named by its handle.
                let path = self.tree.node(id).path.to_string();
                Err(Error::path("watch (through /proc)", path, error))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn settle(&mut self, id: Id, wd: Option<Wd>) {
        if let Some(before) = self.tree.settle(id, wd) {
            self.drop_if_idle(before);
        }
    }

    fn drop_if_idle(&mut self, wd: Wd) {
        if self.tree.is_idle(wd) {
            self.tree.lose(wd);
            // The kernel may have dropped it before us.
            let removed = self.inotify.as_ref();
            let _ = removed.map(|inotify| inotify::remove_watch(inotify, wd));
        }
    }
}

fn clone(handle: BorrowedFd<'_>) -> Result<OwnedFd> {
    handle
        .try_clone_to_owned()
        .map_err(|error| Error::path("watch", "/", error))
}

fn kind(handle: BorrowedFd<'_>) -> rustix::io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode))
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

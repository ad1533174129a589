//! A real file system, below a root that no symbolic link leads out of.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use evenkeel_plan::machine::attributes::Attributes;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::attributes::{self, LABEL};
use super::pieces::{copy, hash, is_like};
use crate::disk::{Disk, Folder};
use crate::{Error, Result};

/// From this many files on, one sync of their file system is cheaper than one of each.
const MANY: usize = 16;

/// Paths below a root. As an ordinary user everything belongs to that user, who then stands for
/// root, as in a tree that is being prepared.
#[derive(Debug)]
pub struct RootedDisk {
    root: OwnedFd,
    place: PathBuf,
    us: Option<Ids>,
}

impl RootedDisk {
    /// The tree below `root`.
    pub fn open(root: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(root, flags, Mode::empty())
            .map_err(|error| Error::path("open root folder", root.display().to_string(), error))?;
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let us = (!user.is_root()).then(|| Ids {
            user: user.as_raw(),
            group: group.as_raw(),
        });
        Ok(Self {
            root: handle,
            place: root.to_owned(),
            us,
        })
    }

    /// Whether this is the running machine itself.
    pub fn is_live(&self) -> bool {
        self.place == Path::new("/")
    }

    /// The handle of the root.
    pub(super) const fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens `path` without leaving the root.
    fn open_in(&self, path: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        open_below(&self.root, path, flags, mode)
    }

    /// The folder that holds `path`, and the last name of `path`.
    fn parent<'p>(&self, path: &'p str) -> rustix::io::Result<(OwnedFd, &'p str)> {
        let (folder, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
        Ok((
            self.open_in(folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?,
            name,
        ))
    }

    fn stat(&self, path: &str) -> rustix::io::Result<Option<Stat>> {
        let (parent, name) = match self.parent(path) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error),
        };
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn owner(&self, stat: &Stat) -> Ids {
        let seen = Ids {
            user: stat.st_uid,
            group: stat.st_gid,
        };
        if self.us == Some(seen) {
            Ids::default()
        } else {
            seen
        }
    }

    fn give(&self, file: &OwnedFd, owner: Ids) -> rustix::io::Result<()> {
        match self.us {
            Some(_) if owner == Ids::default() => Ok(()),
            _ => rustix::fs::fchown(
                file,
                Some(Uid::from_raw(owner.user)),
                Some(Gid::from_raw(owner.group)),
            ),
        }
    }

    /// Makes a new file, and fills it.
    fn make<T>(
        &self,
        path: &str,
        mode: u32,
        owner: Ids,
        fill: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> io::Result<T> {
        let (parent, name) = self.parent(path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(handle);
        let filled = fill(&mut file)?;
        let handle = OwnedFd::from(file);
        // The owner first: giving a file away clears its set-user-id bit.
        self.give(&handle, owner)?;
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(mode))?;
        Ok(filled)
    }

    /// Opens a regular file for reading; `None` if there is none.
    fn file(&self, path: &str) -> rustix::io::Result<Option<(File, Stat)>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.open_in(path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error),
        };
        let stat = rustix::fs::fstat(&file)?;
        Ok(is(&stat, FileType::RegularFile).then(|| (File::from(file), stat)))
    }

    /// What stands at `path`; if it is a file, with the hash that `hash` finds.
    fn look_with(
        &self,
        path: &str,
        hash: impl FnOnce(&mut File, i64) -> io::Result<Hash>,
    ) -> Result<Entry> {
        let failed = |error: io::Error| Error::path("read", path, error);
        // A file is what is there nearly always: opened, it is read and judged in one go.
        match self.file(path) {
            Ok(Some((mut file, stat))) => {
                let hash = hash(&mut file, stat.st_size).map_err(failed)?;
                return Ok(Entry::File {
                    hash,
                    mode: mode_of(&stat),
                    owner: self.owner(&stat),
                });
            }
            Ok(None) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let Some(stat) = self.stat(path).map_err(|error| failed(error.into()))? else {
            return Ok(Entry::Absent);
        };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => Entry::Link {
                target: self
                    .link_target(path)
                    .map_err(|error| failed(error.into()))?,
            },
            FileType::Directory => Entry::Directory {
                mode: mode_of(&stat),
                owner: self.owner(&stat),
            },
            _ => Entry::Other,
        })
    }

    /// Where `path` is for calls that take no handle. A link at its end is not followed by those
    /// whose name begins with `l`, and the folder stays open as long as this is held.
    fn spelled_out(&self, path: &str) -> rustix::io::Result<(OwnedFd, String)> {
        let (parent, name) = self.parent(path)?;
        let spelled = format!("/proc/self/fd/{}/{name}", parent.as_raw_fd());
        Ok((parent, spelled))
    }

    fn link_target(&self, path: &str) -> rustix::io::Result<String> {
        let (parent, name) = self.parent(path)?;
        let target = rustix::fs::readlinkat(&parent, name, Vec::new())?;
        Ok(String::from_utf8_lossy(target.as_bytes()).into_owned())
    }
}

/// Opens `path` below `root` without leaving it.
pub(super) fn open_below(
    root: &OwnedFd,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let path = if path.is_empty() { "/" } else { path };
    loop {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, mode, inside) {
            // Somebody renamed on the way: look again.
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn mode_of(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// A claim on the machine. It is given up outright: a program that is just being started still has
/// the file open for a moment, and would otherwise keep the claim for us.
#[derive(Debug)]
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl Disk for RootedDisk {
    type Lock = Lock;

    fn look(&self, path: &str) -> Result<Entry> {
        self.look_with(path, hash)
    }

    fn look_for(&self, path: &str, likely: &[u8], its_hash: Hash) -> Result<Entry> {
        self.look_with(path, |file, size| {
            if is_like(file, size, likely)? {
                return Ok(its_hash);
            }
            file.rewind()?;
            hash(file, size)
        })
    }

    fn folder(&self, path: &str) -> Result<Folder> {
        match self.open_in(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Ok(_) => Ok(Folder::There),
            Err(Errno::NOTDIR) => Ok(Folder::Blocked("is not a folder".to_owned())),
            Err(Errno::LOOP) => Ok(Folder::Blocked("is a symbolic link loop".to_owned())),
            Err(Errno::NOENT) => match self.stat(path) {
                // There is something, and yet it cannot be opened: a link into nothing of ours.
                Ok(Some(_)) => {
                    let target = self.link_target(path).unwrap_or_default();
                    Ok(Folder::Blocked(format!(
                        "is a symbolic link to {target}, which is missing or outside the root"
                    )))
                }
                Ok(None) => Ok(Folder::Missing),
                Err(error) => Err(Error::path("inspect", path, error)),
            },
            Err(error) => Err(Error::path("inspect", path, error)),
        }
    }

    fn read_up_to(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>> {
        let failed = |error: io::Error| Error::path("read", path, error);
        let Some((file, stat)) = self.file(path).map_err(|error| failed(error.into()))? else {
            return Ok(None);
        };
        let too_large = || failed(io::ErrorKind::FileTooLarge.into());
        let size = usize::try_from(stat.st_size).map_err(|_| too_large())?;
        let mut contents = Vec::with_capacity(size.min(most));
        // One more tells of a file that grew, or that does not say how large it is.
        let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        if size <= most {
            file.take(limit)
                .read_to_end(&mut contents)
                .map_err(failed)?;
        }
        if size > most || contents.len() > most {
            return Err(too_large());
        }
        Ok(Some(contents))
    }

    fn copy(&self, from: &str, path: &str, mode: u32, owner: Ids) -> Result<Option<Hash>> {
        let found = self.file(from);
        let Some((file, _)) = found.map_err(|error| Error::path("read", from, error))? else {
            return Ok(None);
        };
        self.make(path, mode, owner, |new| copy(&file, new))
            .map(Some)
            .map_err(|error| Error::path("write", path, error))
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let failed = |error: Errno| Error::path("list", path, error);
        let folder = match self.open_in(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = BTreeSet::new();
        for entry in rustix::fs::Dir::new(folder).map_err(failed)? {
            let name = entry
                .map_err(failed)?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if name != "." && name != ".." {
                names.insert(name);
            }
        }
        Ok(names.into_iter().collect())
    }

    fn label(&self, path: &str) -> Result<Option<String>> {
        let read = || -> rustix::io::Result<Option<String>> {
            let (_parent, spelled) = self.spelled_out(path)?;
            let mut label = vec![0; 4096];
            let length = rustix::fs::lgetxattr(&spelled, LABEL, label.as_mut_slice())?;
            label.truncate(length);
            Ok(String::from_utf8(label).ok())
        };
        match read() {
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT | Errno::NOTDIR) => Ok(None),
            other => other.map_err(|error| Error::path("read the SELinux label of", path, error)),
        }
    }

    fn set_label(&self, path: &str, label: &str) -> Result<()> {
        let write = || -> rustix::io::Result<()> {
            let (_parent, spelled) = self.spelled_out(path)?;
            rustix::fs::lsetxattr(&spelled, LABEL, label.as_bytes(), XattrFlags::empty())
        };
        match write() {
            // No labels on this file system, or not ours to give.
            Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
            other => other.map_err(|error| Error::path("set the SELinux label of", path, error)),
        }
    }

    fn attributes(&self, path: &str) -> Result<Attributes> {
        let read = || -> rustix::io::Result<Attributes> {
            let (_parent, spelled) = self.spelled_out(path)?;
            attributes::read(&spelled)
        };
        match read() {
            Err(Errno::OPNOTSUPP | Errno::NOENT | Errno::NOTDIR) => Ok(Attributes::default()),
            other => {
                other.map_err(|error| Error::path("read the extended attributes of", path, error))
            }
        }
    }

    fn set_attributes(&self, path: &str, wanted: &Attributes) -> Result<()> {
        let write = || -> rustix::io::Result<()> {
            let (_parent, spelled) = self.spelled_out(path)?;
            attributes::write(&spelled, wanted)
        };
        write().map_err(|error| Error::path("set the extended attributes of", path, error))
    }

    fn create(&self, path: &str, contents: &[u8], mode: u32, owner: Ids) -> Result<()> {
        self.make(path, mode, owner, |file| file.write_all(contents))
            .map_err(|error| Error::path("write", path, error))
    }

    fn link(&self, path: &str, target: &str) -> Result<()> {
        self.parent(path)
            .and_then(|(parent, name)| rustix::fs::symlinkat(target, &parent, name))
            .map_err(|error| Error::path("create link", path, error))
    }

    fn make_folder(&self, path: &str, mode: u32, owner: Ids) -> Result<()> {
        let make = || -> rustix::io::Result<()> {
            let (parent, name) = self.parent(path)?;
            rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
            self.give(&folder, owner)?;
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode))
        };
        make().map_err(|error| Error::path("create folder", path, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let rename = || -> rustix::io::Result<()> {
            let (from_parent, from_name) = self.parent(from)?;
            let (to_parent, to_name) = self.parent(to)?;
            rustix::fs::renameat(&from_parent, from_name, &to_parent, to_name)
        };
        rename().map_err(|error| Error::path("replace", to, error))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let removed = self
            .parent(path)
            .and_then(|(parent, name)| rustix::fs::unlinkat(&parent, name, AtFlags::empty()));
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Error::path("remove", path, error)),
        }
    }

    fn remove_folder(&self, path: &str) -> Result<bool> {
        let removed = self
            .parent(path)
            .and_then(|(parent, name)| rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR));
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => Ok(false),
            Err(error) => Err(Error::path("remove folder", path, error)),
        }
    }

    fn sync_files(&self, paths: &[String]) -> Result<()> {
        let open = |path: &String| {
            self.open_in(path, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty())
                .map_err(|error| Error::path("sync to disk", path, error))
        };
        let mut systems = BTreeSet::new();
        for path in paths {
            let file = open(path)?;
            let failed = |error: Errno| Error::path("sync to disk", path, error);
            if paths.len() < MANY {
                rustix::fs::fsync(&file).map_err(failed)?;
            } else if systems.insert(rustix::fs::fstat(&file).map_err(failed)?.st_dev) {
                rustix::fs::syncfs(&file).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn sync_folder(&self, path: &str) -> Result<()> {
        self.open_in(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .and_then(rustix::fs::fsync)
            .map_err(|error| Error::path("sync to disk", path, error))
    }

    fn lock(&self, path: &str) -> Result<Lock> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
        let file = self
            .open_in(path, flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|error| Error::path("lock", path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(std::fs::TryLockError::WouldBlock) => Err(Error::Busy {
                path: path.to_owned(),
            }),
            Err(std::fs::TryLockError::Error(error)) => Err(Error::path("lock", path, error)),
        }
    }

    fn stand_in(&self) -> Option<u32> {
        /// The first ordinary user of an image that was never booted.
        const FIRST_USER: u32 = 1000;
        match (self.us, self.is_live()) {
            (Some(_), _) => Some(0),
            (None, true) => None,
            (None, false) => self
                .stat("/etc/passwd")
                .ok()
                .flatten()
                .is_none()
                .then_some(FIRST_USER),
        }
    }
}

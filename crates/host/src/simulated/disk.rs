//! The calls of a simulated disk: each does what the same call does on Linux, and fails where that
//! one fails.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_plan::machine::attributes::Attributes;
use evenkeel_plan::machine::entry::{Activity, Entry, Hash, Ids, ServiceEntry};
use evenkeel_plan::machine::place::Location;

use super::fault::Faults;
use super::tree::{Astray, File, Inode, InodeFolder, InodeId, InodeTree};
use crate::disk::{Disk, Folder, NAMED};
use crate::{Error, Result};

/// What a program may not give away when it makes a folder, as on nearly every machine.
pub(super) const UMASK: u32 = 0o022;

/// Paths in memory.
#[derive(Debug)]
pub struct SimulatedDisk {
    tree: Mutex<InodeTree>,
    faults: Arc<Faults>,
    locked: Locked,
}

type Locked = Arc<Mutex<BTreeSet<String>>>;

/// A lock on a simulated machine.
#[derive(Debug)]
pub struct SimulatedLock {
    path: String,
    locked: Locked,
}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        entered(&self.locked).remove(&self.path);
    }
}

fn entered<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Astray> for io::Error {
    fn from(astray: Astray) -> Self {
        match astray {
            Astray::Missing => io::ErrorKind::NotFound.into(),
            Astray::NotAFolder => io::ErrorKind::NotADirectory.into(),
            Astray::Circle => Self::other("too many levels of symbolic links"),
        }
    }
}

impl SimulatedDisk {
    pub(super) fn of(tree: InodeTree, faults: Arc<Faults>) -> Self {
        Self {
            tree: Mutex::new(tree),
            faults,
            locked: Locked::default(),
        }
    }

    pub(super) fn tree(&self) -> MutexGuard<'_, InodeTree> {
        entered(&self.tree)
    }

    fn contents(&self, path: &str) -> Result<Option<Arc<[u8]>>> {
        self.faults
            .looks()
            .map_err(|error| Error::path("read", path, error))?;
        let tree = self.tree();
        Ok(match tree.at(path).ok().and_then(|id| tree.node(id)) {
            Some(Inode::File(file)) => Some(Arc::clone(&file.contents)),
            _ => None,
        })
    }

    /// Where a new name goes, if nothing has it.
    fn vacant<'p>(&self, path: &'p str) -> io::Result<(InodeId, &'p str)> {
        let tree = self.tree();
        let (folder, name) = tree.parent(path)?;
        match tree.named(folder, name) {
            None => Ok((folder, name)),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    fn add(&self, folder: InodeId, name: &str, node: Inode) -> InodeId {
        let mut tree = self.tree();
        let id = tree.add(node);
        tree.name(folder, name, Some(id));
        id
    }

    fn try_create(&self, path: &str, contents: &[u8], mode: u32, owner: Ids) -> io::Result<()> {
        // Three calls of a real system: killed between them, a file is there and not yet right.
        self.faults.changes_something()?;
        let (folder, name) = self.vacant(path)?;
        let id = self.add(
            folder,
            name,
            Inode::File(File::fresh(&[], 0o600, Ids::default())),
        );
        self.faults.changes_something()?;
        let written = File::fresh(contents, 0o600, Ids::default());
        if let Some(node) = self.tree().node_mut(id) {
            *node = Inode::File(written);
        }
        self.faults.changes_something()?;
        if let Some(Inode::File(file)) = self.tree().node_mut(id) {
            file.mode = mode;
            file.owner = owner;
        }
        Ok(())
    }

    fn try_make_folder(&self, path: &str, mode: u32, owner: Ids) -> io::Result<()> {
        self.faults.changes_something()?;
        let (folder, name) = self.vacant(path)?;
        let made = InodeFolder::empty(mode & !UMASK, Ids::default());
        let id = self.add(folder, name, Inode::Folder(made));
        self.faults.changes_something()?;
        if let Some(folder) = self.tree().folder_mut(id) {
            folder.mode = mode;
            folder.owner = owner;
        }
        Ok(())
    }

    fn try_rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.changes_something()?;
        let mut tree = self.tree();
        let (from_folder, from_name) = tree.parent(from)?;
        let (to_folder, to_name) = tree.parent(to)?;
        let moved = tree.named(from_folder, from_name).ok_or(Astray::Missing)?;
        let replaced = tree.named(to_folder, to_name);
        if replaced == Some(moved) {
            return Ok(());
        }
        let is_folder = tree.folder(moved).is_some();
        if is_folder && format!("{to}/").starts_with(&format!("{from}/")) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(replaced) = replaced {
            match (is_folder, tree.folder(replaced)) {
                (false, Some(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                (true, None) => return Err(io::ErrorKind::NotADirectory.into()),
                (true, Some(folder)) if !folder.names.is_empty() => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
                _ => {}
            }
        }
        tree.name(from_folder, from_name, None);
        tree.name(to_folder, to_name, Some(moved));
        Ok(())
    }

    fn try_remove(&self, path: &str) -> io::Result<()> {
        self.faults.changes_something()?;
        let mut tree = self.tree();
        let (folder, name) = tree.parent(path)?;
        let id = tree.named(folder, name).ok_or(Astray::Missing)?;
        if tree.folder(id).is_some() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        tree.name(folder, name, None);
        Ok(())
    }

    fn try_remove_folder(&self, path: &str) -> io::Result<bool> {
        self.faults.changes_something()?;
        let mut tree = self.tree();
        let (parent, name) = tree.parent(path)?;
        let id = tree.named(parent, name).ok_or(Astray::Missing)?;
        let empty = tree.folder(id).ok_or(Astray::NotAFolder)?.names.is_empty();
        if empty {
            tree.name(parent, name, None);
        }
        Ok(empty)
    }

    fn try_lock(&self, path: &str) -> io::Result<bool> {
        self.faults.changes_something()?;
        let found = self.tree().at(path);
        match found {
            Err(Astray::Missing) => {
                let (folder, name) = self.vacant(path)?;
                let file = File::fresh(&[], 0o600, Ids::default());
                self.add(folder, name, Inode::File(file));
            }
            Err(astray) => return Err(astray.into()),
            Ok(id) => match self.tree().node(id) {
                Some(Inode::Folder(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                Some(Inode::Link(_)) => return Err(Astray::Circle.into()),
                _ => {}
            },
        }
        Ok(entered(&self.locked).insert(path.to_owned()))
    }
}

impl Disk for SimulatedDisk {
    type Lock = SimulatedLock;

    fn look(&self, path: &str) -> Result<Entry> {
        self.faults
            .looks()
            .map_err(|error| Error::path("read", path, error))?;
        let tree = self.tree();
        if !Location::is_path(path) {
            return Ok(tree.under(path));
        }
        Ok(tree.at(path).map_or(Entry::Absent, |id| tree.entry(id)))
    }

    fn folder(&self, path: &str) -> Result<Folder> {
        self.faults
            .looks()
            .map_err(|error| Error::path("inspect", path, error))?;
        let tree = self.tree();
        Ok(match tree.walk(path) {
            Ok(id) if tree.folder(id).is_some() => Folder::There,
            Ok(_) | Err(Astray::NotAFolder) => Folder::Blocked("is not a folder".to_owned()),
            Err(Astray::Circle) => Folder::Blocked("is a symbolic link loop".to_owned()),
            Err(Astray::Missing) => match tree.at(path).ok().and_then(|id| tree.node(id)) {
                Some(Inode::Link(target)) => Folder::Blocked(format!(
                    "is a symbolic link to {target}, which is missing or outside the root"
                )),
                _ => Folder::Missing,
            },
        })
    }

    fn read_up_to(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>> {
        let contents = self.contents(path)?;
        if contents.as_ref().is_some_and(|it| it.len() > most) {
            return Err(Error::path("read", path, io::ErrorKind::FileTooLarge));
        }
        Ok(contents.map(|it| it.to_vec()))
    }

    fn copy(&self, from: &str, path: &str, mode: u32, owner: Ids) -> Result<Option<Hash>> {
        let Some(contents) = self.contents(from)? else {
            return Ok(None);
        };
        self.create(path, &contents, mode, owner)?;
        Ok(Some(Hash::of(&contents)))
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let failed = |error: io::Error| Error::path("list", path, error);
        self.faults.looks().map_err(failed)?;
        let tree = self.tree();
        match tree.walk(path) {
            Ok(id) => Ok(tree
                .folder(id)
                .map(|folder| folder.names.keys().cloned().collect())
                .unwrap_or_default()),
            Err(Astray::Missing | Astray::NotAFolder) => Ok(Vec::new()),
            Err(astray) => Err(failed(astray.into())),
        }
    }

    fn label(&self, path: &str) -> Result<Option<String>> {
        self.faults
            .looks()
            .map_err(|error| Error::path("read the SELinux label of", path, error))?;
        let tree = self.tree();
        Ok(tree.at(path).ok().and_then(|id| tree.label(id)))
    }

    fn set_label(&self, path: &str, label: &str) -> Result<()> {
        let write = || -> io::Result<()> {
            self.faults.changes_something()?;
            let mut tree = self.tree();
            let id = tree.at(path)?;
            tree.set_label(id, label);
            Ok(())
        };
        write().map_err(|error| Error::path("set the SELinux label of", path, error))
    }

    fn attributes(&self, path: &str) -> Result<Attributes> {
        self.faults
            .looks()
            .map_err(|error| Error::path("read the extended attributes of", path, error))?;
        let tree = self.tree();
        let found = tree.at(path).ok().map(|id| tree.attributes(id));
        Ok(found.unwrap_or_default())
    }

    fn set_attributes(&self, path: &str, attributes: &Attributes) -> Result<()> {
        let write = || -> io::Result<()> {
            self.faults.changes_something()?;
            let mut tree = self.tree();
            let id = tree.at(path)?;
            tree.set_attributes(id, attributes);
            Ok(())
        };
        write().map_err(|error| Error::path("set the extended attributes of", path, error))
    }

    fn create(&self, path: &str, contents: &[u8], mode: u32, owner: Ids) -> Result<()> {
        self.try_create(path, contents, mode, owner)
            .map_err(|error| Error::path("write", path, error))
    }

    fn link(&self, path: &str, target: &str) -> Result<()> {
        let link = || -> io::Result<()> {
            self.faults.changes_something()?;
            let (folder, name) = self.vacant(path)?;
            self.add(folder, name, Inode::Link(target.into()));
            Ok(())
        };
        link().map_err(|error| Error::path("create link", path, error))
    }

    fn make_folder(&self, path: &str, mode: u32, owner: Ids) -> Result<()> {
        self.try_make_folder(path, mode, owner)
            .map_err(|error| Error::path("create folder", path, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.try_rename(from, to)
            .map_err(|error| Error::path("replace", to, error))
    }

    fn remove(&self, path: &str) -> Result<()> {
        match self.try_remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|error| Error::path("remove", path, error)),
        }
    }

    fn remove_folder(&self, path: &str) -> Result<bool> {
        match self.try_remove_folder(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            other => other.map_err(|error| Error::path("remove folder", path, error)),
        }
    }

    fn sync_files(&self, paths: &[String]) -> Result<()> {
        for path in paths {
            let sync = || -> io::Result<()> {
                self.faults.changes_something()?;
                let mut tree = self.tree();
                let id = tree.at(path)?;
                match tree.node_mut(id) {
                    Some(Inode::File(file)) => file.durable = true,
                    Some(Inode::Link(_)) => return Err(Astray::Circle.into()),
                    _ => {}
                }
                Ok(())
            };
            sync().map_err(|error| Error::path("sync to disk", path, error))?;
        }
        Ok(())
    }

    fn sync_folder(&self, path: &str) -> Result<()> {
        let sync = || -> io::Result<()> {
            self.faults.changes_something()?;
            let mut tree = self.tree();
            if path == NAMED {
                for states in tree.named.values_mut() {
                    states.drain(..states.len() - 1);
                }
                return Ok(());
            }
            let id = tree.walk(path)?;
            tree.folder(id).ok_or(Astray::NotAFolder)?;
            tree.settle(id);
            Ok(())
        };
        sync().map_err(|error| Error::path("sync to disk", path, error))
    }

    fn put(&self, place: &str, entry: &Entry) -> Result<()> {
        // A service is configured first and started then: killed in between, it is only configured.
        let mut states = vec![entry.clone()];
        if let Entry::Service(service) = entry {
            let configured = ServiceEntry {
                activity: Activity::Stopped,
                ..service.clone()
            };
            states.insert(0, Entry::Service(configured));
        }
        for state in states {
            self.faults
                .changes_something()
                .map_err(|error| Error::path("write", place, error))?;
            let mut tree = self.tree();
            let past = tree.named.entry(place.to_owned());
            past.or_insert_with(|| vec![Entry::Absent]).push(state);
        }
        Ok(())
    }

    fn lock(&self, path: &str) -> Result<SimulatedLock> {
        match self.try_lock(path) {
            Ok(true) => Ok(SimulatedLock {
                path: path.to_owned(),
                locked: Arc::clone(&self.locked),
            }),
            Ok(false) => Err(Error::Busy {
                path: path.to_owned(),
            }),
            Err(error) => Err(Error::path("lock", path, error)),
        }
    }

    fn stand_in(&self) -> Option<u32> {
        // As in a tree that was never booted.
        let has_users = self.tree().at("/etc/passwd").is_ok();
        (!has_users).then_some(1000)
    }
}

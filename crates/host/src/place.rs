//! How one path goes from one entry to another: atomically, durably, and twice as well as once.

use evenkeel_plan::machine::attributes::Attributes;
use evenkeel_plan::machine::entry::Entry;
use evenkeel_plan::machine::journal::Move;
use evenkeel_plan::machine::place::Location;

use crate::disk::{Disk, NAMED};
use crate::store::Store;
use crate::temporary::{folder_of, temporary};
use crate::{Error, Result};

/// What something had when it last stood at its path, as far as that is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Had<'a> {
    label: Option<&'a str>,
    attributes: Option<&'a Attributes>,
}

impl<'a> Had<'a> {
    pub(crate) const fn of(it: &Move<'a>) -> Self {
        Self {
            label: it.label,
            attributes: it.attributes,
        }
    }

    pub(crate) const fn label(label: Option<&'a str>) -> Self {
        Self {
            label,
            attributes: None,
        }
    }
}

/// Brings the paths of a plan where they belong, and remembers which folders are not yet durable.
pub(crate) struct Placer<'a, D> {
    disk: &'a D,
    store: Store<'a, D>,
    again: bool,
    unsynced: std::collections::BTreeSet<String>,
}

impl<'a, D: Disk> Placer<'a, D> {
    /// For paths that nobody has begun to move.
    pub(crate) fn new(disk: &'a D, store: Store<'a, D>) -> Self {
        Self {
            disk,
            store,
            again: false,
            unsynced: std::collections::BTreeSet::new(),
        }
    }

    /// For paths that a run before may have begun to move, or moved without making it durable.
    pub(crate) fn again(disk: &'a D, store: Store<'a, D>) -> Self {
        Self {
            again: true,
            ..Self::new(disk, store)
        }
    }

    /// Makes `entry` stand at `path` with what it `had`, or without a label given, with that of what it
    /// replaces. What already stands right is not touched.
    pub(crate) fn put(&mut self, path: &str, entry: &Entry, had: Had<'_>) -> Result<()> {
        if !Location::is_path(path) {
            self.unsynced.insert(NAMED.to_owned());
            return match self.disk.look(path)? {
                seen if seen == *entry => Ok(()),
                _ => self.disk.put(path, entry),
            };
        }
        if self.again {
            self.sweep(path)?;
            self.unsynced.insert(folder_of(path).to_owned());
        }
        let seen = self.disk.look(path)?;
        if seen == *entry {
            return self.give_back(path, had);
        }
        match entry {
            Entry::Absent => _ = self.take_away(path, &seen)?,
            Entry::Directory { mode, owner } => {
                // Killed while making it, a run leaves a folder without its mode, and empty: it is
                // made anew. One with something in it is in use, and stays as it is.
                if !self.take_away(path, &seen)? {
                    return Ok(());
                }
                self.disk.make_folder(path, *mode, *owner)?;
                self.give_back(path, had)?;
            }
            Entry::File { hash, mode, owner } => {
                let temporary = temporary(path);
                self.disk.remove(&temporary)?;
                self.store.copy(*hash, &temporary, *mode, *owner)?;
                self.make_way(path, &seen)?;
                let standing = match (had.label, &seen) {
                    (None, Entry::File { .. }) => self.disk.label(path)?,
                    _ => None,
                };
                let label = had.label.or(standing.as_deref());
                self.give_back(&temporary, Had { label, ..had })?;
                self.disk.sync_files(std::slice::from_ref(&temporary))?;
                self.disk.rename(&temporary, path)?;
            }
            Entry::Link { target } => {
                self.make_way(path, &seen)?;
                let temporary = temporary(path);
                self.disk.remove(&temporary)?;
                self.disk.link(&temporary, target)?;
                self.give_back(&temporary, had)?;
                self.disk.rename(&temporary, path)?;
            }
            Entry::Other => return Ok(()),
            // Nothing that stands at a path: the host says so.
            Entry::Service(_)
            | Entry::Variable { .. }
            | Entry::Image { .. }
            | Entry::Arguments { .. } => return self.disk.put(path, entry),
        }
        self.unsynced.insert(folder_of(path).to_owned());
        Ok(())
    }

    /// Gives what stands at `path` what it had, as far as it has not.
    fn give_back(&self, path: &str, had: Had<'_>) -> Result<()> {
        if let Some(attributes) = had.attributes
            && self.disk.attributes(path)? != *attributes
        {
            self.disk.set_attributes(path, attributes)?;
        }
        match had.label {
            Some(label) if self.disk.label(path)?.as_deref() != Some(label) => {
                self.disk.set_label(path, label)
            }
            _ => Ok(()),
        }
    }

    /// Removes what was seen; `false` if it is a folder with somebody else's files, which stays.
    fn take_away(&mut self, path: &str, seen: &Entry) -> Result<bool> {
        match seen {
            Entry::Absent => Ok(true),
            Entry::Directory { .. } => self.disk.remove_folder(path),
            _ => self.disk.remove(path).map(|()| true),
        }
    }

    /// A file or a link replaces anything in one instant, but not a folder.
    fn make_way(&mut self, path: &str, seen: &Entry) -> Result<()> {
        // A folder of ours that a file replaces is empty by now, or somebody is using it.
        if matches!(seen, Entry::Directory { .. }) && !self.take_away(path, seen)? {
            let in_use = std::io::ErrorKind::DirectoryNotEmpty;
            return Err(Error::path("replace folder", path, in_use));
        }
        Ok(())
    }

    /// Removes what a killed run may have left next to `path`.
    fn sweep(&mut self, path: &str) -> Result<()> {
        let temporary = temporary(path);
        if self.disk.look(&temporary)? != Entry::Absent {
            self.disk.remove(&temporary)?;
        }
        Ok(())
    }

    /// Makes everything that was put durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        for folder in std::mem::take(&mut self.unsynced) {
            match self.disk.sync_folder(&folder) {
                // A folder that went, or became a file, has nothing left to lose.
                Err(Error::Path { source, .. })
                    if matches!(source.kind(), NotFound | NotADirectory) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Writes a file of ours at `path`, so that after a power cut it is there whole or not at all.
pub(crate) fn write_durably<D: Disk>(disk: &D, path: &str, contents: &[u8]) -> Result<()> {
    let temporary = temporary(path);
    disk.remove(&temporary)?;
    disk.create(
        &temporary,
        contents,
        0o600,
        evenkeel_plan::machine::entry::Ids::default(),
    )?;
    disk.sync_files(std::slice::from_ref(&temporary))?;
    disk.rename(&temporary, path)?;
    disk.sync_folder(folder_of(path))
}

//! How one path goes from one entry to another: atomically, durably, and twice as well as once.

use evenkeel_plan::entry::{Entry, Hash};

use crate::disk::Disk;
use crate::store::Store;
use crate::{Error, Result};

/// Brings the paths of a plan where they belong, and remembers which folders are not yet durable.
pub(crate) struct Placer<'a, D> {
    disk: &'a D,
    store: Store<'a, D>,
    unsynced: std::collections::BTreeSet<String>,
}

impl<'a, D: Disk> Placer<'a, D> {
    pub(crate) fn new(disk: &'a D, store: Store<'a, D>) -> Self {
        Self {
            disk,
            store,
            unsynced: std::collections::BTreeSet::new(),
        }
    }

    /// Makes `entry` stand at `path`. What already stands right is not touched.
    pub(crate) fn put(&mut self, path: &str, entry: &Entry) -> Result<()> {
        let seen = self.disk.look(path)?;
        if seen == *entry {
            return Ok(());
        }
        if matches!(
            (&seen, entry),
            (
                Entry::Directory { .. },
                Entry::File { .. } | Entry::Link { .. }
            )
        ) {
            // A folder of ours that a file replaces is empty by now, or somebody is using it.
            self.take_away(path, &seen)?;
        }
        match entry {
            Entry::Absent => self.take_away(path, &seen)?,
            Entry::Directory { mode, owner } => {
                if matches!(seen, Entry::Directory { .. }) {
                    // Ours once, changed since: its mode is not worth removing what is in it.
                    return Ok(());
                }
                if seen != Entry::Absent {
                    self.take_away(path, &seen)?;
                }
                self.disk.make_folder(path, *mode, *owner)?;
            }
            Entry::File { hash, mode, owner } => {
                let contents = self.store.get(*hash)?;
                let temporary = temporary(path);
                self.disk.remove(&temporary)?;
                self.disk
                    .create(&temporary, &contents, *mode, *owner, path)?;
                self.disk.sync_files(std::slice::from_ref(&temporary))?;
                self.disk.rename(&temporary, path)?;
            }
            Entry::Link { target } => {
                let temporary = temporary(path);
                self.disk.remove(&temporary)?;
                self.disk.link(&temporary, target)?;
                self.disk.rename(&temporary, path)?;
            }
            Entry::Other => return Ok(()),
        }
        self.unsynced.insert(folder_of(path).to_owned());
        Ok(())
    }

    fn take_away(&mut self, path: &str, seen: &Entry) -> Result<()> {
        match seen {
            Entry::Absent => Ok(()),
            // Somebody else's files are in it: the folder stays, and only that.
            Entry::Directory { .. } => self.disk.remove_folder(path).map(|_| ()),
            _ => self.disk.remove(path),
        }
    }

    /// Removes what a killed run may have left beside `path`.
    pub(crate) fn sweep(&mut self, path: &str) -> Result<()> {
        let temporary = temporary(path);
        if self.disk.look(&temporary)? != Entry::Absent {
            self.disk.remove(&temporary)?;
            self.unsynced.insert(folder_of(path).to_owned());
        }
        Ok(())
    }

    /// Makes everything that was put durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        for folder in std::mem::take(&mut self.unsynced) {
            match self.disk.sync_folder(&folder) {
                // A folder that was made and removed again has nothing left to lose.
                Err(Error::Path { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound => {}
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
        evenkeel_plan::entry::Ids::default(),
        path,
    )?;
    disk.sync_files(std::slice::from_ref(&temporary))?;
    disk.rename(&temporary, path)?;
    disk.sync_folder(folder_of(path))
}

/// The name under which a path is made ready. It is the same each time, so that leftovers are found.
pub(crate) fn temporary(path: &str) -> String {
    let hash = Hash::of(path.as_bytes()).to_string();
    format!(
        "{}/.evenkeel-{}",
        folder_of(path).trim_end_matches('/'),
        &hash[..16]
    )
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(end) => &path[..end],
    }
}

//! Contents on disk, by hash: what healing puts back, and what pruning restores.

use std::collections::BTreeSet;

use evenkeel_plan::machine::entry::{Entry, Hash, Ids};

use crate::disk::Disk;
use crate::temporary::temporary;
use crate::{Error, Result};

/// More than this at a time are made durable together.
const BATCH: usize = 256;

/// Where contents come from that are not in the store yet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ContentSource<'c> {
    /// From whoever has them in memory.
    Bytes(&'c [u8]),
    /// From where they stand.
    At(&'c str),
}

/// The store of one machine.
#[derive(Debug)]
pub(crate) struct Store<'a, D> {
    disk: &'a D,
    folder: &'a str,
}

impl<D> Clone for Store<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Store<'_, D> {}

impl<'a, D: Disk> Store<'a, D> {
    pub(crate) fn new(disk: &'a D, folder: &'a str) -> Self {
        Self { disk, folder }
    }

    /// The contents with this hash, checked, for whoever wants to see them.
    pub(crate) fn get(&self, hash: Hash) -> Result<Vec<u8>> {
        self.disk
            .read(&self.path(hash))?
            .filter(|contents| Hash::of(contents) == hash)
            .ok_or_else(|| self.lost(hash))
    }

    /// Makes a new file with the contents with this hash, checked; if they are not there, no file.
    pub(crate) fn copy(&self, hash: Hash, path: &str, mode: u32, owner: Ids) -> Result<()> {
        match self.disk.copy(&self.path(hash), path, mode, owner)? {
            Some(found) if found == hash => Ok(()),
            found => {
                if found.is_some() {
                    self.disk.remove(path)?;
                }
                Err(self.lost(hash))
            }
        }
    }

    fn lost(&self, hash: Hash) -> Error {
        Error::Lost {
            path: self.folder.to_owned(),
            hash: hash.to_string(),
        }
    }

    /// Keeps contents durably; those that are there already are not written again.
    ///
    /// `find` says where those with a hash are. What is there is checked.
    pub(crate) fn keep<'c>(
        &self,
        hashes: &BTreeSet<Hash>,
        find: impl Fn(Hash) -> Option<ContentSource<'c>>,
    ) -> Result<()> {
        let missing: Vec<Hash> = hashes
            .iter()
            .copied()
            .filter(|hash| !self.has(*hash))
            .collect();
        for batch in missing.chunks(BATCH) {
            let mut ready = Vec::with_capacity(batch.len());
            for hash in batch {
                let path = self.path(*hash);
                let temporary = temporary(&path);
                self.disk.remove(&temporary)?;
                let owner = Ids::default();
                let kept = match find(*hash) {
                    Some(ContentSource::Bytes(bytes)) if Hash::of(bytes) == *hash => {
                        self.disk.create(&temporary, bytes, 0o600, owner)?;
                        Some(*hash)
                    }
                    Some(ContentSource::At(place)) => {
                        self.disk.copy(place, &temporary, 0o600, owner)?
                    }
                    Some(ContentSource::Bytes(_)) | None => None,
                };
                if kept != Some(*hash) {
                    self.disk.remove(&temporary)?;
                    return Err(self.lost(*hash));
                }
                ready.push((temporary, path));
            }
            let temporaries: Vec<String> = ready
                .iter()
                .map(|(temporary, _)| temporary.clone())
                .collect();
            self.disk.sync_files(&temporaries)?;
            for (temporary, path) in ready {
                self.disk.rename(&temporary, &path)?;
            }
        }
        // Also when all is there: a killed run may have put it there without making it durable.
        if hashes.is_empty() {
            Ok(())
        } else {
            self.disk.sync_folder(self.folder)
        }
    }

    /// Forgets everything but `keep`.
    pub(crate) fn forget_all_but(&self, keep: &BTreeSet<Hash>) -> Result<()> {
        for name in self.disk.list(self.folder)? {
            let kept = name.parse().is_ok_and(|hash| keep.contains(&hash));
            if !kept {
                self.disk.remove(&format!("{}/{name}", self.folder))?;
            }
        }
        Ok(())
    }

    pub(crate) fn has(&self, hash: Hash) -> bool {
        self.disk
            .look(&self.path(hash))
            .is_ok_and(|entry| entry.hash() == Some(hash) && entry != Entry::Absent)
    }

    fn path(&self, hash: Hash) -> String {
        format!("{}/{hash}", self.folder)
    }
}

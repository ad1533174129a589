//! Contents on disk, by hash: what healing puts back, and what pruning restores.

use std::collections::BTreeSet;

use evenkeel_plan::entry::{Entry, Hash, Ids};

use crate::disk::Disk;
use crate::place::temporary;
use crate::{Error, Result};

/// More than this at a time are made durable together.
const BATCH: usize = 256;

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

    /// The contents with this hash, checked.
    pub(crate) fn get(&self, hash: Hash) -> Result<Vec<u8>> {
        self.disk
            .read(&self.path(hash))?
            .filter(|contents| Hash::of(contents) == hash)
            .ok_or_else(|| Error::Lost {
                path: self.folder.to_owned(),
                hash: hash.to_string(),
            })
    }

    /// Keeps contents durably; those that are there already are not written again.
    ///
    /// `fetch` gives the bytes of a hash. What it gives is checked.
    pub(crate) fn keep(
        &self,
        hashes: &BTreeSet<Hash>,
        mut fetch: impl FnMut(Hash) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        let missing: Vec<Hash> = hashes
            .iter()
            .copied()
            .filter(|hash| !self.has(*hash))
            .collect();
        for batch in missing.chunks(BATCH) {
            let mut ready = Vec::with_capacity(batch.len());
            for hash in batch {
                let contents = fetch(*hash)?
                    .filter(|contents| Hash::of(contents) == *hash)
                    .ok_or_else(|| Error::Lost {
                        path: self.folder.to_owned(),
                        hash: hash.to_string(),
                    })?;
                let path = self.path(*hash);
                let temporary = temporary(&path);
                self.disk.remove(&temporary)?;
                self.disk
                    .create(&temporary, &contents, 0o600, Ids::default())?;
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

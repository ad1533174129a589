//! Folders that live as long as their owner, and not longer than the test run.

use std::path::{Path, PathBuf};

use crate::{Doing, Result, reaper};

/// Every folder of a test run begins like this, so that leftovers can be told.
pub const PREFIX: &str = "evenkeel-testbed-";

/// A folder of its own, removed on `Drop`, and by the [`reaper`] if the process dies first.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a folder with `name` in its own name.
    pub fn new(name: &str) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{name}-"))
            .tempdir()
            .doing(|| "cannot create a scratch folder: check that the disk is not full")?
            .keep();
        reaper::folder(&folder)?;
        Ok(Self(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed yet (a mount that is still busy) stays with the reaper.
        if std::fs::remove_dir_all(&self.0).is_ok() {
            reaper::removed(&self.0);
        }
    }
}

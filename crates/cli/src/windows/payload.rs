//! The payload of Windows instances, as `evenkeel check` reads it.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use evenkeel_api::windows::payload::{self, Opened, gather, written};
use sha2::{Digest, Sha256};

/// Whether the payload in `folder` can be used; else everything that is wrong with it. Fails if it cannot be
/// read.
pub(crate) fn open(folder: &Path) -> Result<std::result::Result<Opened, Vec<String>>> {
    let list = |inside: &str| {
        let here = folder.join(inside);
        listed(&here).with_context(|| format!("cannot read {}", here.display()))
    };
    let sum = |path: &str| {
        let here = folder.join(path);
        checksum(&here).with_context(|| format!("cannot read {}", here.display()))
    };
    let found = gather(list, sum)?;
    let text =
        |name: &str| std::fs::read_to_string(folder.join(name)).map_err(|error| error.to_string());
    Ok(payload::open(&found, text))
}

fn listed(folder: &Path) -> std::io::Result<Vec<(String, bool)>> {
    let one = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        Ok((name, entry.path().is_dir()))
    };
    folder.read_dir()?.map(one).collect()
}

fn checksum(path: &Path) -> std::io::Result<String> {
    let mut digest = Sha256::new();
    std::io::copy(&mut File::open(path)?, &mut digest)?;
    Ok(written(digest))
}

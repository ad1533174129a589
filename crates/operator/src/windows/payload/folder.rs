//! The files of a payload's folder.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use evenkeel_api::windows::payload::{PayloadFile, gather, written};
use sha2::{Digest, Sha256};

use super::PayloadError;

/// How much of a file is in memory at once.
const BLOCK: usize = 256 * 1024;

/// Every file of a payload with its checksum. Links are followed.
pub(super) fn files(folder: &Path) -> Result<Vec<PayloadFile>, PayloadError> {
    let list = |inside: &str| {
        let here = folder.join(inside);
        listed(&here).map_err(|error| PayloadError::reading(&here, &error))
    };
    let sum = |path: &str| {
        let local = folder.join(path);
        checksum(&local).map_err(|error| PayloadError::reading(&local, &error))
    };
    gather(list, sum)
}

fn listed(folder: &Path) -> std::io::Result<Vec<(String, bool)>> {
    let one = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        Ok((name, entry.path().is_dir()))
    };
    std::fs::read_dir(folder)?.map(one).collect()
}

fn checksum(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(written(digest)),
            count => digest.update(&block[..count]),
        }
    }
}

/// The text of one of them.
pub(super) fn text(folder: &Path, name: &str) -> Result<String, String> {
    std::fs::read_to_string(folder.join(name)).map_err(|error| error.to_string())
}

//! Archives that depend on nothing but their contents: sorted, owned by nobody in particular, and as old as
//! the commit.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

/// The SHA-256 of `contents`, in hexadecimal digits.
pub fn sha256(contents: &[u8]) -> String {
    format!("{:x}", Sha256::digest(contents))
}

/// A file of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    mode: u32,
    contents: Vec<u8>,
}

/// Files by path, each with its mode. Folders follow from the paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    /// Adds a file that everybody may read.
    pub fn file(&mut self, path: &str, contents: impl Into<Vec<u8>>) {
        self.add(path, 0o644, contents.into());
    }

    /// Adds a file that everybody may run.
    pub fn program(&mut self, path: &str, contents: impl Into<Vec<u8>>) {
        self.add(path, 0o755, contents.into());
    }

    fn add(&mut self, path: &str, mode: u32, contents: Vec<u8>) {
        let path = path.trim_start_matches('/').to_owned();
        self.entries.insert(path, Entry { mode, contents });
    }

    /// Adds all files below `folder`, under `prefix`.
    pub fn folder(&mut self, prefix: &str, folder: &Path) -> Result<()> {
        let entries = std::fs::read_dir(folder)
            .with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if path.is_dir() {
                self.folder(&format!("{prefix}/{name}"), &path)?;
            } else {
                let contents = std::fs::read(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                self.file(&format!("{prefix}/{name}"), contents);
            }
        }
        Ok(())
    }

    /// The archive as tar, with `time` (seconds since 1970) as the age of everything.
    pub fn tar(&self, time: u64) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut folders = std::collections::BTreeSet::new();
        for (path, entry) in &self.entries {
            for (at, _) in path.match_indices('/') {
                let folder = path.get(..=at).unwrap_or_default();
                if folders.insert(folder) {
                    let mut header = header(0o755, time);
                    header.set_entry_type(tar::EntryType::Directory);
                    tar.append_data(&mut header, folder, std::io::empty())?;
                }
            }
            let mut header = header(entry.mode, time);
            header.set_size(entry.contents.len().try_into()?);
            tar.append_data(&mut header, path, entry.contents.as_slice())?;
        }
        Ok(tar.into_inner()?)
    }

    /// The archive as compressed tar.
    pub fn tar_gz(&self, time: u64) -> Result<Vec<u8>> {
        gzip(&self.tar(time)?)
    }
}

fn header(mode: u32, time: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_mode(mode);
    header.set_mtime(time);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

/// Compresses `contents`, without a name or a time in the result.
pub fn gzip(contents: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    gzip.write_all(contents)?;
    Ok(gzip.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(tar: &[u8]) -> Vec<(String, u32, u64)> {
        let mut archive = tar::Archive::new(tar);
        let entries = archive.entries().unwrap();
        let facts = entries.map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let header = entry.header();
            (path, header.mode().unwrap(), header.mtime().unwrap())
        });
        facts.collect()
    }

    #[test]
    fn an_archive_depends_on_its_contents_alone() {
        let mut one = Archive::default();
        one.program("/usr/bin/b", "two");
        one.file("a", "one");
        let mut other = Archive::default();
        other.file("a", "one");
        other.program("usr/bin/b", "two");
        let tar = one.tar(7).unwrap();
        assert_eq!(tar, other.tar(7).unwrap());
        assert_eq!(one.tar_gz(7).unwrap(), other.tar_gz(7).unwrap());
        let entries = [
            ("a", 0o644),
            ("usr/", 0o755),
            ("usr/bin/", 0o755),
            ("usr/bin/b", 0o755),
        ];
        let entries = entries.map(|(path, mode)| (path.to_owned(), mode, 7));
        assert_eq!(paths(&tar), entries);
    }

    #[test]
    fn a_checksum_is_that_of_the_standard() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b""), empty);
    }
}

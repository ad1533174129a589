//! The files that the machine's kernel finds in memory: shell, modules, the program and its
//! libraries. The archive is written by hand; it is a header of numbers before each file.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::output;
use crate::{Doing, Result};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const HEADER: usize = 110;

/// An archive that grows; the folders above a file are added with it.
#[derive(Debug, Default)]
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    folders: BTreeSet<PathBuf>,
    entries: u32,
}

impl Initramfs {
    /// Adds an empty folder.
    pub(super) fn folder(&mut self, path: &str) {
        self.folders_down_to(Path::new(path));
    }

    /// Adds a file, which can be run.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        let path = Path::new(path);
        if let Some(above) = path.parent() {
            self.folders_down_to(above);
        }
        self.entry(path.as_os_str(), PROGRAM, content);
    }

    /// Adds a copy of a file of this machine.
    pub(super) fn copy(&mut self, from: &Path, to: &str) -> Result<()> {
        let content = std::fs::read(from).doing(|| format!("cannot read {}", from.display()))?;
        self.file(to, &content);
        Ok(())
    }

    /// Adds a program of this machine with the libraries it is linked to, where it looks for them.
    pub(super) fn program(&mut self, program: &Path, to: &str) -> Result<()> {
        self.copy(program, to)?;
        // It fails for a static program, which needs none.
        let list = output(Command::new("ldd").arg(program), &[])?;
        for library in libraries(&String::from_utf8_lossy(&list.stdout)) {
            self.copy(Path::new(library), library)?;
        }
        Ok(())
    }

    /// The archive. Another one may follow it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(OsStr::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    fn folders_down_to(&mut self, path: &Path) {
        let mut folders: Vec<_> = path.ancestors().collect();
        folders.reverse();
        for folder in folders {
            if folder.parent().is_some() && self.folders.insert(folder.to_owned()) {
                self.entry(folder.as_os_str(), FOLDER, &[]);
            }
        }
    }

    fn entry(&mut self, path: &OsStr, mode: u32, content: &[u8]) {
        self.entries += 1;
        let name = path.as_bytes();
        let name = name.strip_prefix(b"/").unwrap_or(name);
        let (number, size, length) = (self.entries, content.len(), name.len() + 1);
        // Magic, inode, mode, owner, group, links, time, size, two devices, length of name, no sum.
        let header = format!(
            "070701{number:08X}{mode:08X}{0:08X}{0:08X}{1:08X}{0:08X}{size:08X}{0:08X}{0:08X}{0:08X}{0:08X}{length:08X}{0:08X}",
            0, 1
        );
        debug_assert_eq!(header.len(), HEADER);
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let whole = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(whole, 0);
    }
}

/// The files that `ldd` names. The kernel's own library has no file.
fn libraries(ldd: &str) -> impl Iterator<Item = &str> {
    ldd.lines().filter_map(|line| {
        let named = line.split_once("=> ").map_or(line, |(_, file)| file);
        named
            .trim()
            .split(" (0x")
            .next()
            .filter(|file| file.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_with_a_file_is_taken() {
        let ldd = "\
\tlinux-vdso.so.1 (0x00007ffe)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f2a)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f2b)";
        assert_eq!(
            libraries(ldd).collect::<Vec<_>>(),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert_eq!(libraries("\tstatically linked").count(), 0);
    }

    #[test]
    fn a_folder_is_in_the_archive_once_and_before_its_files() {
        let mut archive = Initramfs::default();
        archive.file("/a/one", b"1");
        archive.file("/a/two", b"2");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<_> = text
            .split("070701")
            .skip(1)
            .map(|entry| entry[104..].split('\0').next().unwrap())
            .collect();
        assert_eq!(names, ["a", "a/one", "a/two", "TRAILER!!!"]);
    }
}

//! Files and folders of a Windows machine, and its lock. Places that are no paths are passed on.
//!
//! A path is written with `/` here, which Windows takes as well as its own. Permission bits mean
//! nothing there: a file has none, and of a folder only "private" counts when it is made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::windows::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use evenkeel_plan::machine::attributes::Attributes;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use evenkeel_plan::machine::place::Location;
use sha2::{Digest, Sha256};
use windows_sys::Win32::Foundation::{ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, GENERIC_WRITE};
use windows_sys::Win32::Storage::FileSystem::FILE_FLAG_BACKUP_SEMANTICS;

use super::registry::Key;
use super::services::Services;
use super::{environment, private, services};
use crate::disk::{Disk, Folder, NAMED};
use crate::temporary::temporary;
use crate::{Error, Result};

/// What every folder is said to be.
const FOLDER_MODE: u32 = 0o755;
/// So many programs that ran can lie aside of one path before we give up.
const MOST_ASIDE: u32 = 64;

/// The disk, the registry and the service manager of this machine.
#[derive(Debug, Default)]
pub struct WindowsDisk {
    pub(super) services: Arc<Services>,
}

/// The machine is claimed until this is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// A drive by itself is its root folder.
fn rooted(path: &str) -> String {
    if path.ends_with(':') {
        format!("{path}/")
    } else {
        path.to_owned()
    }
}

impl Disk for WindowsDisk {
    type Lock = Lock;

    fn look(&self, path: &str) -> Result<Entry> {
        match Location::of(path) {
            Location::Service(name) => self.services.look(name),
            Location::Variable(name) => environment::look(name),
            Location::Path(path) => {
                look_at(&rooted(path)).map_err(|error| Error::path("read", path, error))
            }
        }
    }

    fn folder(&self, path: &str) -> Result<Folder> {
        match fs::metadata(rooted(path)) {
            Ok(found) if found.is_dir() => Ok(Folder::There),
            Ok(_) => Ok(Folder::Blocked("is a file".to_owned())),
            Err(error) if is_missing(&error) => Ok(Folder::Missing),
            Err(error) => Err(Error::path("inspect", path, error)),
        }
    }

    fn read_up_to(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>> {
        let read = || -> io::Result<Option<Vec<u8>>> {
            if !fs::symlink_metadata(path)?.is_file() {
                return Ok(None);
            }
            // One more tells of a file that is larger.
            let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
            let mut contents = Vec::new();
            File::open(path)?.take(limit).read_to_end(&mut contents)?;
            if contents.len() > most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Ok(Some(contents))
        };
        match read() {
            Err(error) if is_missing(&error) => Ok(None),
            other => other.map_err(|error| Error::path("read", path, error)),
        }
    }

    fn copy(&self, from: &str, path: &str, _: u32, _: Ids) -> Result<Option<Hash>> {
        let open = || -> io::Result<Option<File>> {
            let is_file = fs::symlink_metadata(from)?.is_file();
            is_file.then(|| File::open(from)).transpose()
        };
        let file = match open() {
            Err(error) if is_missing(&error) => return Ok(None),
            other => other.map_err(|error| Error::path("read", from, error))?,
        };
        let Some(file) = file else {
            return Ok(None);
        };
        let new = OpenOptions::new().write(true).create_new(true).open(path);
        new.and_then(|mut new| pass(file, |piece| new.write_all(piece)))
            .map(Some)
            .map_err(|error| Error::path("write", path, error))
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let names = || -> io::Result<Vec<String>> {
            fs::read_dir(rooted(path))?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        };
        match names() {
            Ok(mut names) => {
                names.sort();
                Ok(names)
            }
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            Err(error) => Err(Error::path("list", path, error)),
        }
    }

    fn label(&self, _: &str) -> Result<Option<String>> {
        Ok(None)
    }

    fn set_label(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn attributes(&self, _: &str) -> Result<Attributes> {
        Ok(Attributes::default())
    }

    fn set_attributes(&self, _: &str, _: &Attributes) -> Result<()> {
        Ok(())
    }

    fn create(&self, path: &str, contents: &[u8], _: u32, _: Ids) -> Result<()> {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .and_then(|mut file| file.write_all(contents))
            .map_err(|error| Error::path("write", path, error))
    }

    fn link(&self, path: &str, target: &str) -> Result<()> {
        std::os::windows::fs::symlink_file(target, path)
            .map_err(|error| Error::path("create link", path, error))
    }

    fn make_folder(&self, path: &str, mode: u32, _: Ids) -> Result<()> {
        let is_private = mode.trailing_zeros() >= 6;
        let made = if is_private {
            private::make(path)
        } else {
            fs::create_dir(path)
        };
        made.map_err(|error| Error::path("create folder", path, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let failed = |error| Error::path("replace", to, error);
        sweep_aside(to);
        match fs::rename(from, to) {
            Err(error) if is_in_use(&error) => {
                // A program that runs cannot be replaced, but it can be renamed.
                put_aside(to).map_err(failed)?;
                fs::rename(from, to).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    fn remove(&self, path: &str) -> Result<()> {
        let removed = match fs::remove_file(path) {
            Err(error) if is_in_use(&error) => put_aside(path),
            other => other,
        };
        match removed {
            Err(error) if is_missing(&error) => Ok(()),
            other => other.map_err(|error| Error::path("remove", path, error)),
        }
    }

    fn remove_folder(&self, path: &str) -> Result<bool> {
        match fs::remove_dir(path) {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            Err(error) => Err(Error::path("remove folder", path, error)),
        }
    }

    fn sync_files(&self, paths: &[String]) -> Result<()> {
        for path in paths {
            OpenOptions::new()
                .write(true)
                .open(path)
                .and_then(|file| file.sync_all())
                .map_err(|error| Error::path("sync to disk", path, error))?;
        }
        Ok(())
    }

    fn sync_folder(&self, path: &str) -> Result<()> {
        if path == NAMED {
            // Services and variables are of one hive.
            return Key::read(services::KEY)?.map_or(Ok(()), |key| key.flush());
        }
        let opened = OpenOptions::new()
            .access_mode(GENERIC_WRITE)
            .custom_flags(FILE_FLAG_BACKUP_SEMANTICS)
            .open(rooted(path));
        match opened.and_then(|folder| folder.sync_all()) {
            Err(error) if is_missing(&error) => Err(Error::path("sync to disk", path, error)),
            // Some file systems have no such thing; their names are durable with the file.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn put(&self, place: &str, entry: &Entry) -> Result<()> {
        match Location::of(place) {
            Location::Service(name) => self.services.put(name, entry),
            Location::Variable(name) => environment::put(name, entry),
            Location::Path(path) => {
                let unsupported = io::ErrorKind::Unsupported;
                Err(Error::path("write", path, unsupported))
            }
        }
    }

    fn lock(&self, path: &str) -> Result<Lock> {
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .share_mode(0)
            .open(path);
        match opened {
            Ok(file) => Ok(Lock { _file: file }),
            Err(error) if is(&error, ERROR_SHARING_VIOLATION) => Err(Error::Busy {
                path: path.to_owned(),
            }),
            Err(error) => Err(Error::path("lock", path, error)),
        }
    }

    fn stand_in(&self) -> Option<u32> {
        None
    }
}

fn look_at(path: &str) -> io::Result<Entry> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if is_missing(&error) => return Ok(Entry::Absent),
        Err(error) => return Err(error),
    };
    if found.is_symlink() {
        let target = fs::read_link(path)?.to_string_lossy().into_owned();
        return Ok(Entry::Link { target });
    }
    if found.is_dir() {
        return Ok(Entry::Directory {
            mode: FOLDER_MODE,
            owner: Ids::default(),
        });
    }
    match hash_of(path) {
        // It went between the two looks.
        Err(error) if is_missing(&error) => Ok(Entry::Absent),
        hash => Ok(Entry::File {
            hash: hash?,
            mode: 0,
            owner: Ids::default(),
        }),
    }
}

/// All files below a folder. What is in a link is elsewhere.
pub(super) fn files_below(path: &str) -> io::Result<Vec<String>> {
    let top = Path::new(path);
    let (mut files, mut folders) = (Vec::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        let inside = match fs::read_dir(&folder) {
            // Somebody took it away meanwhile, or there never was one.
            Err(error) if is_missing(&error) => continue,
            inside => inside?,
        };
        for entry in inside {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Some(text) = entry.path().to_str() {
                files.push(text.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The hash of a file, which is never in memory as a whole.
pub(super) fn hash_of(path: &str) -> io::Result<Hash> {
    pass(File::open(path)?, |_| Ok(()))
}

/// Passes a file on in pieces, and says what its hash is.
fn pass(mut file: File, mut on: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<Hash> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = file.read(&mut buffer)?;
        let piece = buffer.get(..length).unwrap_or_default();
        if piece.is_empty() {
            return Ok(Hash::from_digest(digest.finalize().into()));
        }
        digest.update(piece);
        on(piece)?;
    }
}

/// Where what stands at `path` goes if it is in use.
fn aside(path: &str, number: u32) -> String {
    format!("{}-{number}.aside", temporary(path))
}

fn put_aside(path: &str) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..MOST_ASIDE {
        let place = aside(path, number);
        if fs::symlink_metadata(&place).is_ok() {
            continue;
        }
        match fs::rename(path, &place) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Removes what lies aside of `path` and is no longer in use.
fn sweep_aside(path: &str) {
    for number in 0..MOST_ASIDE {
        // In use still, or never there: either way there is nothing to do.
        if fs::remove_file(aside(path, number)).is_err_and(|error| is_missing(&error)) {
            break;
        }
    }
}

pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn is_in_use(error: &io::Error) -> bool {
    is(error, ERROR_ACCESS_DENIED) || is(error, ERROR_SHARING_VIOLATION)
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

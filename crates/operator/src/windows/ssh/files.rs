//! Files of an instance, over SFTP. What is copied is written next to its place and renamed, so that
//! nobody ever sees half of it; what broke off goes on where it was.

use std::io::SeekFrom;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_api::names::windows::PAYLOAD;
use prometheus_client::metrics::counter::Counter;
use russh_sftp::client::fs::DirEntry;
use russh_sftp::client::{Config, SftpSession};
use russh_sftp::protocol::{OpenFlags, StatusCode};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::source::{Local, ReadFrom};
use super::{Error, Result, Session, Ssh};

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(30);
/// How many writes are on their way at once, and how large each is.
const WRITES: usize = 64;
const WRITE: u32 = 32 * 1024;
/// What is read of a local file at once.
const CHUNK: usize = 256 * 1024;
/// So much of what was written last may not have arrived when a copy broke off.
const UNSURE: u64 = 2 * WRITES as u64 * WRITE as u64;
/// How long after a failure it may take until it is known that the connection is gone.
const CLOSED: Duration = Duration::from_millis(200);
/// How much of a checksum marks a part of a file.
const MARK: usize = 16;
const MIB: u64 = 1024 * 1024;

/// What is at a place, without following it anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Nothing,
    Folder,
    File,
    /// A symbolic link, a junction, or another reparse point.
    Link,
}

/// How far copies are. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Bytes that are there, also those that were before.
    there: Arc<AtomicU64>,
    /// Bytes that were sent.
    sent: Counter,
}

impl Progress {
    /// One that also counts what is sent in `sent`.
    pub(crate) fn counted_in(sent: &Counter) -> Self {
        Self {
            there: Arc::default(),
            sent: sent.clone(),
        }
    }

    /// How many bytes are there.
    pub(crate) fn there(&self) -> u64 {
        self.there.load(Ordering::Relaxed)
    }
}

/// The files of an instance.
pub(crate) struct Files {
    ssh: Ssh,
    line: watch::Receiver<()>,
    pub(super) sftp: Arc<SftpSession>,
}

impl Session {
    /// Opens the way to its files.
    pub(crate) async fn files(&self) -> Result<Files> {
        let handle = self.handle.clone();
        let open = self.ssh.run(async move {
            let channel = handle.channel_open_session().await?;
            channel.request_subsystem(true, "sftp").await?;
            let config = Config {
                max_concurrent_writes: WRITES,
                max_write_packet_len: WRITE,
                request_timeout_secs: ANSWER.as_secs(),
                ..Config::default()
            };
            let sftp = SftpSession::new_with_config(channel.into_stream(), config).await;
            sftp.map_err(|error| Error::Broken(format!("cannot start SFTP: {error}")))
        });
        let silent = Error::Silent {
            doing: "opening SFTP",
            limit: ANSWER,
        };
        let sftp = timeout(ANSWER, open).await.map_err(|_| silent)??;
        Ok(Files {
            ssh: self.ssh.clone(),
            line: self.line.clone(),
            sftp: Arc::new(sftp),
        })
    }
}

impl Files {
    /// Does something there. That the connection is gone is known at once, whatever was waited for.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        tokio::select! {
            done = self.ssh.run(work) => done,
            () = self.gone() => Err(Error::Broken("the connection closed".to_owned())),
        }
    }

    /// Waits until the connection is gone.
    async fn gone(&self) {
        let mut line = self.line.clone();
        while line.changed().await.is_ok() {}
    }

    /// Refuses a machine that is no Windows.
    pub(crate) async fn must_be_windows(&self) -> Result<()> {
        let sftp = self.sftp.clone();
        let found = async move {
            // Windows takes both for one.
            for folder in ["/C:/Windows", "/C:/windows"] {
                match sftp.try_exists(folder).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => return Err(Error::Broken(error.to_string())),
                }
            }
            Err(Error::NotWindows)
        };
        self.run(found).await
    }

    /// What is there.
    pub(crate) async fn kind(&self, place: &str) -> Result<FileKind> {
        let (sftp, path) = (self.sftp.clone(), remote(place));
        let look = async move {
            match sftp.symlink_metadata(&path).await {
                Ok(found) if found.is_symlink() => Ok(FileKind::Link),
                Ok(found) if found.is_dir() => Ok(FileKind::Folder),
                Ok(_) => Ok(FileKind::File),
                Err(error) if is_missing(&error) => Ok(FileKind::Nothing),
                Err(error) => Err(failed(&path, &error)),
            }
        };
        self.run(look).await
    }

    /// Makes a folder that must not be there yet.
    pub(crate) async fn make_new_folder(&self, place: &str) -> Result<()> {
        let (sftp, path) = (self.sftp.clone(), remote(place));
        let make = async move {
            let made = sftp.create_dir(&path).await;
            made.map_err(|error| failed(&path, &error))
        };
        self.run(make).await
    }

    /// Whether nothing is in a folder.
    pub(crate) async fn is_empty(&self, place: &str) -> Result<bool> {
        let (sftp, path) = (self.sftp.clone(), remote(place));
        self.run(async move { Ok(entries(&sftp, &path).await?.is_empty()) })
            .await
    }

    /// Gives what is at a place another name; that must be free.
    pub(crate) async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (sftp, from, to) = (self.sftp.clone(), remote(from), remote(to));
        let rename = async move {
            let renamed = sftp.rename(&from, &to).await;
            renamed.map_err(|error| failed(&from, &error))
        };
        self.run(rename).await
    }

    /// Makes a folder, and those above it.
    pub(crate) async fn make_folder(&self, place: &str) -> Result<()> {
        let path = format!("{}/", remote(place.trim_end_matches('\\')));
        let sftp = self.sftp.clone();
        self.run(async move { make_folders(&sftp, &path).await })
            .await
    }

    /// Refuses to copy what does not fit.
    pub(crate) async fn must_have_room(&self, needed: u64) -> Result<()> {
        let sftp = self.sftp.clone();
        let found = async move { Ok(room(&sftp).await) };
        // A server that does not say is believed to have room: a write then tells.
        let Some(free) = self.run(found).await? else {
            return Ok(());
        };
        if free < needed {
            return Err(Error::DiskFull {
                needed: needed.div_ceil(MIB),
                free: free / MIB,
            });
        }
        Ok(())
    }

    /// Copies a file, and counts its bytes on their way.
    pub(crate) async fn put(&self, local: &Local, progress: &Progress) -> Result<()> {
        let (sftp, local, progress) = (self.sftp.clone(), local.clone(), progress.clone());
        let place = local.place.clone();
        let put = async move { put(&sftp, &local, &progress).await };
        let done = self.run(put).await;
        match done {
            Err(error) if self.is_broken(&error).await => Err(Error::Broken(format!(
                "while copying {place}; the next attempt continues there"
            ))),
            done => done,
        }
    }

    /// Whether something failed because the connection is gone, which may be known a moment later.
    async fn is_broken(&self, error: &Error) -> bool {
        matches!(error, Error::Broken(_)) || timeout(CLOSED, self.gone()).await.is_ok()
    }

    /// Puts a file that is there in the place of another one.
    pub(crate) async fn replace(&self, from: &str, place: &str) -> Result<()> {
        let (sftp, from, place) = (self.sftp.clone(), remote(from), remote(place));
        let replace = async move { put_in_place(&sftp, &from, &place).await };
        self.run(replace).await
    }

    /// Removes a file; that there is none is fine.
    pub(crate) async fn remove(&self, place: &str) -> Result<()> {
        let (sftp, path) = (self.sftp.clone(), remote(place));
        let remove = async move { settled(&path, sftp.remove_file(&path).await) };
        self.run(remove).await
    }

    /// Removes what it can of copies into a folder that broke off and that nobody goes on with: of a version that
    /// another one followed, or of a login that was good for minutes.
    pub(crate) async fn remove_parts(&self, folder: &str) -> Result<()> {
        let (sftp, path) = (self.sftp.clone(), remote(folder.trim_end_matches('\\')));
        self.run(async move { remove_parts(&sftp, &path).await })
            .await
    }

    /// Removes a folder with all that is in it; that there is none is fine.
    pub(crate) async fn remove_folder(&self, place: &str) -> Result<()> {
        let (sftp, path) = (self.sftp.clone(), remote(place.trim_end_matches('\\')));
        self.run(async move { remove_folder(&sftp, &path).await })
            .await
    }

    /// Removes a folder if nothing is in it.
    pub(crate) async fn remove_if_empty(&self, place: &str) -> Result<()> {
        let (sftp, path) = (self.sftp.clone(), remote(place.trim_end_matches('\\')));
        let remove = async move {
            // Somebody else's files keep it.
            _ = sftp.remove_dir(&path).await;
            Ok(())
        };
        self.run(remove).await
    }
}

/// `C:\k\x.exe` as SFTP writes it: `/C:/k/x.exe`.
pub(super) fn remote(place: &str) -> String {
    format!("/{}", place.replace('\\', "/"))
}

pub(super) fn failed(path: &str, why: &dyn std::fmt::Display) -> Error {
    Error::File {
        path: path.trim_start_matches('/').replace('/', "\\"),
        why: why.to_string(),
    }
}

type Answer<T> = std::result::Result<T, russh_sftp::client::error::Error>;

pub(super) fn is_missing(error: &russh_sftp::client::error::Error) -> bool {
    use russh_sftp::client::error::Error as Sftp;
    matches!(error, Sftp::Status(status) if status.status_code == StatusCode::NoSuchFile)
}

/// An answer that is also fine if there was nothing to do.
fn settled(path: &str, answer: Answer<()>) -> Result<()> {
    match answer {
        Err(error) if !is_missing(&error) => Err(failed(path, &error)),
        _ => Ok(()),
    }
}

async fn put(sftp: &SftpSession, local: &Local, progress: &Progress) -> Result<()> {
    let place = remote(&local.place);
    make_folders(sftp, &place).await?;
    let mark = local.checksum.get(..MARK).unwrap_or(&local.checksum);
    let part = format!("{place}.{mark}.part");
    let there = sftp.metadata(&part).await.ok().and_then(|it| it.size);
    let begin = there
        .filter(|it| *it <= local.size)
        .map_or(0, |it| it.saturating_sub(UNSURE));
    let mut from = ReadFrom::open(local, begin)?;
    let flags = OpenFlags::CREATE | OpenFlags::WRITE;
    let mut to = sftp
        .open_with_flags(&part, flags)
        .await
        .map_err(|error| failed(&part, &error))?;
    to.seek(SeekFrom::Start(begin))
        .await
        .map_err(|error| failed(&part, &error))?;
    progress.there.fetch_add(begin, Ordering::Relaxed);
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer, local)?;
        if count == 0 {
            break;
        }
        let piece = buffer.get(..count).unwrap_or_default();
        if let Err(error) = to.write_all(piece).await {
            return Err(no_room(sftp, local, failed(&part, &error)).await);
        }
        let count = u64::try_from(count).unwrap_or(0);
        progress.there.fetch_add(count, Ordering::Relaxed);
        progress.sent.inc_by(count);
    }
    // Every write is answered before the file counts as whole.
    if let Err(error) = to.close().await {
        return Err(no_room(sftp, local, failed(&part, &error)).await);
    }
    let size = sftp.metadata(&part).await.ok().and_then(|it| it.size);
    if size != Some(local.size) {
        _ = sftp.remove_file(&part).await;
        let why = format!(
            "has {size:?} bytes, not {}: it will be copied again",
            local.size
        );
        return Err(failed(&part, &why));
    }
    put_in_place(sftp, &part, &place).await
}

/// A program that runs can be renamed, and not be removed or written over.
async fn put_in_place(sftp: &SftpSession, part: &str, place: &str) -> Result<()> {
    if sftp.rename(part, place).await.is_ok() {
        return Ok(());
    }
    let aside = format!("{place}.old");
    _ = sftp.remove_file(&aside).await;
    settled(place, sftp.rename(place, &aside).await)?;
    sftp.rename(part, place)
        .await
        .map_err(|error| failed(place, &error))?;
    // One that still runs is removed the next time.
    _ = sftp.remove_file(&aside).await;
    Ok(())
}

/// What is free where the payload is, if the server says so.
async fn room(sftp: &SftpSession) -> Option<u64> {
    for folder in [remote(PAYLOAD.trim_end_matches('\\')), "/C:/".to_owned()] {
        if let Ok(Some(found)) = sftp.fs_info(folder).await {
            return Some(found.blocks_avail.saturating_mul(found.fragment_size));
        }
    }
    None
}

/// Says that the disk is full, if that is why it failed: the protocol has no word for it.
async fn no_room(sftp: &SftpSession, local: &Local, error: Error) -> Error {
    let Some(free) = room(sftp).await.filter(|it| *it < MIB) else {
        return error;
    };
    Error::DiskFull {
        needed: local.size.div_ceil(MIB),
        free: free / MIB,
    }
}

async fn make_folders(sftp: &SftpSession, place: &str) -> Result<()> {
    let Some((folder, _)) = place.rsplit_once('/') else {
        return Ok(());
    };
    if sftp.try_exists(folder).await.unwrap_or(false) {
        return Ok(());
    }
    let starts = folder.match_indices('/').map(|(at, _)| at).skip(2);
    for end in starts.chain([folder.len()]) {
        let above = folder.get(..end).unwrap_or_default();
        if !sftp.try_exists(above).await.unwrap_or(false) {
            sftp.create_dir(above)
                .await
                .map_err(|error| failed(above, &error))?;
        }
    }
    Ok(())
}

/// What is in a folder; nothing if there is none.
async fn entries(sftp: &SftpSession, folder: &str) -> Result<Vec<DirEntry>> {
    match sftp.read_dir(folder).await {
        Ok(entries) => Ok(entries.collect()),
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        Err(error) => Err(failed(folder, &error)),
    }
}

/// Whether a file is one of ours that is not whole.
fn is_part(name: &str) -> bool {
    let whole = name.strip_suffix(".part");
    let mark = whole.and_then(|it| it.rsplit_once('.')).map(|it| it.1);
    mark.is_some_and(|it| it.len() == MARK && it.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

async fn remove_parts(sftp: &SftpSession, folder: &str) -> Result<()> {
    for entry in entries(sftp, folder).await? {
        let name = entry.file_name();
        if is_part(&name) && !entry.file_type().is_dir() {
            // One that a dead connection still holds open is removed the next time.
            _ = sftp.remove_file(format!("{folder}/{name}")).await;
        }
    }
    Ok(())
}

async fn remove_folder(sftp: &SftpSession, top: &str) -> Result<()> {
    let mut folders = vec![top.to_owned()];
    let mut at = 0;
    while let Some(folder) = folders.get(at).cloned() {
        at += 1;
        for entry in entries(sftp, &folder).await? {
            let path = format!("{folder}/{}", entry.file_name());
            if entry.file_type().is_dir() {
                folders.push(path);
            } else {
                settled(&path, sftp.remove_file(&path).await)?;
            }
        }
    }
    for folder in folders.iter().rev() {
        settled(folder, sftp.remove_dir(folder).await)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_left_half_copied_is_a_part() {
        for ours in [
            "login.1794941404282637.part",
            "kubelet.exe.0123456789abcdef.part",
        ] {
            assert!(is_part(ours), "{ours}");
        }
        for not_ours in [
            "login",
            "film.part",
            "film.1.part",
            "0123456789abcdef.part",
            "kubelet.exe.0123456789abcdeg.part",
            "kubelet.exe.0123456789abcdef.part.txt",
        ] {
            assert!(!is_part(not_ours), "{not_ours}");
        }
    }
}

//! The sockets in one folder of the machine, and the moment when they may be others, from the kernel's
//! notifications, or, at a limit of the kernel's, by looking now and then. The folder need not be there yet.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_plan::machine::pace::LOOKS_AGAIN;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::{Error, Result};

/// What changes which names are in a folder, or which folder it is.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// How many folders above the last one that is there are watched.
const ABOVE: usize = 2;

/// A folder with sockets.
#[derive(Debug)]
pub struct Sockets {
    folder: PathBuf,
    /// The folders on the way to it from the machine's root, and itself.
    way: Vec<PathBuf>,
    /// Nothing if the machine has no more of these for us.
    inotify: Option<AsyncFd<OwnedFd>>,
    /// Some folder is not watched: it is looked at now and then.
    is_blind: AtomicBool,
}

impl Sockets {
    /// The sockets in `folder` of the machine whose root is at `root`.
    pub fn below(root: &Path, folder: &str) -> Result<Self> {
        let failed = |error: std::io::Error| Error::path("watch", folder, error);
        let inotify = match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(inotify) => {
                // SAFETY: the descriptor is owned by what is made here, which neither closes nor replaces it before
                // it is dropped.
                let inotify = unsafe { AsyncFd::register(inotify) };
                Some(inotify.map_err(|error| failed(error.into()))?)
            }
            Err(Errno::MFILE) => None,
            Err(error) => return Err(failed(error.into())),
        };
        let folder = root.join(folder.trim_start_matches('/'));
        let way = folder.ancestors().take_while(|it| it.starts_with(root));
        let mut way: Vec<PathBuf> = way.map(Path::to_path_buf).collect();
        way.reverse();
        Ok(Self {
            folder,
            way,
            is_blind: AtomicBool::new(inotify.is_none()),
            inotify,
        })
    }

    /// The names of the sockets that are there. Whatever changes afterwards is told by [`Sockets::changed`].
    pub fn look(&self) -> Result<BTreeSet<String>> {
        // Of those that are there the last few: one that is renamed away, or was never made, comes back into the one above it.
        let last = self.way.iter().rposition(|it| it.is_dir()).unwrap_or(0);
        if let Some(inotify) = &self.inotify {
            let near = self.way.iter().skip(last.saturating_sub(ABOVE));
            let is_blind = watch_all(inotify.get_ref(), near);
            let is_blind = is_blind.map_err(|error| self.failed("watch", error.into()))?;
            self.is_blind.store(is_blind, Ordering::Relaxed);
        }
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(BTreeSet::new());
            }
            Err(error) => return Err(self.failed("read", error)),
        };
        let sockets = entries.filter_map(|it| {
            let it = it.ok()?;
            let is_socket = it.file_type().is_ok_and(|it| it.is_socket());
            is_socket.then(|| it.file_name().into_string().ok())?
        });
        Ok(sockets.collect())
    }

    /// Waits until they may be others.
    pub async fn changed(&self) -> Result<()> {
        let failed = |error| self.failed("watch", error);
        let Some(inotify) = &self.inotify else {
            tokio::time::sleep(LOOKS_AGAIN).await;
            return Ok(());
        };
        let ready = inotify.readable();
        let ready = if self.is_blind.load(Ordering::Relaxed) {
            match tokio::time::timeout(LOOKS_AGAIN, ready).await {
                Ok(ready) => ready,
                Err(_) => return Ok(()),
            }
        } else {
            ready.await
        };
        let mut ready = ready.map_err(failed)?;
        let mut room = [MaybeUninit::<u8>::uninit(); 4096];
        let mut events = inotify::Reader::new(inotify.get_ref(), &mut room);
        // What exactly it was does not matter: all is looked at anew.
        loop {
            match events.next() {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(failed(error.into())),
            }
        }
        ready.clear_ready();
        Ok(())
    }

    fn failed(&self, doing: &'static str, error: std::io::Error) -> Error {
        Error::path(doing, self.folder.display().to_string(), error)
    }
}

/// Watches these folders, and says whether a limit of the kernel's was in the way of one.
fn watch_all<'f>(
    inotify: &OwnedFd,
    folders: impl Iterator<Item = &'f PathBuf>,
) -> rustix::io::Result<bool> {
    let mut is_blind = false;
    for folder in folders {
        // What is not there comes into one that is, and is watched from then on.
        match inotify::add_watch(inotify, folder, CHANGES) {
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(Errno::NOSPC) => is_blind = true,
            Err(error) => return Err(error),
        }
    }
    Ok(is_blind)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_folder_that_comes_later_and_sockets_that_come_and_go_are_noticed() {
        let root = tempfile::tempdir().unwrap();
        let sockets = Sockets::below(root.path(), "/kubelet/plugins_registry").unwrap();
        assert!(sockets.look().unwrap().is_empty());
        let until = async |names: &[&str]| {
            let names: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
            let wait = async {
                while sockets.look().unwrap() != names {
                    sockets.changed().await.unwrap();
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(5), wait).await;
            assert!(waited.is_ok(), "{names:?}: {:?}", sockets.look());
        };
        let folder = root.path().join("kubelet/plugins_registry");
        std::fs::create_dir_all(&folder).unwrap();
        let _one = UnixListener::bind(folder.join("one.sock")).unwrap();
        std::fs::write(folder.join("file.sock"), "no socket").unwrap();
        until(&["one.sock"]).await;
        let _two = UnixListener::bind(folder.join("two.sock")).unwrap();
        until(&["one.sock", "two.sock"]).await;
        std::fs::remove_file(folder.join("one.sock")).unwrap();
        until(&["two.sock"]).await;
        // Another folder in its place.
        std::fs::rename(&folder, root.path().join("old")).unwrap();
        until(&[]).await;
        std::fs::create_dir(&folder).unwrap();
        let _three = UnixListener::bind(folder.join("three.sock")).unwrap();
        until(&["three.sock"]).await;
    }

    #[tokio::test]
    async fn a_folder_that_is_made_with_all_that_is_above_it_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let sockets = Sockets::below(root.path(), "/a/b/c/d/kubelet").unwrap();
        assert!(sockets.look().unwrap().is_empty());
        let folder = root.path().join("a/b/c/d/kubelet");
        std::fs::create_dir_all(&folder).unwrap();
        let _one = UnixListener::bind(folder.join("one.sock")).unwrap();
        let told = tokio::time::timeout(Duration::from_secs(5), sockets.changed()).await;
        assert!(told.is_ok_and(|it| it.is_ok()));
        let found = BTreeSet::from(["one.sock".to_owned()]);
        assert_eq!(sockets.look().unwrap(), found);
    }
}

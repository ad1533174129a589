//! The sockets in one folder of the machine, and the moment when they may be others, from the kernel's
//! notifications. The folder need not be there yet.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

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

/// A folder with sockets.
#[derive(Debug)]
pub struct Sockets {
    folder: PathBuf,
    /// The folders on the way to it that are watched, too: the first two above it.
    way: Vec<PathBuf>,
    inotify: AsyncFd<OwnedFd>,
}

impl Sockets {
    /// The sockets in `folder` of the machine whose root is at `root`.
    pub fn below(root: &Path, folder: &str) -> Result<Self> {
        let failed = |error: std::io::Error| Error::path("watch", folder, error);
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = inotify.map_err(|error| failed(error.into()))?;
        // SAFETY: the descriptor is owned by what is made here, which neither closes nor replaces it before
        // it is dropped.
        let inotify = unsafe { AsyncFd::register(inotify) };
        let inotify = inotify.map_err(|error| failed(error.into()))?;
        let folder = root.join(folder.trim_start_matches('/'));
        let way = folder.ancestors().skip(1).take(2);
        Ok(Self {
            way: way.map(Path::to_path_buf).collect(),
            folder,
            inotify,
        })
    }

    /// The names of the sockets that are there. Whatever changes afterwards is told by [`Sockets::changed`].
    pub fn look(&self) -> Result<BTreeSet<String>> {
        for folder in self.way.iter().rev().chain([&self.folder]) {
            // What is not there comes into one that is, and is watched from then on.
            match inotify::add_watch(self.inotify.get_ref(), folder, CHANGES) {
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(self.failed("watch", error.into())),
            }
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
        let mut ready = self.inotify.readable().await.map_err(failed)?;
        let mut room = [MaybeUninit::<u8>::uninit(); 4096];
        let mut events = inotify::Reader::new(self.inotify.get_ref(), &mut room);
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
}

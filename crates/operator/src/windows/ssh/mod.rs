//! The way to an instance: SSH for commands, SFTP for files. Whatever is done there the agent does; this
//! only carries it over, within its time.
//!
//! Encrypting and copying run on threads of their own: a large payload delays no controller.

mod checksum;
mod error;
mod files;
mod key;
mod session;
mod source;

use std::io;
use std::sync::Arc;

use evenkeel_daemon::panics;
use tokio::runtime::{Builder, Runtime};

pub(crate) use self::error::Error;
pub(crate) use self::files::{FileKind, Files, Progress};
pub(crate) use self::key::Key;
pub(crate) use self::session::{Session, Target};
pub(crate) use self::source::{Contents, Local};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Threads for what goes over SSH.
const THREADS: usize = 2;

/// Where connections run. Clones are the same.
#[derive(Clone)]
pub(crate) struct Ssh {
    runtime: Arc<Threads>,
}

struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        // Dropping it would wait, which is not done where others wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Ssh {
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("ssh")
            // What a machine sends costs, at worst, the connection to it.
            .on_thread_start(|| panics::contain_thread("ssh"))
            .enable_all()
            .build()?;
        let runtime = Arc::new(Threads(Some(runtime)));
        Ok(Self { runtime })
    }

    /// Runs `work` there. It ends with whoever waits for it.
    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let Some(runtime) = &self.runtime.0 else {
            return Err(Error::Broken("the operator is stopping".to_owned()));
        };
        let mut task = EndedOnDrop(runtime.spawn(work));
        match (&mut task.0).await {
            Ok(done) => done,
            Err(error) => Err(Error::Broken(error.to_string())),
        }
    }
}

/// A task that ends with its owner.
struct EndedOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for EndedOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

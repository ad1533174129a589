//! What a file on an instance is, read from here: nothing there is asked, or run, to say it.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use super::files::{failed, is_missing, remote};
use super::{Files, Local, Result};

/// What is read at once.
const CHUNK: usize = 256 * 1024;

impl Files {
    /// Whether the file at its place is the one that belongs there.
    pub(crate) async fn is_there(&self, local: &Local) -> Result<bool> {
        let (sftp, path) = (self.sftp.clone(), remote(&local.place));
        let (size, checksum) = (local.size, local.checksum.clone());
        let read = async move {
            match sftp.symlink_metadata(&path).await {
                Ok(found) if found.size == Some(size) && !found.is_symlink() => {}
                Ok(_) => return Ok(false),
                Err(error) if is_missing(&error) => return Ok(false),
                Err(error) => return Err(failed(&path, &error)),
            }
            let file = sftp.open(&path).await;
            let file = file.map_err(|error| failed(&path, &error))?;
            // Whoever goes on and on is not listened to.
            let mut file = file.take(size.saturating_add(1));
            let mut digest = Sha256::new();
            let mut buffer = vec![0; CHUNK];
            loop {
                let count = file.read(&mut buffer).await;
                match count.map_err(|error| failed(&path, &error))? {
                    0 => break,
                    count => digest.update(buffer.get(..count).unwrap_or_default()),
                }
            }
            let mut seen = String::new();
            for byte in digest.finalize() {
                // Writing into a String does not fail.
                _ = write!(seen, "{byte:02x}");
            }
            Ok(seen == checksum)
        };
        self.run(read).await
    }
}

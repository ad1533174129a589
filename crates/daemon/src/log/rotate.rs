//! A log file that never grows beyond its limit: when it is full, it is renamed, and so are those
//! before it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// How large one file grows, and how many full ones are kept.
const LARGEST: u64 = 8 * 1024 * 1024;
const KEPT: u32 = 4;

/// Writes to a file and to those after it. Clones write to the same.
#[derive(Debug, Clone)]
pub(crate) struct Rotating(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    written: u64,
    largest: u64,
}

impl Rotating {
    /// Goes on writing to the file at `path`; folders on the way are made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, LARGEST)
    }

    fn with_limit(path: &Path, largest: u64) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(Mutex::new(Open {
            written: file.metadata()?.len(),
            path: path.to_owned(),
            file,
            largest,
        }))))
    }
}

impl Open {
    /// `agent.log` becomes `agent.log.1`, that one `agent.log.2`, and the last one goes.
    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..KEPT).rev() {
            if numbered(number).exists() {
                std::fs::rename(numbered(number), numbered(number + 1))?;
            }
        }
        std::fs::copy(&self.path, numbered(1))?;
        // Not renamed: on Windows somebody who reads it would be in the way.
        self.file.set_len(0)?;
        self.written = 0;
        Ok(())
    }
}

impl Write for Rotating {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.written > 0 && open.written + bytes.len() as u64 > open.largest {
            // A log that cannot be rotated still is one.
            _ = open.rotate();
        }
        let written = open.file.write(bytes)?;
        open.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.file.flush()
    }
}

impl<'a> MakeWriter<'a> for Rotating {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_never_grows_beyond_its_limit_and_keeps_what_was_last() {
        let folder = std::env::temp_dir().join(format!("evenkeel-log-{}", std::process::id()));
        let path = folder.join("below/agent.log");
        let mut log = Rotating::with_limit(&path, 20).unwrap();
        for line in 0..30 {
            writeln!(log, "line {line:03}").unwrap();
        }
        drop(log);
        let mut log = Rotating::with_limit(&path, 20).unwrap();
        writeln!(log, "after").unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.join("below").join(name));
        assert_eq!(read("agent.log").unwrap(), "after\n");
        assert_eq!(read("agent.log.1").unwrap(), "line 028\nline 029\n");
        assert_eq!(read("agent.log.4").unwrap(), "line 022\nline 023\n");
        assert!(read("agent.log.5").is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}

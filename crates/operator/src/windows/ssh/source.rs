//! What is copied to an instance, read on this side: a file of the payload, or bytes that we made.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Error, Result};

/// A file to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Local {
    /// Where it goes, as Windows writes it.
    pub(crate) place: String,
    /// Its SHA-256.
    pub(crate) checksum: String,
    pub(crate) size: u64,
    pub(crate) contents: Contents,
}

/// Where a file's contents are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    File(PathBuf),
    Bytes(Arc<[u8]>),
}

/// What is copied, from some byte on.
pub(super) enum ReadFrom {
    File(std::fs::File),
    Bytes(Arc<[u8]>, usize),
}

impl ReadFrom {
    pub(super) fn open(local: &Local, begin: u64) -> Result<Self> {
        match &local.contents {
            Contents::Bytes(bytes) => {
                let begin = usize::try_from(begin).unwrap_or(usize::MAX);
                Ok(Self::Bytes(bytes.clone(), begin.min(bytes.len())))
            }
            Contents::File(path) => {
                let open = || {
                    let mut file = std::fs::File::open(path)?;
                    file.seek(SeekFrom::Start(begin))?;
                    Ok(file)
                };
                let opened: std::io::Result<_> = open();
                opened.map(Self::File).map_err(|error| lost(local, &error))
            }
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8], local: &Local) -> Result<usize> {
        match self {
            Self::File(file) => file.read(buffer).map_err(|error| lost(local, &error)),
            Self::Bytes(bytes, at) => {
                let rest = bytes.get(*at..).unwrap_or_default();
                let count = rest.len().min(buffer.len());
                let (piece, to) = (rest.get(..count), buffer.get_mut(..count));
                if let (Some(piece), Some(to)) = (piece, to) {
                    to.copy_from_slice(piece);
                }
                *at += count;
                Ok(count)
            }
        }
    }
}

fn lost(local: &Local, error: &std::io::Error) -> Error {
    let path = match &local.contents {
        Contents::File(path) => path.display().to_string(),
        Contents::Bytes(_) => local.place.clone(),
    };
    let why = format!("{error}: restore the whole payload and seal it again");
    Error::Payload { path, why }
}

//! Files of any size, read piece by piece: hashed, compared, copied.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::mem::MaybeUninit;

use evenkeel_plan::machine::entry::Hash;
use sha2::{Digest, Sha256};

/// A file is read in pieces of this size.
const ONE_GO: usize = 16 * 1024;

/// The hash of a file of this size.
pub(super) fn hash(file: &mut File, size: i64) -> io::Result<Hash> {
    let mut digest = Sha256::new();
    let mut buffer = [MaybeUninit::uninit(); ONE_GO];
    let mut left = usize::try_from(size).unwrap_or_default();
    loop {
        let piece = read_piece(file, &mut buffer)?;
        digest.update(piece);
        left = left.saturating_sub(piece.len());
        // The size says where the end is; a file that grew is read on until it ends.
        if piece.is_empty() || (left == 0 && piece.len() < ONE_GO) {
            return Ok(Hash::from_digest(digest.finalize().into()));
        }
    }
}

/// Writes what is in one file into a new one, piece by piece. Pieces of zeros are left out: what has
/// holes keeps them, and fills no disk.
pub(super) fn copy(from: &File, new: &mut File) -> io::Result<Hash> {
    let mut digest = Sha256::new();
    let mut buffer = [MaybeUninit::uninit(); ONE_GO];
    let mut length = 0;
    let mut left_out = 0;
    loop {
        let piece = read_piece(from, &mut buffer)?;
        let size = i64::try_from(piece.len()).unwrap_or(i64::MAX);
        if piece.is_empty() {
            if left_out > 0 {
                new.set_len(length)?;
            }
            return Ok(Hash::from_digest(digest.finalize().into()));
        }
        digest.update(piece);
        length += size.unsigned_abs();
        if piece.iter().all(|byte| *byte == 0) {
            left_out += size;
        } else {
            if left_out > 0 {
                new.seek(io::SeekFrom::Current(left_out))?;
                left_out = 0;
            }
            new.write_all(piece)?;
        }
    }
}

/// Whether a file of this size has exactly these contents.
pub(super) fn is_like(file: &File, size: i64, contents: &[u8]) -> io::Result<bool> {
    if usize::try_from(size) != Ok(contents.len()) {
        return Ok(false);
    }
    let mut buffer = [MaybeUninit::uninit(); ONE_GO];
    let mut left = contents;
    loop {
        let piece = read_piece(file, &mut buffer)?;
        match left.strip_prefix(piece) {
            // Shorter than it said it is.
            Some(rest) if piece.is_empty() => return Ok(rest.is_empty()),
            Some([]) if piece.len() < ONE_GO => return Ok(true),
            Some(rest) => left = rest,
            None => return Ok(false),
        }
    }
}

fn read_piece<'b>(file: &File, buffer: &'b mut [MaybeUninit<u8>]) -> io::Result<&'b [u8]> {
    let (piece, _) = rustix::io::read(file, buffer)?;
    Ok(piece)
}

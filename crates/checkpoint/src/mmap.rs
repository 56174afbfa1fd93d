//! Read-only file mappings.
//!
//! The only unsafe code of the crate. A mapping is a byte slice only as long as nobody changes the
//! file: if another process writes to it, the bytes change under a shared reference, and if it is
//! cut, reading past its new end stops this process with SIGBUS. No program can rule that out for
//! a file on disk, so it is the contract of [`Checkpoint::open`](crate::Checkpoint::open) that
//! files are left alone while they are open, and that whoever replaces a model writes a new file
//! and renames it. What is read is validated once, at opening, and every later access is by ranges
//! that were checked then; so even a file that changes can yield wrong weights, but no access out
//! of bounds of the mapping.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, MmapOptions};

/// The bytes of one weight file.
#[derive(Debug)]
pub(crate) enum FileBytes {
    /// A mapped file.
    Mapped(Mmap),
    /// Bytes in memory.
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps a regular file, to be read mostly from front to back.
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is read-only and lives as long as every slice of it; that the file
        // stays as it is, is the documented contract of `Checkpoint::open`.
        let map = unsafe { MmapOptions::new().map(&file)? };
        // Loading streams, so pages behind the reader may go early. Only a hint: on a file system
        // that refuses it, nothing is lost.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Sequential);
        Ok(Self::Mapped(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Lets the system drop the pages of `range`; reading them again fetches them from the file.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self {
            // SAFETY: `DontNeed` drops contents only of private pages that were written; the
            // mapping is read-only and backed by a file, so every dropped page reads the same
            // again, also those that `range` shares with a neighbour.
            let advised = unsafe {
                map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    range.start,
                    range.len(),
                )
            };
            // A refusal costs memory and nothing else.
            drop(advised);
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

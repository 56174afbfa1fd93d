//! A file descriptor that is readable while there is something to poll for.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An event counter of the kernel, used as a flag: never blocks, also if the host reads it.
#[derive(Debug)]
pub(crate) struct WakeFd(File);

impl WakeFd {
    /// Makes one, not raised.
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made and owned by nobody else.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Only Linux has event counters.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes it readable.
    pub(crate) fn raise(&self) {
        // It fails only where the counter is full, and then it is readable anyway.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub(crate) fn lower(&self) {
        // It fails only where the counter is 0, and then it is unreadable anyway.
        let _ = (&self.0).read(&mut [0; 8]);
    }

    /// The descriptor, which stays this object's.
    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

//! Signals are the host's. One is sent to whoever writes to a connection that the other side has
//! closed, and ends a host that has not asked for it: SIGPIPE. So the library's threads, which
//! inherit the mask of the thread that starts them, are started with it blocked; the write then
//! fails with an error like any other.

use std::mem::MaybeUninit;
use std::ptr;

struct Mask(libc::sigset_t);

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the set was filled when the mask was changed.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Runs what starts threads. The mask of this thread is the same again afterwards.
pub(crate) fn with_sigpipe_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut blocked = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the pointers are valid, and sigemptyset fills what it is given.
    let changed = unsafe {
        libc::sigemptyset(blocked.as_mut_ptr());
        libc::sigaddset(blocked.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr())
    };
    // It fails for arguments without a meaning only; then there is nothing to restore.
    // SAFETY: filled where it has not failed.
    let _mask = (changed == 0).then(|| Mask(unsafe { before.assume_init() }));
    start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked() -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: the pointers are valid; with no new set the old one is filled.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), libc::SIGPIPE) == 1
        }
    }

    #[test]
    fn threads_inherit_it_and_the_caller_does_not_keep_it() {
        assert!(!is_blocked());
        let inherited = with_sigpipe_blocked(|| std::thread::spawn(is_blocked).join());
        assert!(inherited.expect("no panic") && !is_blocked());
    }
}

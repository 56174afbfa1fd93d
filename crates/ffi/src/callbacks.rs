//! Callbacks of the library's own, for hosts that nothing may call from a foreign thread: the log
//! into a file descriptor, the progress of a load into memory.

use std::ffi::{c_char, c_void};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde_json::json;

use crate::caller::Caller;
use crate::log::{PAGEDLLM_LOG_DEBUG, PAGEDLLM_LOG_ERROR, PAGEDLLM_LOG_INFO, PAGEDLLM_LOG_WARN};
use crate::panic::guard;
use crate::status::PAGEDLLM_OK;

/// Most bytes of a line: what a pipe takes at once or not at all.
const MAX_LINE: usize = 4096;

/// A pagedllm_log_callback that writes each line to a file descriptor, as
/// {"level":"info","target":"pagedllm","message":"..."} and a newline, 4096 bytes at most. log_data
/// is the descriptor's number, cast to a pointer. It stays the caller's, and open until
/// pagedllm_engine_free returned. A line that a socket or a pipe that does not block has no room
/// for is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_log_to_fd(
    user_data: *mut c_void,
    level: u32,
    target: *const c_char,
    target_len: usize,
    message: *const c_char,
    message_len: usize,
) {
    // SAFETY: the arguments are what the header asks for.
    guard(unsafe { Caller::new(std::ptr::null_mut()) }, |caller| {
        let target = caller.text(target, target_len, "target")?;
        let message = caller.text(message, message_len, "message")?;
        if let Ok(fd) = RawFd::try_from(user_data.addr()) {
            // A log has nowhere to say that it has no room.
            let _ = send(fd, line(level, target, message).as_bytes());
        }
        Ok(PAGEDLLM_OK)
    });
}

fn line(level: u32, target: &str, message: &str) -> String {
    let level = match level {
        PAGEDLLM_LOG_ERROR => "error",
        PAGEDLLM_LOG_WARN => "warn",
        PAGEDLLM_LOG_INFO => "info",
        PAGEDLLM_LOG_DEBUG => "debug",
        _ => "trace",
    };
    let mut kept = message.len();
    loop {
        while !message.is_char_boundary(kept) {
            kept -= 1;
        }
        let message = &message[..kept];
        let line = format!("{}\n", json!({"level": level, "target": target, "message": message}));
        // Escapes make a text longer, so a cut may have to be repeated.
        if line.len() <= MAX_LINE || kept == 0 {
            return line;
        }
        kept = kept.min(MAX_LINE) * 3 / 4;
    }
}

/// Writes without waiting and without a signal where the descriptor is a socket.
fn send(fd: RawFd, line: &[u8]) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    const FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    #[cfg(not(target_os = "linux"))]
    const FLAGS: i32 = libc::MSG_DONTWAIT;
    // SAFETY: the bytes live during the call.
    if unsafe { libc::send(fd, line.as_ptr().cast(), line.len(), FLAGS) } >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::ENOTSOCK) {
        return Err(error);
    }
    // SAFETY: the bytes live during the call.
    match unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How far a load is, for pagedllm_progress_to_memory. All bytes are 0 at first.
#[repr(C)]
pub struct LoadState {
    /// Bytes of the weights that are loaded.
    pub done_bytes: u64,
    /// Bytes of the weights; 0 until that is known.
    pub total_bytes: u64,
    /// The host sets it to 1 to cancel.
    pub cancel: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A pagedllm_progress_callback that keeps a pagedllm_load_state up to date, which
/// progress_data points to. The host looks at it from another thread and may cancel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_progress_to_memory(
    user_data: *mut c_void,
    done_bytes: u64,
    total_bytes: u64,
) -> i32 {
    let state: *mut LoadState = user_data.cast();
    if state.is_null() || !state.is_aligned() {
        return 0;
    }
    // SAFETY: not NULL, aligned, and the caller's while it opens an engine; the host reads and
    // writes these words whole.
    let (done, total, cancel) = unsafe {
        (
            AtomicU64::from_ptr(&raw mut (*state).done_bytes),
            AtomicU64::from_ptr(&raw mut (*state).total_bytes),
            AtomicU32::from_ptr(&raw mut (*state).cancel),
        )
    };
    total.store(total_bytes, Ordering::Relaxed);
    done.store(done_bytes, Ordering::Relaxed);
    i32::from(cancel.load(Ordering::Relaxed) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read, Seek};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    fn log_to(fd: &impl AsRawFd, level: u32, message: &str) {
        let user_data = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        let (target, text) = ("pagedllm_test", message);
        // SAFETY: the texts live during the call.
        unsafe {
            pagedllm_log_to_fd(
                user_data,
                level,
                target.as_ptr().cast(),
                target.len(),
                text.as_ptr().cast(),
                text.len(),
            );
        }
    }

    #[test]
    fn lines_come_out_of_a_socket_as_json() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        log_to(&ours, PAGEDLLM_LOG_WARN, "a \"quoted\"\nline");
        log_to(&ours, 99, &"\u{1}ü".repeat(5000));
        drop(ours);
        let lines: Vec<String> = BufReader::new(theirs).lines().map(|l| l.expect("text")).collect();
        assert_eq!(lines.len(), 2);
        let first: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
        let expected =
            json!({"level": "warn", "target": "pagedllm_test", "message": "a \"quoted\"\nline"});
        assert_eq!(first, expected);
        let second: serde_json::Value = serde_json::from_str(&lines[1]).expect("JSON");
        let kept = second["message"].as_str().expect("a text");
        assert!(lines[1].len() < MAX_LINE && kept.len() > 1000, "{} bytes", lines[1].len());
    }

    #[test]
    fn nobody_who_reads_is_no_trouble() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        for _ in 0..2000 {
            log_to(&ours, PAGEDLLM_LOG_INFO, &"long".repeat(500));
        }
        drop(theirs);
        log_to(&ours, PAGEDLLM_LOG_INFO, "into the void");
    }

    #[test]
    fn a_file_is_written_too() {
        let mut file: File = tempfile::tempfile().expect("a file");
        log_to(&file, PAGEDLLM_LOG_ERROR, "x");
        file.rewind().expect("rewound");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("text");
        assert!(text.ends_with("}\n") && text.contains("\"error\""), "{text}");
    }

    #[test]
    fn a_load_is_seen_and_cancelled_in_memory() {
        let mut state = LoadState { done_bytes: 0, total_bytes: 0, cancel: 0, reserved: 0 };
        // SAFETY: the state lives.
        let call = |state: &mut LoadState, done| unsafe {
            pagedllm_progress_to_memory(std::ptr::from_mut(state).cast(), done, 7)
        };
        assert_eq!(call(&mut state, 3), 0);
        assert_eq!((state.done_bytes, state.total_bytes), (3, 7));
        state.cancel = 1;
        assert_eq!(call(&mut state, 4), 1);
        // SAFETY: NULL is refused.
        assert_eq!(unsafe { pagedllm_progress_to_memory(std::ptr::null_mut(), 1, 1) }, 0);
    }
}

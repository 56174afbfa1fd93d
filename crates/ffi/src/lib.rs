//! The C library: the engine behind opaque handles, status codes and pulled events.
//!
//! The header `include/pagedllm.h` is generated from this crate; docs/c-api.md is the contract
//! that callers keep. What is here and nowhere else: pointers. A [`caller::Caller`] stands for the
//! caller's promise, is made once in each export, and turns raw arguments into checked ones.
//!
//! # Invariants
//! 1. No panic leaves an export: each runs inside [`panic::guard`].
//! 2. An out-parameter is written on success only, the error on failure only.
//! 3. Nothing that a caller passes in is kept after the call, but callbacks and their data.
//! 4. No call into the host, but the log and the progress callback of an engine.
//! 5. A handle knows its kind, how many calls are inside of it, and the process that made it.
//! 6. No signal handlers, no output, no environment.
//!
//! Tested by C programs under sanitizers, see `tests/c_abi`.

// Everything here takes pointers from C. The contract of all exports is written once, in
// docs/c-api.md, and not under each of them.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

// Where a panic aborts, it ends the host.
#[cfg(panic = "abort")]
compile_error!("the C library is built with panic = \"unwind\"");

mod status;

mod caller;
mod hand_over;
mod handle;
mod panic;
mod record;
mod sync;

mod callbacks;
mod engine;
mod error;
mod event;
mod log;
mod options;
mod queue;
mod server;
mod signals;
mod stream;
#[cfg(feature = "test-executor")]
mod test_executor;
mod text;
mod wake_fd;

/// First number of the version of this interface: it changes when old callers would break.
pub const PAGEDLLM_ABI_MAJOR: u32 = 1;
/// Second number of the version of this interface: it grows when something is added.
pub const PAGEDLLM_ABI_MINOR: u32 = 1;

/// Writes the version of the interface that this library has. A program compiled with the header
/// of version (major, minor) works with a library of the same major and at least its minor.
/// Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_abi_version(major: *mut u32, minor: *mut u32) {
    // SAFETY: the arguments are what the header asks for.
    panic::guard(unsafe { caller::Caller::new(std::ptr::null_mut()) }, |caller| {
        for (out, value) in [(major, PAGEDLLM_ABI_MAJOR), (minor, PAGEDLLM_ABI_MINOR)] {
            if !out.is_null() {
                caller.out(out, "version")?.set(value);
            }
        }
        Ok(status::PAGEDLLM_OK)
    });
}

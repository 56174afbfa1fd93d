//! Status codes. A number is never given a second meaning, also when its first one is retired.

use std::ffi::c_char;

/// Result of a call: one of the PAGEDLLM_* codes below. Zero is success, 1 to 15 are no failures
/// and come without an error object, anything from 16 on is a failure. New codes may appear.
pub type Status = i32;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: Status = $value;)*

        /// Name of a code with its NUL, or `PAGEDLLM_UNKNOWN`.
        fn name(status: Status) -> &'static str {
            match status {
                $($value => concat!(stringify!($name), "\0"),)*
                _ => "PAGEDLLM_UNKNOWN\0",
            }
        }

        #[cfg(test)]
        const ALL: &[Status] = &[$($value),*];
    };
}

statuses! {
    /// Done.
    PAGEDLLM_OK = 0;
    /// Nothing happened in the time given.
    PAGEDLLM_TIMED_OUT = 1;
    /// The stream has ended and everything of it was read.
    PAGEDLLM_END = 2;
    /// pagedllm_queue_interrupt was called.
    PAGEDLLM_INTERRUPTED = 3;
    /// A pointer that must not be NULL is NULL, or an argument has no meaning.
    PAGEDLLM_INVALID_ARGUMENT = 16;
    /// A pointer is no handle of the kind asked for, or its handle was freed.
    PAGEDLLM_INVALID_HANDLE = 17;
    /// struct_size is smaller than the first version of the struct, or says that fields are set
    /// which this library does not know.
    PAGEDLLM_INVALID_STRUCT_SIZE = 18;
    /// A text is not UTF-8.
    PAGEDLLM_INVALID_UTF8 = 19;
    /// An option is unknown or its value is wrong; the error's param names it.
    PAGEDLLM_INVALID_OPTION = 20;
    /// A request is wrong; the error's param names the field.
    PAGEDLLM_INVALID_REQUEST = 21;
    /// Prompt and output do not fit the context.
    PAGEDLLM_CONTEXT_LENGTH = 22;
    /// The request names a model that is not served.
    PAGEDLLM_MODEL_NOT_FOUND = 23;
    /// The model could not be opened.
    PAGEDLLM_MODEL_ERROR = 24;
    /// The progress callback cancelled the load.
    PAGEDLLM_LOAD_CANCELLED = 25;
    /// The queue of requests is full; the error's retry_after_ms says when a place is likely.
    PAGEDLLM_QUEUE_FULL = 26;
    /// The engine takes no more requests.
    PAGEDLLM_SHUTTING_DOWN = 27;
    /// The engine failed and must be opened again.
    PAGEDLLM_ENGINE_FAILED = 28;
    /// The handle is in use by another call, or a callback tried to free something.
    PAGEDLLM_BUSY = 29;
    /// The handle was made before fork, by the parent.
    PAGEDLLM_USED_AFTER_FORK = 30;
    /// The server can't listen there.
    PAGEDLLM_LISTEN_FAILED = 31;
    /// The system has no threads, memory or file descriptors left.
    PAGEDLLM_OUT_OF_RESOURCES = 32;
    /// The answer was cancelled before its end.
    PAGEDLLM_CANCELLED = 33;
    /// The request's time was up before the answer ended.
    PAGEDLLM_DEADLINE = 34;
    /// This build or platform can't do that.
    PAGEDLLM_UNSUPPORTED = 35;
    /// A fault of this library; please report it.
    PAGEDLLM_INTERNAL = 36;
}

/// Name of a status code, such as "PAGEDLLM_QUEUE_FULL". The text ends with NUL and lives for
/// ever; unknown codes are "PAGEDLLM_UNKNOWN".
#[unsafe(no_mangle)]
pub extern "C" fn pagedllm_status_name(status: Status) -> *const c_char {
    name(status).as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_used_once_and_has_a_name_that_ends() {
        let mut codes = ALL.to_vec();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), ALL.len());
        for &status in ALL.iter().chain(&[-1, 15, i32::MAX]) {
            assert!(name(status).starts_with("PAGEDLLM_") && name(status).ends_with('\0'));
        }
    }
}

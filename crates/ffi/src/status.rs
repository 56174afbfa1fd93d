//! Status codes. A number is never given a second meaning, also when its first one is retired.

use std::ffi::c_char;

/// Result of a call: one of the PAGEDLLM_* codes below. Zero is success, 1 to 15 are no failures
/// and come without an error object, anything from 16 on is a failure. New codes may appear.
pub type Status = i32;

/// Done.
pub const PAGEDLLM_OK: Status = 0;
/// Nothing happened in the time given.
pub const PAGEDLLM_TIMED_OUT: Status = 1;
/// The stream has ended and everything of it was read.
pub const PAGEDLLM_END: Status = 2;
/// pagedllm_queue_interrupt was called.
pub const PAGEDLLM_INTERRUPTED: Status = 3;
/// A pointer that must not be NULL is NULL, or an argument has no meaning.
pub const PAGEDLLM_INVALID_ARGUMENT: Status = 16;
/// A pointer is no handle of the kind asked for, or its handle was freed.
pub const PAGEDLLM_INVALID_HANDLE: Status = 17;
/// struct_size is smaller than the first version of the struct, or says that fields are set
/// which this library does not know.
pub const PAGEDLLM_INVALID_STRUCT_SIZE: Status = 18;
/// A text is not UTF-8.
pub const PAGEDLLM_INVALID_UTF8: Status = 19;
/// An option is unknown or its value is wrong; the error's param names it.
pub const PAGEDLLM_INVALID_OPTION: Status = 20;
/// A request is wrong; the error's param names the field.
pub const PAGEDLLM_INVALID_REQUEST: Status = 21;
/// Prompt and output do not fit the context.
pub const PAGEDLLM_CONTEXT_LENGTH: Status = 22;
/// The request names a model that is not served.
pub const PAGEDLLM_MODEL_NOT_FOUND: Status = 23;
/// The model could not be opened.
pub const PAGEDLLM_MODEL_ERROR: Status = 24;
/// The progress callback cancelled the load.
pub const PAGEDLLM_LOAD_CANCELLED: Status = 25;
/// The queue of requests is full; the error's retry_after_ms says when a place is likely.
pub const PAGEDLLM_QUEUE_FULL: Status = 26;
/// The engine takes no more requests.
pub const PAGEDLLM_SHUTTING_DOWN: Status = 27;
/// The engine failed and must be opened again.
pub const PAGEDLLM_ENGINE_FAILED: Status = 28;
/// The handle is in use by another call, or a callback tried to free something.
pub const PAGEDLLM_BUSY: Status = 29;
/// The handle was made before fork, by the parent.
pub const PAGEDLLM_USED_AFTER_FORK: Status = 30;
/// The server can't listen there.
pub const PAGEDLLM_LISTEN_FAILED: Status = 31;
/// The system has no threads, memory or file descriptors left.
pub const PAGEDLLM_OUT_OF_RESOURCES: Status = 32;
/// The answer was cancelled before its end.
pub const PAGEDLLM_CANCELLED: Status = 33;
/// The request's time was up before the answer ended.
pub const PAGEDLLM_DEADLINE: Status = 34;
/// This build or platform can't do that.
pub const PAGEDLLM_UNSUPPORTED: Status = 35;
/// A fault of this library; please report it.
pub const PAGEDLLM_INTERNAL: Status = 36;

/// All codes and their names, each with its NUL.
const NAMES: &[(Status, &str)] = &[
    (PAGEDLLM_OK, "PAGEDLLM_OK\0"),
    (PAGEDLLM_TIMED_OUT, "PAGEDLLM_TIMED_OUT\0"),
    (PAGEDLLM_END, "PAGEDLLM_END\0"),
    (PAGEDLLM_INTERRUPTED, "PAGEDLLM_INTERRUPTED\0"),
    (PAGEDLLM_INVALID_ARGUMENT, "PAGEDLLM_INVALID_ARGUMENT\0"),
    (PAGEDLLM_INVALID_HANDLE, "PAGEDLLM_INVALID_HANDLE\0"),
    (PAGEDLLM_INVALID_STRUCT_SIZE, "PAGEDLLM_INVALID_STRUCT_SIZE\0"),
    (PAGEDLLM_INVALID_UTF8, "PAGEDLLM_INVALID_UTF8\0"),
    (PAGEDLLM_INVALID_OPTION, "PAGEDLLM_INVALID_OPTION\0"),
    (PAGEDLLM_INVALID_REQUEST, "PAGEDLLM_INVALID_REQUEST\0"),
    (PAGEDLLM_CONTEXT_LENGTH, "PAGEDLLM_CONTEXT_LENGTH\0"),
    (PAGEDLLM_MODEL_NOT_FOUND, "PAGEDLLM_MODEL_NOT_FOUND\0"),
    (PAGEDLLM_MODEL_ERROR, "PAGEDLLM_MODEL_ERROR\0"),
    (PAGEDLLM_LOAD_CANCELLED, "PAGEDLLM_LOAD_CANCELLED\0"),
    (PAGEDLLM_QUEUE_FULL, "PAGEDLLM_QUEUE_FULL\0"),
    (PAGEDLLM_SHUTTING_DOWN, "PAGEDLLM_SHUTTING_DOWN\0"),
    (PAGEDLLM_ENGINE_FAILED, "PAGEDLLM_ENGINE_FAILED\0"),
    (PAGEDLLM_BUSY, "PAGEDLLM_BUSY\0"),
    (PAGEDLLM_USED_AFTER_FORK, "PAGEDLLM_USED_AFTER_FORK\0"),
    (PAGEDLLM_LISTEN_FAILED, "PAGEDLLM_LISTEN_FAILED\0"),
    (PAGEDLLM_OUT_OF_RESOURCES, "PAGEDLLM_OUT_OF_RESOURCES\0"),
    (PAGEDLLM_CANCELLED, "PAGEDLLM_CANCELLED\0"),
    (PAGEDLLM_DEADLINE, "PAGEDLLM_DEADLINE\0"),
    (PAGEDLLM_UNSUPPORTED, "PAGEDLLM_UNSUPPORTED\0"),
    (PAGEDLLM_INTERNAL, "PAGEDLLM_INTERNAL\0"),
];

/// Name of a status code, such as "PAGEDLLM_QUEUE_FULL". The text ends with NUL and lives for
/// ever; unknown codes are "PAGEDLLM_UNKNOWN".
#[unsafe(no_mangle)]
pub extern "C" fn pagedllm_status_name(status: Status) -> *const c_char {
    let known = NAMES.iter().find(|(known, _)| *known == status);
    known.map_or("PAGEDLLM_UNKNOWN\0", |(_, name)| name).as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_used_once_and_has_its_name() {
        let source = include_str!("status.rs");
        let constants: Vec<(&str, Status)> = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub const ")?.split_once(": Status = "))
            .map(|(name, value)| (name, value.trim_end_matches(';').parse().expect(name)))
            .collect();
        assert_eq!(constants.len(), NAMES.len());
        for (place, (name, value)) in constants.iter().enumerate() {
            assert_eq!(NAMES[place], (*value, &*format!("{name}\0")));
            assert!(place == 0 || constants[place - 1].1 < *value, "{name}: not in order");
        }
    }
}

//! The error object, and how failures of the crates below become one.

use std::ffi::c_char;
use std::time::Duration;

use pagedllm_openai::ApiError;
use pagedllm_server::ServerError;

use crate::caller::free_record;
use crate::record::{self, Public, with_nul};
use crate::status::{
    PAGEDLLM_CANCELLED, PAGEDLLM_CONTEXT_LENGTH, PAGEDLLM_DEADLINE, PAGEDLLM_ENGINE_FAILED,
    PAGEDLLM_INVALID_OPTION, PAGEDLLM_INVALID_REQUEST, PAGEDLLM_LISTEN_FAILED,
    PAGEDLLM_MODEL_ERROR, PAGEDLLM_MODEL_NOT_FOUND, PAGEDLLM_OUT_OF_RESOURCES, PAGEDLLM_QUEUE_FULL,
    PAGEDLLM_SHUTTING_DOWN, Status,
};

/// Why a call failed. Made by the library, freed with pagedllm_error_free. Both texts end with a
/// NUL that their lengths do not count.
#[repr(C)]
pub struct Error {
    /// Size of this struct in the library; fields may be added at its end.
    pub struct_size: usize,
    /// The status that the call returned.
    pub status: Status,
    /// When trying again makes sense, in milliseconds; 0 if that is unknown.
    pub retry_after_ms: u32,
    /// What is wrong and what would be right.
    pub message: *const c_char,
    /// Bytes of message.
    pub message_len: usize,
    /// The option, field or argument to blame; empty where there is none.
    pub param: *const c_char,
    /// Bytes of param.
    pub param_len: usize,
}

impl Public for Error {
    type Backing = (Vec<u8>, Vec<u8>);
    const MAGIC: u64 = u64::from_le_bytes(*b"plm_eror");
}

/// Frees an error. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_error_free(error: *const Error) {
    free_record(error);
}

/// A failure on its way to the caller.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
    param: String,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: String::new(), retry_after: None }
    }

    /// Says what is to blame.
    pub(crate) fn about(self, param: impl Into<String>) -> Self {
        Self { param: param.into(), ..self }
    }

    /// The error object.
    pub(crate) fn into_record(self) -> *const Error {
        let retry_after_ms = self.retry_after.map_or(0, milliseconds);
        let backing = (with_nul(self.message), with_nul(self.param));
        record::new(backing, |(message, param): &(Vec<u8>, Vec<u8>)| Error {
            struct_size: size_of::<Error>(),
            status: self.status,
            retry_after_ms,
            message: message.as_ptr().cast(),
            message_len: message.len() - 1,
            param: param.as_ptr().cast(),
            param_len: param.len() - 1,
        })
    }
}

/// Whole milliseconds, at least 1.
fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}

impl From<pagedllm::Error> for Failure {
    fn from(error: pagedllm::Error) -> Self {
        use pagedllm::Error as E;
        let message = error.to_string();
        match error {
            E::Option { option, .. } => Self::new(PAGEDLLM_INVALID_OPTION, message).about(option),
            E::Model(_) => Self::new(PAGEDLLM_MODEL_ERROR, message),
            E::Sampling(invalid) => {
                Self::new(PAGEDLLM_INVALID_REQUEST, message).about(invalid.param)
            }
            E::Request { param, .. } => Self::new(PAGEDLLM_INVALID_REQUEST, message).about(param),
            E::ContextLength { .. } => Self::new(PAGEDLLM_CONTEXT_LENGTH, message).about("prompt"),
            E::ChatTemplate(_) => Self::new(PAGEDLLM_INVALID_REQUEST, message).about("messages"),
            E::QueueFull { retry_after, .. } => {
                let failure = Self::new(PAGEDLLM_QUEUE_FULL, message);
                Self { retry_after: Some(retry_after), ..failure }
            }
            E::ShuttingDown => Self::new(PAGEDLLM_SHUTTING_DOWN, message),
            E::Device(_) => Self::new(PAGEDLLM_ENGINE_FAILED, message),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let status = match (error.status, error.code) {
            (400, Some("context_length_exceeded")) => PAGEDLLM_CONTEXT_LENGTH,
            (404, _) => PAGEDLLM_MODEL_NOT_FOUND,
            (400..=428, _) => PAGEDLLM_INVALID_REQUEST,
            (429, _) => PAGEDLLM_QUEUE_FULL,
            (503, Some("cancelled")) => PAGEDLLM_CANCELLED,
            (503, _) => PAGEDLLM_SHUTTING_DOWN,
            (504, _) => PAGEDLLM_DEADLINE,
            _ => PAGEDLLM_ENGINE_FAILED,
        };
        let failure = Self::new(status, error.message).about(error.param.unwrap_or_default());
        Self { retry_after: error.retry_after, ..failure }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let status = match error {
            ServerError::Listen { .. } => PAGEDLLM_LISTEN_FAILED,
            ServerError::Threads(_) => PAGEDLLM_OUT_OF_RESOURCES,
        };
        Self::new(status, error.to_string())
    }
}

//! What a client is told when a request fails.

use std::time::Duration;

use pagedllm::Error;
use serde_json::{Value, json};

/// Longest message that is sent, in characters; requests can put their own words into messages.
const MAX_MESSAGE: usize = 1000;

/// An error with its HTTP status and OpenAI's four fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// What went wrong and what would be right.
    pub message: String,
    /// OpenAI's class of the error, such as `invalid_request_error`.
    pub kind: &'static str,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// A word for programs, such as `model_not_found`.
    pub code: Option<&'static str>,
    /// When trying again makes sense.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// An error of any status and class.
    #[must_use]
    pub fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((at, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(at);
            message.push_str(" ...");
        }
        Self { status, message, kind, param: None, code: None, retry_after: None }
    }

    /// A request that can never succeed, and the field that is to blame.
    #[must_use]
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = message.into();
        let error = Self::new(400, "invalid_request_error", format!("{param}: {message}"));
        Self { param: Some(shorten(&param)), ..error }
    }

    /// The body is not what it should be, as a whole.
    #[must_use]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", message)
    }

    /// The request names a model that is not served.
    #[must_use]
    pub fn model_not_found(model: &str) -> Self {
        let message = format!("the model `{}` does not exist", shorten(model));
        let error = Self::new(404, "invalid_request_error", message);
        Self { param: Some("model".into()), code: Some("model_not_found"), ..error }
    }

    /// As the facade said it, for a prompt that came in the field `prompt`.
    #[must_use]
    pub fn from_facade(error: Error, prompt: &str) -> Self {
        match error {
            Error::Sampling(invalid) => Self::invalid(invalid.param, invalid.message),
            Error::Request { param, message } => {
                Self::invalid(if param == "prompt" { prompt } else { param }, message)
            }
            Error::ContextLength { .. } => {
                let error = Self::new(400, "invalid_request_error", error.to_string());
                Self { param: Some(prompt.into()), code: Some("context_length_exceeded"), ..error }
            }
            Error::ChatTemplate(_) => {
                let error = Self::new(400, "invalid_request_error", error.to_string());
                Self { param: Some(prompt.into()), ..error }
            }
            Error::QueueFull { retry_after, .. } => {
                let error = Self::new(429, "rate_limit_error", error.to_string());
                Self { code: Some("queue_full"), retry_after: Some(retry_after), ..error }
            }
            Error::ShuttingDown => Self::shutting_down(),
            Error::Device(_) => Self::internal("the engine has failed and must be restarted"),
            Error::Option { .. } | Error::Model(_) => Self::internal("the model is not usable"),
        }
    }

    /// The server takes no new requests.
    #[must_use]
    pub fn shutting_down() -> Self {
        let error = Self::new(503, "service_unavailable_error", "the server is shutting down");
        Self { retry_after: Some(Duration::from_secs(1)), ..error }
    }

    /// Not the client's fault.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "internal_server_error", message)
    }

    /// With a word for programs.
    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The body that is sent: `{"error": {message, type, param, code}}`.
    #[must_use]
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// The start of a client's own word, for use in a message.
pub(crate) fn shorten(word: &str) -> String {
    const MAX_WORD: usize = 100;
    match word.char_indices().nth(MAX_WORD) {
        Some((at, _)) => format!("{}...", &word[..at]),
        None => word.to_owned(),
    }
}

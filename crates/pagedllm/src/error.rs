//! Errors of the facade: one variant for each decision that a caller can take.

use std::time::Duration;

use pagedllm_core::InvalidParams;

/// What can go wrong between a caller and the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is wrong or can't be met; `option` is its long flag name without dashes.
    #[error("{option}: {message}")]
    Option {
        /// The option.
        option: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// The model could not be opened.
    #[error("{0}")]
    Model(String),
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] InvalidParams),
    /// Another field of the request is wrong; `param` is its name.
    #[error("{param}: {message}")]
    Request {
        /// The field.
        param: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
    /// Prompt and output do not fit the model.
    #[error(
        "the prompt has {prompt_tokens} tokens and {max_tokens} more are asked for (max_tokens), \
         but the context holds {max_model_len} tokens"
    )]
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens asked for.
        max_tokens: usize,
        /// Tokens that fit.
        max_model_len: usize,
    },
    /// The chat template refused the conversation, with its own words.
    #[error("chat template: {0}")]
    ChatTemplate(String),
    /// The queue is full for now.
    #[error("the queue is full ({limit} requests wait); try again in {retry_after:?}")]
    QueueFull {
        /// How many may wait.
        limit: usize,
        /// When a place is likely.
        retry_after: Duration,
    },
    /// The engine takes no new requests: it drains or has shut down.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The device failed; the engine has to be opened again.
    #[error("{0}")]
    Device(String),
}

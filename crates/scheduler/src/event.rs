//! What the world learns from a step.

use pagedllm_core::{FinishReason, TokenId, TokenLogprobs};

use crate::RequestId;

/// Something that happened to a request. Events of one choice come in order; the last one of
/// each choice is [`Event::Finished`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Log-probabilities of prompt tokens, in order. The first prompt token has none, so the
    /// first event starts with the second token. Belongs to all choices.
    PromptLogprobs {
        /// The request.
        request: RequestId,
        /// One entry a token.
        logprobs: Vec<TokenLogprobs>,
    },
    /// One more token, stop tokens included.
    Token {
        /// The request.
        request: RequestId,
        /// `0 ..best_of`.
        choice: u32,
        /// The token.
        token: TokenId,
        /// If asked for, or if `best_of` needs them.
        logprobs: Option<TokenLogprobs>,
    },
    /// The choice has ended; nothing of it follows.
    Finished {
        /// The request.
        request: RequestId,
        /// `0 ..best_of`.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// Counts of this choice.
        usage: Usage,
        /// Sum of the log-probabilities of its tokens, where they were computed.
        cumulative_logprob: Option<f64>,
        /// What went wrong, for [`FinishReason::Fault`].
        message: Option<String>,
    },
}

impl Event {
    /// The request that it belongs to.
    #[must_use]
    pub const fn request(&self) -> RequestId {
        match *self {
            Self::PromptLogprobs { request, .. }
            | Self::Token { request, .. }
            | Self::Finished { request, .. } => request,
        }
    }
}

/// Tokens of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Of these, tokens whose KV was found in the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens, stop token included.
    pub output_tokens: usize,
}

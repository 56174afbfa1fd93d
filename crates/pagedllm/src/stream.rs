//! The answers to one request, pulled by the caller.

use std::task::{Context, Poll};
use std::time::Duration;

use pagedllm_core::{FinishReason, TokenId, TokenLogprobs};

/// One generated token and the text that it stands for on its own, for log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenText {
    /// The token.
    pub token: TokenId,
    /// Log-probabilities, where asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Something that happened to one choice of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum TextEvent {
    /// The prompt was computed (only where prompt log-probabilities were asked for): one entry a
    /// prompt token, `None` for the first.
    Prompt {
        /// Log-probabilities of each prompt token.
        logprobs: Vec<Option<TokenLogprobs>>,
    },
    /// New tokens, and the text that became certain. The text may be empty (half a character, or
    /// the start of a stop string is held back) and never ends inside a character.
    Text {
        /// `0 .. n`.
        choice: u32,
        /// Text to append.
        text: String,
        /// Tokens of this event; a token comes once, whatever happens to its text.
        tokens: Vec<TokenText>,
    },
    /// The choice ended; nothing of it follows.
    Finished {
        /// `0 .. n`.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// What failed, in words, for [`FinishReason::Fault`].
        fault: Option<String>,
        /// What it took.
        usage: ChoiceUsage,
    },
}

/// Tokens of one choice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChoiceUsage {
    /// Tokens generated.
    pub output_tokens: usize,
    /// Sum of the log-probabilities of the generated tokens, where they were computed; ranks the
    /// choices of `best_of`.
    pub cumulative_logprob: Option<f64>,
}

/// Tokens of a whole request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated, over all choices, those of `best_of` that were not returned included.
    pub output_tokens: usize,
}

/// Result of waiting for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum NextEvent {
    /// An event.
    Event(TextEvent),
    /// Nothing happened in the time given.
    TimedOut,
    /// All choices have finished.
    End,
}

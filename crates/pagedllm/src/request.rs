//! What a caller asks for.

use std::time::Instant;

use pagedllm_core::{SamplingParams, TokenId};
use serde_json::{Map, Value};

/// A prompt, as text or as tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Encoded by the model's tokenizer.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer adds its beginning-of-sequence token.
        add_special_tokens: bool,
    },
    /// Used as they are; each must be inside the vocabulary.
    TokenIds(Vec<TokenId>),
}

/// A conversation to render with the model's chat template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatPrompt {
    /// Messages as OpenAI writes them, in order; keys keep their order.
    pub messages: Vec<Value>,
    /// Tools, where there are any.
    pub tools: Option<Value>,
    /// Documents, where there are any.
    pub documents: Option<Value>,
    /// Whether the answer's opening is added; almost always true.
    pub add_generation_prompt: bool,
    /// Whether the last message is left open, to be continued.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its special tokens around the rendered text; almost never, since
    /// templates bring their own.
    pub add_special_tokens: bool,
    /// More variables for the template.
    pub template_kwargs: Map<String, Value>,
}

/// One request: a prompt, how to sample, and when to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct TextRequest {
    /// The prompt.
    pub prompt: Prompt,
    /// Sampling parameters; `max_tokens` above what the context leaves is an error.
    pub sampling: SamplingParams,
    /// Strings that end a choice; only generated text is searched.
    pub stop: Vec<String>,
    /// Whether the text ends with the stop string or just before it.
    pub include_stop_str_in_output: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Lower runs first.
    pub priority: i32,
    /// Only requests with the same salt share cached prefixes.
    pub cache_salt: Vec<u8>,
    /// The request ends with [`FinishReason::Deadline`](crate::FinishReason::Deadline) then.
    pub deadline: Option<Instant>,
}

impl TextRequest {
    /// A request with default sampling.
    #[must_use]
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            include_stop_str_in_output: false,
            skip_special_tokens: true,
            priority: 0,
            cache_salt: Vec::new(),
            deadline: None,
        }
    }
}

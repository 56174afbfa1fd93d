//! What is sent: the objects of OpenAI's API, with vLLM's additions. Keys that OpenAI always sends
//! are always there, as `null` where they have no value.

use std::collections::BTreeMap;

use pagedllm::Usage;
use serde::Serialize;
use serde_json::{Map, Value};

/// The outer object of a plain answer and of each chunk.
#[derive(Serialize)]
pub(crate) struct Envelope<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<C>,
    /// Absent, `null` or a value: a stream with usage has it `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<UsageBody>>,
    pub(crate) system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Vec<Option<PromptLogprobs>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [u32]>,
}

/// Log-probabilities at one prompt position: token id to entry.
pub(crate) type PromptLogprobs = BTreeMap<u32, PromptLogprob>;

#[derive(Serialize)]
pub(crate) struct PromptLogprob {
    pub(crate) logprob: f32,
    pub(crate) rank: Option<u32>,
    pub(crate) decoded_token: String,
}

#[derive(Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            total_tokens: usage.prompt_tokens + usage.output_tokens,
            completion_tokens: usage.output_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

/// A choice of a completion, whole or a piece of it.
#[derive(Serialize)]
pub(crate) struct CompletionChoice<'a> {
    pub(crate) index: usize,
    pub(crate) text: &'a str,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Vec<Option<PromptLogprobs>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [u32]>,
}

/// Four lists with one entry a token.
#[derive(Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    pub(crate) text_offset: Vec<usize>,
    pub(crate) token_logprobs: Vec<Option<f32>>,
    pub(crate) tokens: Vec<String>,
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
}

/// A choice of a chat answer.
#[derive(Serialize)]
pub(crate) struct ChatChoice<'a> {
    pub(crate) index: usize,
    pub(crate) message: Message<'a>,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
pub(crate) struct Message<'a> {
    pub(crate) role: &'a str,
    pub(crate) content: &'a str,
    pub(crate) refusal: Option<&'a str>,
}

/// A piece of a choice of a chat answer.
#[derive(Serialize)]
pub(crate) struct ChatChunkChoice<'a> {
    pub(crate) index: usize,
    pub(crate) delta: MessageDelta<'a>,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

#[derive(Default, Serialize)]
pub(crate) struct MessageDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatLogprob>,
}

#[derive(Serialize)]
pub(crate) struct ChatLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

#[derive(Serialize)]
pub(crate) struct TopLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

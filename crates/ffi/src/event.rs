//! Events: what happened to a request, as plain structs.

use std::ffi::c_char;

use pagedllm::{FinishReason, TextEvent, TokenLogprobs, Usage};

use crate::caller::free_record;
use crate::error::Failure;
use crate::record::{self, Public, with_nul};
use crate::status::{PAGEDLLM_OK, Status};

/// Event: new text, new tokens, or both, of one choice.
pub const PAGEDLLM_EVENT_TEXT: u32 = 1;
/// Event: a choice ended. finish_reason says why, output_tokens counts the choice's tokens.
pub const PAGEDLLM_EVENT_FINISHED: u32 = 2;
/// Event: the prompt was computed; tokens, logprobs and alternatives are those of the prompt.
pub const PAGEDLLM_EVENT_PROMPT: u32 = 3;
/// Event: text is a piece of JSON that an OpenAI client would get: the whole answer, or with
/// "stream": true one chunk, and "[DONE]" last.
pub const PAGEDLLM_EVENT_JSON: u32 = 4;
/// Event: an OpenAI answer failed; status says why, text is the JSON that a client would get.
pub const PAGEDLLM_EVENT_FAILED: u32 = 5;
/// Event, of completion queues only: the stream has ended. The counts are the whole request's.
pub const PAGEDLLM_EVENT_END: u32 = 6;

/// Finish reason: the choice has not finished.
pub const PAGEDLLM_FINISH_NONE: u32 = 0;
/// Finish reason: max_tokens or the context is used up.
pub const PAGEDLLM_FINISH_LENGTH: u32 = 1;
/// Finish reason: an end-of-sequence or stop token; stop is its id.
pub const PAGEDLLM_FINISH_STOP_TOKEN: u32 = 2;
/// Finish reason: a stop string; stop is its index in the request.
pub const PAGEDLLM_FINISH_STOP_STRING: u32 = 3;
/// Finish reason: cancelled.
pub const PAGEDLLM_FINISH_CANCELLED: u32 = 4;
/// Finish reason: the request's time was up.
pub const PAGEDLLM_FINISH_DEADLINE: u32 = 5;
/// Finish reason: a fault of this request or of the device; text says which.
pub const PAGEDLLM_FINISH_FAULT: u32 = 6;

/// A token and the natural logarithm of its probability.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob {
    /// The token.
    pub token: u32,
    /// Finite or negative infinity.
    pub logprob: f32,
}

/// Something that happened to a request. Made by the library, freed with pagedllm_event_free;
/// everything in it lives until then.
#[repr(C)]
pub struct Event {
    /// Size of this struct in the library; fields may be added at its end.
    pub struct_size: usize,
    /// The request's tag.
    pub tag: u64,
    /// PAGEDLLM_EVENT_*; kinds that a caller does not know are to be skipped.
    pub kind: u32,
    /// Number of the choice, from 0 up to n.
    pub choice: u32,
    /// PAGEDLLM_FINISH_*.
    pub finish_reason: u32,
    /// Status of a failed answer, else PAGEDLLM_OK.
    pub status: Status,
    /// Text to append; never ends inside of a character, and a NUL follows it.
    pub text: *const c_char,
    /// Bytes of text.
    pub text_len: usize,
    /// The tokens of this event.
    pub tokens: *const u32,
    /// Number of tokens.
    pub tokens_len: usize,
    /// Log-probability of each token (NaN where there is none), or NULL where not asked for.
    pub logprobs: *const f32,
    /// The most likely tokens at each place, best first, or NULL where not asked for: those of
    /// token i are alternatives[alternatives_ends[i - 1] .. alternatives_ends[i]].
    pub alternatives: *const Logprob,
    /// See alternatives; tokens_len entries.
    pub alternatives_ends: *const usize,
    /// The stop token or the index of the stop string, else -1.
    pub stop: i64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, found in the prefix cache; known at the end.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Sum of the log-probabilities of a finished choice, or NaN.
    pub cumulative_logprob: f64,
}

/// Frees an event. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedllm_event_free(event: *const Event) {
    free_record(event);
}

/// What the pointers of an event point to.
#[derive(Default)]
pub(crate) struct Content {
    text: Vec<u8>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    alternatives: Vec<Logprob>,
    ends: Vec<usize>,
}

impl Public for Event {
    type Backing = Content;
    const MAGIC: u64 = u64::from_le_bytes(*b"plm_evnt");
}

/// An event before it is handed out.
pub(crate) struct Draft {
    kind: u32,
    choice: u32,
    finish_reason: u32,
    status: Status,
    stop: i64,
    usage: Usage,
    cumulative_logprob: f64,
    content: Content,
}

impl Draft {
    fn new(kind: u32, text: String) -> Self {
        Self {
            kind,
            choice: 0,
            finish_reason: PAGEDLLM_FINISH_NONE,
            status: PAGEDLLM_OK,
            stop: -1,
            usage: Usage::default(),
            cumulative_logprob: f64::NAN,
            content: Content { text: with_nul(text), ..Content::default() },
        }
    }

    pub(crate) fn json(text: String) -> Self {
        Self::new(PAGEDLLM_EVENT_JSON, text)
    }

    pub(crate) fn failed(body: String, failure: &Failure) -> Self {
        Self { status: failure.status, ..Self::new(PAGEDLLM_EVENT_FAILED, body) }
    }

    pub(crate) fn end(usage: Usage) -> Self {
        Self { usage, ..Self::new(PAGEDLLM_EVENT_END, String::new()) }
    }

    /// An event of the facade, with the usage so far and the tokens of the prompt.
    pub(crate) fn of(event: TextEvent, mut usage: Usage, prompt: &[u32]) -> Self {
        match event {
            TextEvent::Text { choice, text, tokens } => {
                let mut draft = Self { choice, usage, ..Self::new(PAGEDLLM_EVENT_TEXT, text) };
                for token in tokens {
                    draft.content.push(token.token, token.logprobs.as_ref());
                }
                draft
            }
            TextEvent::Prompt { logprobs } => {
                let mut draft = Self { usage, ..Self::new(PAGEDLLM_EVENT_PROMPT, String::new()) };
                draft.content.logprobs.reserve(prompt.len());
                for (&token, logprobs) in prompt.iter().zip(&logprobs) {
                    draft.content.push_scored(token, logprobs.as_ref());
                }
                draft
            }
            TextEvent::Finished { choice, reason, fault, usage: of_choice } => {
                usage.output_tokens = of_choice.output_tokens;
                let (finish_reason, stop) = finish(reason);
                Self {
                    choice,
                    finish_reason,
                    stop,
                    usage,
                    cumulative_logprob: of_choice.cumulative_logprob.unwrap_or(f64::NAN),
                    ..Self::new(PAGEDLLM_EVENT_FINISHED, fault.unwrap_or_default())
                }
            }
        }
    }

    /// The event that the caller gets.
    pub(crate) fn into_record(self, tag: u64) -> *const Event {
        let usage = self.usage;
        record::new(self.content, |content: &Content| Event {
            struct_size: size_of::<Event>(),
            tag,
            kind: self.kind,
            choice: self.choice,
            finish_reason: self.finish_reason,
            status: self.status,
            text: content.text.as_ptr().cast(),
            text_len: content.text.len() - 1,
            tokens: content.tokens.as_ptr(),
            tokens_len: content.tokens.len(),
            logprobs: or_null(&content.logprobs),
            alternatives: or_null(&content.alternatives),
            alternatives_ends: or_null(&content.ends),
            stop: self.stop,
            prompt_tokens: usage.prompt_tokens as u64,
            cached_tokens: usage.cached_tokens as u64,
            output_tokens: usage.output_tokens as u64,
            cumulative_logprob: self.cumulative_logprob,
        })
    }
}

impl Content {
    fn push(&mut self, token: u32, logprobs: Option<&TokenLogprobs>) {
        match logprobs {
            Some(_) => self.push_scored(token, logprobs),
            None => self.tokens.push(token),
        }
    }

    fn push_scored(&mut self, token: u32, logprobs: Option<&TokenLogprobs>) {
        self.tokens.push(token);
        self.logprobs.push(logprobs.map_or(f32::NAN, |logprobs| logprobs.chosen.logprob));
        let top = logprobs.map_or(&[][..], |logprobs| &logprobs.top);
        let top = top.iter().map(|one| Logprob { token: one.token, logprob: one.logprob });
        self.alternatives.extend(top);
        self.ends.push(self.alternatives.len());
    }
}

fn or_null<T>(values: &[T]) -> *const T {
    if values.is_empty() { std::ptr::null() } else { values.as_ptr() }
}

fn finish(reason: FinishReason) -> (u32, i64) {
    match reason {
        FinishReason::Length => (PAGEDLLM_FINISH_LENGTH, -1),
        FinishReason::StopToken(token) => (PAGEDLLM_FINISH_STOP_TOKEN, i64::from(token)),
        FinishReason::StopString(index) => (PAGEDLLM_FINISH_STOP_STRING, index as i64),
        FinishReason::Cancelled => (PAGEDLLM_FINISH_CANCELLED, -1),
        FinishReason::Deadline => (PAGEDLLM_FINISH_DEADLINE, -1),
        FinishReason::Fault => (PAGEDLLM_FINISH_FAULT, -1),
    }
}

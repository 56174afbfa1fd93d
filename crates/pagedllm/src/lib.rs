//! The Rust API of pagedllm: text in, text out.
//!
//! An [`Llm`] owns one engine. A [`TextRequest`] goes in, a [`TextStream`] of [`TextEvent`]s comes
//! out; dropping the stream cancels the request. Nothing here is global: two engines live in one
//! process. The crate knows no HTTP, no C and none of OpenAI's types.

mod error;
mod llm;
mod options;
mod request;
mod stream;

pub use error::Error;
pub use llm::{Llm, ModelDescription};
pub use options::Options;
pub use pagedllm_core::{
    FinishReason, InvalidParams, SamplingParams, TokenId, TokenLogprob, TokenLogprobs,
};
pub use pagedllm_engine::EngineStats;
pub use request::{ChatPrompt, Prompt, TextRequest};
pub use stream::{ChoiceUsage, NextEvent, TextEvent, TextStream, TokenText, Usage};

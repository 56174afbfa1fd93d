//! The Rust API of pagedllm: text in, text out.
//!
//! An [`Llm`] owns one engine. A [`TextRequest`] goes in, a [`TextStream`] of [`TextEvent`]s comes
//! out; dropping the stream cancels the request. Nothing here is global: two engines live in one
//! process. The crate knows no HTTP, no C and none of OpenAI's types.

mod error;
mod inspect;
mod isolate;
mod llm;
mod open;
mod options;
mod request;
mod stream;
mod text_thread;

pub use error::Error;
pub use inspect::{Inspection, TensorCount, inspect};
pub use llm::{Llm, ModelDescription, Parts};
pub use options::{
    Applied, Device, KvCacheDType, LoadFormat, ModelDType, OPTIONS, OptionSpec, Options,
    SchedulingPolicy, parse_count, parse_switch,
};
pub use pagedllm_checkpoint::{CheckpointFormat, SamplingDefaults};
pub use pagedllm_core::{
    FinishReason, InvalidParams, SamplingParams, TokenId, TokenLogprob, TokenLogprobs,
};
pub use pagedllm_engine::{
    EngineConfig, EngineStats, Executor, ExecutorError, ExecutorShape, Histogram, StepTicket,
};
pub use pagedllm_executor::{GpuStats, LoadProgress};
pub use pagedllm_tokenizer::{ChatTemplate, Tokenizer};
pub use request::{ChatPrompt, Prompt, TextRequest};
pub use stream::{ChoiceUsage, NextEvent, TextEvent, TextStream, TokenText, Usage};

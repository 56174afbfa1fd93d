//! The step loop: tokens in, tokens out.
//!
//! [`Engine::spawn`] gives an [`Executor`] a thread of its own and returns an [`EngineHandle`],
//! through which any thread submits [`Request`]s. [`Event`]s come out through an [`EventSender`]
//! that the caller gives with each request: one channel for all of them, or one each. The engine
//! never waits for a reader. [`StepLoop`] is the same engine without the thread.

#![forbid(unsafe_code)]

mod batch_builder;
mod config;
mod constraint;
mod engine;
mod executor;
mod handle;
mod inbox;
mod masks;
mod meter;
mod outbox;
mod request;
mod stats;
mod step_loop;
mod stream;
mod sync;

pub use config::EngineConfig;
pub use constraint::{Constraint, ConstraintError};
pub use executor::{Executor, ExecutorError, ExecutorShape, StepTicket};
pub use handle::{Engine, EngineHandle, Health, Shutdown};
pub use inbox::Submission;
pub use pagedllm_scheduler::{Event, PromptHashes, Refused, RequestId, RequestSpec, Usage};
pub use request::{Rejected, Request};
pub use stats::{EngineStats, FinishCounts, Histogram};
pub use step_loop::{Clock, Progress, StepLoop};
pub use stream::{Choice, EventReceiver, EventSender, TokenStream, event_channel};

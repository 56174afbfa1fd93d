//! Chooses which tokens of which sequences run in the next step.
//!
//! There are no phases. A sequence has tokens and a count of those that are computed; a step
//! computes chunks of tokens that are not. Prefill, chunked prefill, decode, a hit in the prefix
//! cache and the recomputation of a preempted sequence are all the same thing.
//!
//! [`Scheduler::schedule`] makes a [`StepPlan`], somebody runs it, and [`Scheduler::commit`]
//! applies the result. The next plan may be made before that. No clock, thread, device or text.

#![forbid(unsafe_code)]

mod commit;
mod event;
mod limits;
mod plan;
mod request;
mod schedule;
mod scheduler;
mod sequence;

pub use event::{Event, Usage};
pub use limits::StepLimits;
pub use plan::{Admission, Chunk, Preemption, StepBudget, StepPlan};
pub use request::{PromptHashes, Refused, RequestId, RequestSpec};
pub use scheduler::Scheduler;
pub use sequence::{RequestTerms, Sequence};

//! Requests as callers make them, and why one is turned away.

use std::time::Duration;

use pagedllm_core::{SamplingParams, TokenId};
use pagedllm_scheduler::Refused;

use crate::{Constraint, ExecutorError};

/// What to generate. Tokens in, tokens out.
pub struct Request {
    /// Prompt tokens; at least one.
    pub prompt: Vec<TokenId>,
    /// How to sample and when to stop.
    pub params: SamplingParams,
    /// The model's end-of-sequence tokens.
    pub eos_token_ids: Vec<TokenId>,
    /// Lower values run first; equal ones in order of arrival.
    pub priority: i32,
    /// Cached prefixes are shared only between requests with the same salt.
    pub cache_salt: Vec<u8>,
    /// Whether cached prefixes may be read and written.
    pub caching: bool,
    /// The request ends with [`FinishReason::Deadline`](pagedllm_core::FinishReason) when it has
    /// not ended this long after it was submitted.
    pub deadline: Option<Duration>,
    /// Limits what may be drawn (a grammar).
    pub constraint: Option<Box<dyn Constraint>>,
}

impl Request {
    /// A request with no end-of-sequence token, priority 0, an empty salt, caching, and neither
    /// deadline nor constraint.
    #[must_use]
    pub fn new(prompt: Vec<TokenId>, params: SamplingParams) -> Self {
        Self {
            prompt,
            params,
            eos_token_ids: Vec::new(),
            priority: 0,
            cache_salt: Vec::new(),
            caching: true,
            deadline: None,
            constraint: None,
        }
    }
}

/// Why the engine did not take a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It can never run as it is.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Too many requests wait.
    #[error("{max_num_queued} requests are waiting; try again in {retry_after_ms} ms")]
    QueueFull {
        /// The limit.
        max_num_queued: usize,
        /// When there should be room, judged by how fast the queue has been draining.
        retry_after_ms: u64,
    },
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The device failed; nothing runs any more.
    #[error(transparent)]
    Failed(#[from] ExecutorError),
}

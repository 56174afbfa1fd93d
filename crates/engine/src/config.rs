//! Settings of one engine.

use std::time::Duration;

use tracing::dispatcher::Dispatch;

/// Settings of one engine. What the executor can take bounds all of them.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Most sequences that run at once; `None` takes the executor's limit.
    pub max_num_seqs: Option<usize>,
    /// Most tokens in a step; `None` takes the executor's limit.
    pub max_num_batched_tokens: Option<usize>,
    /// Most requests that wait; one more is refused with [`QueueFull`](crate::Rejected::QueueFull).
    pub max_num_queued: usize,
    /// Longest step that prefill may cause while others decode; `None` sets no bound.
    pub max_decode_stall: Option<Duration>,
    /// Whether prefixes are reused at all.
    pub prefix_caching: bool,
    /// Whether requests run by their priority; if not, one that brings any but 0 is refused.
    pub sorts_by_priority: bool,
    /// Seed of requests that bring none; `None` draws a fresh one for each.
    pub seed: Option<u64>,
    /// Time for the grammar masks of one step; a request whose mask is late ends alone.
    pub mask_time_limit: Duration,
    /// Threads that fill grammar masks, started with the first such request.
    pub num_mask_threads: usize,
    /// Where the engine's threads log.
    pub dispatch: Dispatch,
}

impl Default for EngineConfig {
    /// 1,024 waiting requests, 100 ms of decode stall, prefix caching,
    /// priorities, fresh seeds, 200 ms for masks, no log.
    fn default() -> Self {
        Self {
            max_num_seqs: None,
            max_num_batched_tokens: None,
            max_num_queued: 1024,
            max_decode_stall: Some(Duration::from_millis(100)),
            prefix_caching: true,
            sorts_by_priority: true,
            seed: None,
            mask_time_limit: Duration::from_millis(200),
            num_mask_threads: 2,
            dispatch: Dispatch::none(),
        }
    }
}

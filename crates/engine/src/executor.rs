//! The coarse seam: one step in, sampled tokens out. Everything above it runs with a fake.

use pagedllm_core::{KvGroup, SamplingBatch, StepInput, StepOutput};

/// A device, or several, that runs steps of one model in the order they are submitted.
///
/// The calls of one step are `submit`, `sample`, `wait`, in this order. With
/// [`ExecutorShape::max_steps_in_flight`] = 2, step N+1 may be submitted and sampled before step
/// N is waited for; waits come in submit order.
pub trait Executor: Send {
    /// What the executor can take; constant for its life.
    fn shape(&self) -> &ExecutorShape;
    /// Starts the forward pass of a step. Returns at once where the device is asynchronous.
    fn submit(&mut self, input: StepInput) -> StepTicket;
    /// Starts the sampling of a submitted step. May come later than `submit`, so that grammar
    /// masks can be made while the forward pass runs.
    fn sample(&mut self, ticket: &StepTicket, sampling: SamplingBatch);
    /// Waits for the results of a step.
    ///
    /// # Errors
    /// The device is gone: no further step can run.
    fn wait(&mut self, ticket: StepTicket) -> Result<StepOutput, ExecutorError>;
}

/// Sizes that the scheduler and the request checks need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorShape {
    /// KV groups; all draw from one pool.
    pub groups: Vec<KvGroup>,
    /// Token slots in a block.
    pub block_size: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Width of the logits.
    pub vocab_size: usize,
    /// Longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Most sequences in a step, and rows of penalty state.
    pub max_num_seqs: usize,
    /// Most logit rows in a step.
    pub max_logit_rows: usize,
    /// 1 where `submit` runs the step at once, 2 where it overlaps.
    pub max_steps_in_flight: usize,
}

/// A step in flight, numbered from 0 in submit order.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a step in flight must be waited for"]
pub struct StepTicket(pub u64);

/// The device failed; the engine ends all streams with this and takes no more requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device failed: {message}")]
pub struct ExecutorError {
    /// What the device said.
    pub message: String,
}

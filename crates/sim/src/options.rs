//! What a seed decides: the sizes of everything, and how often things happen.

use pagedllm_core::{DType, KvGroup, KvLayout};
use pagedllm_engine::ExecutorShape;

use crate::model::Model;
use crate::random::Random;

/// One world. Printed when it fails, and made from its seed alone.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Sizes of executor and cache.
    pub shape: ExecutorShape,
    /// The model.
    pub model: Model,
    /// Turns of the safety phase, in which requests arrive and faults happen.
    pub num_turns: usize,
    /// Requests that arrive in a hundred turns.
    pub arrival_percent: usize,
    /// Of a hundred turns, those in which something is cancelled.
    pub cancel_percent: usize,
    /// Of a hundred requests, those with a deadline.
    pub deadline_percent: usize,
    /// Of a hundred requests, those with several choices.
    pub choices_percent: usize,
    /// Of a hundred requests, those with a grammar.
    pub constraint_percent: usize,
    /// Of a hundred requests, those with penalties.
    pub penalty_percent: usize,
    /// Of a hundred requests, those with prompt log-probabilities.
    pub score_percent: usize,
    /// Longest prompt.
    pub max_prompt: usize,
    /// Most tokens generated.
    pub max_tokens: usize,
    /// Prefixes that prompts share.
    pub num_prefixes: usize,
    /// The step at which the device fails, if it does.
    pub device_fails_at: Option<u64>,
    /// Whether prefixes are reused.
    pub prefix_caching: bool,
}

impl Options {
    /// Draws a world. Sizes are small, so that everything runs out often.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let block_size: usize = random.pick(&[1, 2, 4, 8, 16]);
        let max_num_seqs = random.between(1, 10);
        let max_num_batched_tokens = max_num_seqs + random.pick(&[0, 1, 7, 40, 200]);
        let max_model_len: usize = random.pick(&[12, 40, 100, 160]);
        let windows: &[Option<usize>] = random.pick(&[
            &[None],
            &[None],
            &[None, None],
            &[None, Some(8)],
            &[Some(5)],
            &[Some(3), None, Some(20)],
        ]);
        let longest_blocks = max_model_len.div_ceil(block_size) * windows.len();
        // From less than the longest sequence to room for everybody.
        let num_blocks = match random.below(4) {
            0 => random.between(longest_blocks.div_ceil(2), longest_blocks),
            1 => longest_blocks + random.below(4),
            2 => longest_blocks * 2,
            _ => longest_blocks * max_num_seqs,
        };
        let vocab_size = random.pick(&[3, 40, 65, 1000]);
        let max_prompt = random.between(1, max_model_len);
        Self {
            seed,
            shape: shape(windows, block_size, num_blocks, vocab_size),
            model: Model { vocab_size, fault_every: random.pick(&[0, 0, 100, 1000]) },
            num_turns: random.pick(&[30, 100, 300]),
            arrival_percent: random.pick(&[5, 30, 100]),
            cancel_percent: random.pick(&[0, 5, 30]),
            deadline_percent: random.pick(&[0, 10]),
            choices_percent: random.pick(&[0, 30, 80]),
            constraint_percent: random.pick(&[0, 0, 30]),
            penalty_percent: random.pick(&[0, 30]),
            score_percent: random.pick(&[0, 20]),
            max_prompt,
            max_tokens: random.pick(&[1, 5, 30, 100]),
            num_prefixes: random.between(1, 4),
            device_fails_at: random.chance(3).then(|| random.between(0, 60) as u64),
            prefix_caching: !random.chance(15),
        }
        .sized(max_num_seqs, max_num_batched_tokens, max_model_len, random)
    }

    fn sized(
        mut self,
        max_num_seqs: usize,
        max_num_batched_tokens: usize,
        max_model_len: usize,
        random: &mut Random,
    ) -> Self {
        self.shape.max_num_seqs = max_num_seqs;
        self.shape.max_num_batched_tokens = max_num_batched_tokens;
        self.shape.max_model_len = max_model_len;
        self.shape.max_logit_rows = max_num_seqs + random.pick(&[0, 1, 20]);
        self
    }
}

/// An executor of this size; the limits of a step are generous.
#[must_use]
pub fn shape(
    windows: &[Option<usize>],
    block_size: usize,
    num_blocks: usize,
    vocab_size: usize,
) -> ExecutorShape {
    let layout = KvLayout { block_size, num_kv_heads: 1, head_dim: 1, dtype: DType::F32 };
    let group = |(layer, &window)| KvGroup { layers: vec![layer], layout, window };
    ExecutorShape {
        groups: windows.iter().enumerate().map(group).collect(),
        block_size,
        num_blocks,
        vocab_size,
        max_model_len: 4096,
        max_num_batched_tokens: 8192,
        max_num_seqs: 256,
        max_logit_rows: 1024,
        max_steps_in_flight: 2,
    }
}

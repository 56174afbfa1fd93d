//! How large a step, a sequence and the cache may be, and what can never fit.

use pagedllm_core::{SamplingParams, TokenId};
use pagedllm_kv::KvShape;

use crate::Refused;

/// Limits of every step and every sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Most sequences that run at once, and rows of penalty state.
    pub max_num_seqs: usize,
    /// Most logit rows in a step.
    pub max_logit_rows: usize,
    /// Longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Width of the logits.
    pub vocab_size: usize,
    /// Longest sequence that the whole cache can hold, at most `max_model_len`.
    pub cache_len: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Token slots in a block.
    pub block_size: usize,
}

impl StepLimits {
    /// Limits for a cache of this shape.
    #[must_use]
    pub fn new(
        shape: &KvShape,
        max_num_batched_tokens: usize,
        max_num_seqs: usize,
        max_logit_rows: usize,
        max_model_len: usize,
        vocab_size: usize,
    ) -> Self {
        let mut cache_len = (0, max_model_len);
        while cache_len.0 < cache_len.1 {
            let middle = (cache_len.0 + cache_len.1).div_ceil(2);
            if shape.peak_blocks(middle, max_num_batched_tokens) <= shape.num_blocks() {
                cache_len.0 = middle;
            } else {
                cache_len.1 = middle - 1;
            }
        }
        Self {
            max_num_batched_tokens,
            max_num_seqs,
            max_logit_rows,
            max_model_len,
            vocab_size,
            cache_len: cache_len.0,
            num_blocks: shape.num_blocks(),
            block_size: shape.block_size(),
        }
    }

    /// Refuses what can never run. Sampling parameters are checked by their own `check`.
    ///
    /// # Errors
    /// The first reason why it can't.
    pub fn check(&self, prompt: &[TokenId], params: &SamplingParams) -> Result<(), Refused> {
        if prompt.is_empty() {
            return Err(Refused::EmptyPrompt);
        }
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= self.vocab_size) {
            return Err(Refused::UnknownToken { token, vocab_size: self.vocab_size });
        }
        let output = usize::from(params.max_tokens > 0);
        if prompt.len() + output > self.max_model_len {
            return Err(Refused::TooLong {
                prompt: prompt.len(),
                output,
                max_model_len: self.max_model_len,
            });
        }
        if prompt.len() + output > self.cache_len {
            return Err(Refused::TooLargeForCache {
                needed: (prompt.len() + output).div_ceil(self.block_size),
                num_blocks: self.num_blocks,
            });
        }
        let choices = params.best_of as usize;
        if choices > self.max_num_seqs {
            return Err(Refused::TooManyChoices { choices, max_num_seqs: self.max_num_seqs });
        }
        Ok(())
    }
}

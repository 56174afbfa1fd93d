//! One growing list of tokens, and how much of it has been computed.
//!
//! ```text
//! tokens      [ prompt ................ | output ...... ] pending
//! computed    [0, num_computed)                              KV is there, published if full
//! in flight   [num_computed, num_scheduled)                  planned, not committed
//! to do       [num_scheduled, len)                           len = tokens + pending
//! ```
//! A *pending* token is one that a step in flight will draw.

use std::sync::Arc;

use pagedllm_core::{BlockHash, BlockHasher, FinishReason, SamplingParams, SequenceId, TokenId};
use pagedllm_kv::SequenceBlocks;

use crate::{Event, RequestId, Usage};

/// What all sequences of a request share.
#[derive(Clone, Debug)]
pub struct RequestTerms {
    /// The request.
    pub id: RequestId,
    /// Prompt tokens.
    pub prompt_len: usize,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// Tokens that end a sequence, ascending.
    pub stop_tokens: Vec<TokenId>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Lower values run first.
    pub priority: i32,
    /// Whether the prefix cache is used.
    pub caching: bool,
    /// Longest that a sequence may get.
    pub max_len: usize,
}

/// Who runs first: priority, then age, then choice. Lower ones go first.
pub(crate) type Rank = (i32, u64, u32);

/// Where a sequence is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Running,
}

/// One sequence.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) terms: Arc<RequestTerms>,
    pub(crate) choice: u32,
    pub(crate) rank: Rank,
    pub(crate) state: State,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) num_computed: usize,
    pub(crate) num_scheduled: usize,
    pub(crate) num_pending: usize,
    /// Row of the latest plan that draws the pending token.
    pub(crate) pending_row: u32,
    pub(crate) blocks: SequenceBlocks,
    pub(crate) hasher: BlockHasher,
    pub(crate) hashes: Vec<BlockHash>,
    /// Blocks that were offered to the cache since the sequence was last admitted.
    pub(crate) num_offered: usize,
    /// Hashes under which blocks of this sequence are in the cache, for eviction after a fault.
    pub(crate) published: Vec<BlockHash>,
    /// Prompt positions whose scores were planned, and those that have arrived.
    pub(crate) num_score_planned: usize,
    pub(crate) num_scored: usize,
    /// Choices that this sequence still stands for; more than one until it forks.
    pub(crate) num_choices: usize,
    /// Choices that were ended before they existed.
    pub(crate) early_endings: Vec<(u32, FinishReason)>,
    /// Rows of penalty state, one a choice; empty while it waits.
    pub(crate) state_rows: Vec<u32>,
    pub(crate) needs_state_reset: bool,
    pub(crate) cached_tokens: usize,
    pub(crate) has_run: bool,
    pub(crate) cumulative_logprob: Option<f64>,
}

impl Sequence {
    /// Its name.
    #[must_use]
    pub const fn id(&self) -> SequenceId {
        self.id
    }
    /// What it shares with the request's other sequences.
    #[must_use]
    pub fn terms(&self) -> &RequestTerms {
        &self.terms
    }
    /// Which choice it is; the first one until it forks.
    #[must_use]
    pub const fn choice(&self) -> u32 {
        self.choice
    }
    /// Known tokens, prompt and output.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }
    /// Tokens drawn by steps in flight.
    #[must_use]
    pub const fn num_pending(&self) -> usize {
        self.num_pending
    }
    /// Its blocks.
    pub const fn blocks(&self) -> &SequenceBlocks {
        &self.blocks
    }
    /// Rows of penalty state, one for each choice that it stands for.
    #[must_use]
    pub fn state_rows(&self) -> &[u32] {
        &self.state_rows
    }
    /// Tokens whose KV is in the cache or will be after the steps in flight.
    #[must_use]
    pub const fn num_scheduled(&self) -> usize {
        self.num_scheduled
    }

    /// Known and pending tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len() + self.num_pending
    }
    /// Tokens that could be computed now. An end by length is known here, so no step is spent on
    /// it; a sequence that is about to fork waits for it.
    pub(crate) fn num_to_do(&self) -> usize {
        let forks = self.num_choices > 1 && self.num_pending > 0;
        let generates = self.terms.params.max_tokens > 0;
        if forks || (generates && self.len() >= self.terms.max_len) {
            return 0;
        }
        self.len() - self.num_scheduled
    }
    pub(crate) fn num_output(&self) -> usize {
        self.tokens.len() - self.terms.prompt_len
    }
    /// Most tokens that may come from the cache: one must be left to compute, and tokens whose
    /// successor is to be scored must be computed.
    pub(crate) fn max_hit_tokens(&self) -> usize {
        if !self.terms.caching {
            return 0;
        }
        let computed = self.len() - 1;
        match self.terms.params.prompt_logprobs {
            Some(_) if self.num_scored + 1 < self.terms.prompt_len => computed.min(self.num_scored),
            _ => computed,
        }
    }
    /// Hashes every full block of known tokens that has none yet.
    pub(crate) fn hash_full_blocks(&mut self, block_size: usize) {
        while (self.hashes.len() + 1) * block_size <= self.tokens.len() {
            let start = self.hashes.len() * block_size;
            let hash = self.hasher.push(&self.tokens[start..start + block_size]);
            self.hashes.push(hash);
        }
    }
    pub(crate) fn finished(&self, choice: u32, reason: FinishReason) -> Event {
        Event::Finished {
            request: self.terms.id,
            choice,
            reason,
            usage: Usage {
                prompt_tokens: self.terms.prompt_len,
                cached_tokens: self.cached_tokens,
                output_tokens: self.num_output(),
            },
            cumulative_logprob: self.cumulative_logprob,
            message: None,
        }
    }
}

//! What a caller asks for, in tokens, and why it can be refused before it is queued.

use std::fmt;

use pagedllm_core::{BlockHash, BlockHasher, InvalidParams, SamplingParams, TokenId};

/// One request. Unique for the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// The `number`-th request of an engine.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// Chained hashes of the full blocks of a prompt, made outside of the step loop.
#[derive(Clone, Debug)]
pub struct PromptHashes {
    pub(crate) hasher: BlockHasher,
    pub(crate) hashes: Vec<BlockHash>,
}

impl PromptHashes {
    /// Hashes every full block of `prompt`. Sequences share blocks only under the same `salt`.
    #[must_use]
    pub fn new(prompt: &[TokenId], salt: &[u8], block_size: usize) -> Self {
        let mut hasher = BlockHasher::new(salt, &[]);
        let hashes = prompt.chunks_exact(block_size).map(|block| hasher.push(block)).collect();
        Self { hasher, hashes }
    }
}

/// A request as the scheduler takes it: checked by [`StepLimits::check`](crate::StepLimits::check).
#[derive(Clone, Debug)]
pub struct RequestSpec {
    /// Its name.
    pub id: RequestId,
    /// Prompt tokens; at least one.
    pub prompt: Vec<TokenId>,
    /// Hashes of the prompt's full blocks.
    pub hashes: PromptHashes,
    /// How to sample and when to stop.
    pub params: SamplingParams,
    /// Tokens that end a sequence unless `params.ignore_eos`.
    pub eos_token_ids: Vec<TokenId>,
    /// Lower values run first; equal ones in order of arrival.
    pub priority: i32,
    /// Key of the random numbers.
    pub seed: u64,
    /// Whether blocks of other sequences may be reused and its own may be offered to others.
    pub caching: bool,
}

/// The request can never run, whatever else finishes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Params(#[from] InvalidParams),
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A prompt token is outside of the model's vocabulary.
    #[error("prompt token id {token} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Width of the logits.
        vocab_size: usize,
    },
    /// Prompt and output exceed the context.
    #[error(
        "the prompt has {prompt} tokens and at least {output} must be generated; \
         the longest sequence is {max_model_len} tokens"
    )]
    TooLong {
        /// Prompt tokens.
        prompt: usize,
        /// Tokens that must at least fit behind the prompt.
        output: usize,
        /// Longest sequence.
        max_model_len: usize,
    },
    /// The whole KV cache is too small for the prompt.
    #[error("the prompt needs {needed} KV blocks; the cache has {num_blocks}")]
    TooLargeForCache {
        /// Blocks that the prompt and one more token take.
        needed: usize,
        /// Blocks of the pool.
        num_blocks: usize,
    },
    /// More choices than sequences in a step.
    #[error("{choices} choices are generated at once; at most {max_num_seqs} sequences can run")]
    TooManyChoices {
        /// `best_of`.
        choices: usize,
        /// Most sequences in a step.
        max_num_seqs: usize,
    },
}

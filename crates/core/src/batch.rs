//! What one step computes, as plain data.
//!
//! Letters in shapes: `T` tokens in the step, `S` chunks (one a sequence), `R` logit rows.

use crate::{BlockCopy, TokenId};

/// Where the id of an input token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The host knows it.
    Known(TokenId),
    /// The token that row `row` of the previous step's sampling batch draws; the device
    /// resolves it, so that this step can be submitted before that one is done.
    SampledBy {
        /// Row of the previous step's `SamplingBatch`.
        row: u32,
    },
}

/// Chunks of any length, one after the other. Prefill and decode are not told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaggedBatch {
    /// `[T]` input tokens, chunk after chunk.
    pub token_ids: Vec<TokenSource>,
    /// `[T]` position of each token in its sequence.
    pub positions: Vec<u32>,
    /// `[S + 1]` first token of each chunk, then `T`.
    pub query_starts: Vec<u32>,
    /// `[S]` tokens of the sequence in the cache, this step's included.
    pub seq_lens: Vec<u32>,
    /// `[R]` indices into `T` of the tokens whose hidden state goes to the head, ascending.
    pub logit_rows: Vec<u32>,
    /// Where KV lives, a group of layers each.
    pub groups: Vec<GroupTables>,
}

/// Block tables of one KV group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupTables {
    /// `[T]` slot that each token writes: `block * block_size + offset`.
    pub slot_mapping: Vec<u32>,
    /// `[S, max_blocks]` block ids of each sequence; entries past its length are 0.
    pub block_tables: Vec<u32>,
    /// Columns of `block_tables`.
    pub max_blocks: usize,
}

impl RaggedBatch {
    /// `T`.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }
    /// `S`.
    #[must_use]
    pub fn num_seqs(&self) -> usize {
        self.seq_lens.len()
    }
    /// Tokens of chunk `chunk` as a range into `T`.
    #[must_use]
    pub fn chunk(&self, chunk: usize) -> std::ops::Range<usize> {
        self.query_starts[chunk] as usize..self.query_starts[chunk + 1] as usize
    }

    /// Asserts the shapes and the order of everything.
    ///
    /// # Panics
    /// If the batch is malformed, which is a bug of its builder.
    pub fn check(&self, block_size: usize) {
        let (tokens, seqs) = (self.num_tokens(), self.num_seqs());
        assert!(tokens > 0 && seqs > 0, "an empty step");
        assert_eq!(self.positions.len(), tokens);
        assert_eq!(self.query_starts.len(), seqs + 1);
        assert_eq!(self.query_starts[0], 0);
        assert_eq!(self.query_starts[seqs] as usize, tokens);
        assert!(self.logit_rows.is_sorted(), "logit rows ascend");
        assert!(self.logit_rows.iter().all(|&r| (r as usize) < tokens));
        assert!(!self.groups.is_empty());
        for chunk in 0..seqs {
            let range = self.chunk(chunk);
            assert!(!range.is_empty(), "chunk {chunk} is empty");
            let first = self.positions[range.start];
            assert!(self.positions[range.clone()].iter().zip(first..).all(|(&p, want)| p == want));
            let end = self.positions[range.end - 1] + 1;
            assert_eq!(end, self.seq_lens[chunk], "a chunk ends where its sequence does");
        }
        for group in &self.groups {
            assert_eq!(group.slot_mapping.len(), tokens);
            assert_eq!(group.block_tables.len(), seqs * group.max_blocks);
            for chunk in 0..seqs {
                let table = &group.block_tables[chunk * group.max_blocks..][..group.max_blocks];
                for token in self.chunk(chunk) {
                    let position = self.positions[token] as usize;
                    let slot =
                        table[position / block_size] as usize * block_size + position % block_size;
                    assert_eq!(group.slot_mapping[token] as usize, slot, "slot of token {token}");
                }
            }
        }
    }
}

/// A change of the penalty state that lives on the device, before the step runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateOp {
    /// Row `row` now belongs to a sequence with these tokens.
    Reset {
        /// State row.
        row: u32,
        /// Tokens of the prompt (repetition penalty only).
        prompt: Vec<TokenId>,
        /// Tokens generated so far (all penalties); not empty after a preemption.
        output: Vec<TokenId>,
    },
    /// Row `to` continues as row `from` (a fork).
    Copy {
        /// State row that is read.
        from: u32,
        /// State row that is overwritten.
        to: u32,
    },
}

/// Everything that a forward pass needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepInput {
    /// The tokens.
    pub batch: RaggedBatch,
    /// Block copies to run before the forward pass, in order.
    pub copies: Vec<BlockCopy>,
    /// Changes of the penalty state, in order.
    pub state_ops: Vec<StateOp>,
}

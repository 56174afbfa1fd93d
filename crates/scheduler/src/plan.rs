//! What one step computes, as a value: it can be printed, compared, recorded and replayed.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use pagedllm_core::{BlockCopy, BlockId, SequenceId, StateOp};

use crate::RequestId;

/// What the scheduler is told about the world before it plans a step. It has no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBudget {
    /// Time since the engine started.
    pub now: Duration,
    /// Most tokens in this step.
    pub max_num_batched_tokens: usize,
    /// Most tokens of long chunks in this step if it also carries sequences that are only one
    /// token behind, so that those do not stall; `None` sets no bound.
    pub max_num_prefill_tokens: Option<usize>,
}

/// What one step computes. Plain data: the same calls give the same plans.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPlan {
    /// Counts plans from 0.
    pub number: u64,
    /// What it was planned under.
    pub budget: StepBudget,
    /// Token ranges to compute, in batch order.
    pub chunks: Vec<Chunk>,
    /// Block copies to run before the forward pass.
    pub copies: Vec<BlockCopy>,
    /// Changes of the penalty state, before the forward pass.
    pub state_ops: Vec<StateOp>,
    /// Sequences that joined, or joined again.
    pub admitted: Vec<Admission>,
    /// Sequences that lost their blocks and wait to be recomputed.
    pub preempted: Vec<Preemption>,
    /// Blocks that these left without a holder.
    pub freed: Vec<BlockId>,
    /// Blocks that were taken for this step.
    pub taken: Vec<BlockId>,
}

/// Consecutive tokens of one sequence, computed in one step.
///
/// A chunk of one token at the end of the sequence is what the field calls decode, and any other
/// chunk is prefill; the scheduler itself draws no such line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The sequence that the tokens belong to.
    pub sequence: SequenceId,
    /// Where the scheduler keeps it.
    pub slot: usize,
    /// Positions of the tokens in the sequence.
    pub tokens: Range<usize>,
    /// If set, the last token is the one that this row of the previous plan draws.
    pub sampled_by: Option<u32>,
    /// First row of the sampling batch that belongs to the chunk.
    pub first_row: usize,
    /// Positions whose next token is scored, one row each, before the rows that draw.
    pub scores: Range<usize>,
    /// Rows that draw, all from the chunk's last token: 0 if the chunk stops short of the end.
    pub num_samples: usize,
}

impl Chunk {
    /// Rows of the sampling batch that belong to the chunk.
    #[must_use]
    pub const fn num_rows(&self) -> usize {
        self.scores.end - self.scores.start + self.num_samples
    }
    /// Rows of logits that it needs: draws share one.
    #[must_use]
    pub const fn num_logit_rows(&self) -> usize {
        self.scores.end - self.scores.start + if self.num_samples > 0 { 1 } else { 0 }
    }
}

/// A sequence that joined the running ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Its request.
    pub request: RequestId,
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens that were looked up in the prefix cache; 0 where it may not be read.
    pub queried_tokens: usize,
    /// Of these, tokens that were found.
    pub cached_tokens: usize,
    /// Whether it never ran before.
    pub is_first: bool,
}

/// A sequence that lost its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// Its request.
    pub request: RequestId,
    /// The sequence.
    pub sequence: SequenceId,
}

impl StepPlan {
    /// A plan of nothing.
    #[must_use]
    pub fn new(number: u64, budget: StepBudget) -> Self {
        Self {
            number,
            budget,
            chunks: Vec::new(),
            copies: Vec::new(),
            state_ops: Vec::new(),
            admitted: Vec::new(),
            preempted: Vec::new(),
            freed: Vec::new(),
            taken: Vec::new(),
        }
    }
    /// Tokens in the step.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.tokens.len()).sum()
    }
    /// Rows of the sampling batch.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk.first_row + chunk.num_rows())
    }
    /// Rows of logits.
    #[must_use]
    pub fn num_logit_rows(&self) -> usize {
        self.chunks.iter().map(Chunk::num_logit_rows).sum()
    }

    /// Asserts what must hold of every plan: its budget, the order of its rows, that a sequence
    /// appears once, that a preempted one has left with its copies, and that no block which the
    /// plan freed is taken again.
    ///
    /// # Panics
    /// If it does not hold, which is a bug of the scheduler.
    pub fn check(&self, max_logit_rows: usize) {
        assert!(self.num_tokens() <= self.budget.max_num_batched_tokens, "within the budget");
        assert!(self.num_logit_rows() <= max_logit_rows, "within the logit rows");
        let mut sequences: HashSet<_> = self.preempted.iter().map(|one| one.sequence).collect();
        assert_eq!(sequences.len(), self.preempted.len(), "preempted once");
        let mut first_row = 0;
        for chunk in &self.chunks {
            assert!(!chunk.tokens.is_empty(), "{} computes something", chunk.sequence);
            assert!(sequences.insert(chunk.sequence), "{} is planned once", chunk.sequence);
            assert_eq!(chunk.first_row, first_row);
            let scores = &chunk.scores;
            assert!(scores.is_empty() || chunk.tokens.start <= scores.start);
            assert!(scores.end <= chunk.tokens.end);
            first_row += chunk.num_rows();
        }
        let freed: HashSet<_> = self.freed.iter().copied().collect();
        let taken: HashSet<_> = self.taken.iter().copied().collect();
        assert_eq!(taken.len(), self.taken.len(), "a block is taken once");
        assert!(freed.is_disjoint(&taken), "no block that the plan freed is taken again");
        for copy in &self.copies {
            assert!(taken.contains(&copy.target), "copies go to blocks of this plan");
            assert!(!taken.contains(&copy.source), "copies come from blocks that were there");
        }
    }
}

//! An executor without a device. It keeps, in simulated blocks, what each token wrote, reads it
//! back only through the block tables that it is given, and runs each step as late as it may. So
//! a wrong slot, a stale block, a missing copy or a token taken from the wrong row shows.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use pagedllm_core::{
    BlockCopy, BlockId, Draw, RaggedBatch, RowOutput, RowTask, SamplingBatch, StateOp, StepInput,
    StepOutput, TokenId, TokenSource,
};
use pagedllm_engine::{Executor, ExecutorError, ExecutorShape, StepTicket};

use crate::model::{Chain, Model, NO_TOKENS, Seen, extend};

/// A mistake made on purpose, to prove that the simulator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Copy-on-write never copies.
    SkipCopies,
    /// A token is sometimes written to the slot beside its own.
    WrongSlot,
    /// A token that the previous step draws is taken from its first row.
    FirstRow,
    /// The penalty state of a row is not reset.
    SkipResets,
    /// A step runs before the one that was submitted earlier has written its last token.
    LateWrite,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::SkipCopies, Self::WrongSlot, Self::FirstRow, Self::SkipResets, Self::LateWrite];
}

/// What one slot of the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    position: u32,
    token: TokenId,
    chain: Chain,
}

/// Blocks to be filled with nonsense, put here by the simulator.
pub type Poison = Arc<Mutex<Vec<BlockId>>>;

struct Submitted {
    number: u64,
    poison: Vec<BlockId>,
    input: StepInput,
    sampling: Option<SamplingBatch>,
}

/// The executor.
pub struct FakeExecutor {
    shape: ExecutorShape,
    model: Model,
    bug: Option<Bug>,
    /// The step whose wait fails, and all after it.
    fails_at: Option<u64>,
    /// `[groups, num_blocks * block_size]`.
    cells: Vec<Vec<Option<Cell>>>,
    states: Vec<Option<Seen>>,
    /// Tokens that each row of the previous step drew.
    drawn: Vec<Option<TokenId>>,
    late_write: Option<(usize, Cell)>,
    steps: VecDeque<Submitted>,
    next: u64,
    poison: Poison,
}

impl FakeExecutor {
    /// An executor with an empty cache.
    #[must_use]
    pub fn new(shape: ExecutorShape, model: Model, poison: Poison) -> Self {
        let num_slots = shape.num_blocks * shape.block_size;
        Self {
            cells: vec![vec![None; num_slots]; shape.groups.len()],
            states: vec![None; shape.max_num_seqs],
            drawn: Vec::new(),
            late_write: None,
            steps: VecDeque::new(),
            next: 0,
            bug: None,
            fails_at: None,
            shape,
            model,
            poison,
        }
    }
    /// Makes a mistake on purpose.
    #[must_use]
    pub const fn with_bug(mut self, bug: Option<Bug>) -> Self {
        self.bug = bug;
        self
    }
    /// Fails for good at this step.
    #[must_use]
    pub const fn failing_at(mut self, step: Option<u64>) -> Self {
        self.fails_at = step;
        self
    }

    fn check(&self, step: &Submitted, sampling: &SamplingBatch) {
        let StepInput { batch, .. } = &step.input;
        batch.check(self.shape.block_size);
        assert!(batch.num_tokens() <= self.shape.max_num_batched_tokens, "too many tokens");
        assert!(batch.num_seqs() <= self.shape.max_num_seqs, "too many sequences");
        assert!(batch.logit_rows.len() <= self.shape.max_logit_rows, "too many logit rows");
        let mut states = HashSet::new();
        let mut last = 0;
        for row in &sampling.rows {
            assert!((row.logit_row as usize) < batch.logit_rows.len(), "the row has logits");
            assert!(row.logit_row == last || row.logit_row == last + 1, "no logits are skipped");
            last = row.logit_row;
            if let RowTask::Draw(Draw { state_row: Some(state), .. }) = row.task {
                assert!(states.insert(state), "a state row is used once a step");
            }
        }
        for group in &batch.groups {
            let slots: HashSet<_> = group.slot_mapping.iter().collect();
            assert_eq!(slots.len(), group.slot_mapping.len(), "no slot is written twice");
        }
    }

    fn run(&mut self, step: Submitted) -> StepOutput {
        let sampling = step.sampling.as_ref().expect("sampled before it is waited for");
        self.check(&step, sampling);
        let block_size = self.shape.block_size;
        for block in &step.poison {
            for cells in &mut self.cells {
                cells[block.index() * block_size..][..block_size].fill(None);
            }
        }
        for &BlockCopy { source, target } in &step.input.copies {
            if self.bug == Some(Bug::SkipCopies) {
                continue;
            }
            for cells in &mut self.cells {
                let from = source.index() * block_size;
                cells.copy_within(from..from + block_size, target.index() * block_size);
            }
        }
        self.change_states(&step.input.state_ops);
        let batch = &step.input.batch;
        let chains = self.forward(batch);
        let mut rows = Vec::with_capacity(sampling.rows.len());
        let mut drawn = Vec::with_capacity(sampling.rows.len());
        for row in &sampling.rows {
            let chain = chains[batch.logit_rows[row.logit_row as usize] as usize];
            let output = self.sample(chain, &row.task, &sampling.masks, row.num_logprobs);
            drawn.push(output.tokens.first().copied());
            rows.push(output);
        }
        self.drawn = drawn;
        StepOutput { rows }
    }

    fn change_states(&mut self, ops: &[StateOp]) {
        for op in ops {
            match op {
                StateOp::Reset { .. } if self.bug == Some(Bug::SkipResets) => {}
                StateOp::Reset { row, prompt, output } => {
                    self.states[*row as usize] = Some(Seen::new(prompt, output));
                }
                StateOp::Copy { from, to } => {
                    self.states[*to as usize] = self.states[*from as usize];
                }
            }
        }
    }

    /// Writes every token of the batch and gives the chain after each, `[T]`.
    fn forward(&mut self, batch: &RaggedBatch) -> Vec<Chain> {
        let late_write = self.late_write.take();
        let mut chains = vec![NO_TOKENS; batch.num_tokens()];
        for chunk in 0..batch.num_seqs() {
            for index in batch.chunk(chunk) {
                let position = batch.positions[index];
                let token = match batch.token_ids[index] {
                    TokenSource::Known(token) => token,
                    TokenSource::SampledBy { .. } if self.bug == Some(Bug::FirstRow) => {
                        self.drawn.iter().find_map(|&token| token).unwrap_or(0)
                    }
                    // A row that failed drew nothing; its sequence has ended.
                    TokenSource::SampledBy { row } => self.drawn[row as usize].unwrap_or(0),
                };
                for group in 0..batch.groups.len() {
                    let chain = self.chain_before(batch, group, chunk, position);
                    let cell = Cell { position, token, chain: extend(chain, token) };
                    let mut slot = batch.groups[group].slot_mapping[index] as usize;
                    if self.bug == Some(Bug::WrongSlot) && cell.chain.is_multiple_of(16) {
                        slot ^= 1;
                    }
                    if self.bug == Some(Bug::LateWrite) && chunk == 0 && group == 0 {
                        self.late_write = Some((slot, cell));
                    } else if let Some(place) = self.cells[group].get_mut(slot) {
                        *place = Some(cell);
                    }
                    if group == 0 {
                        chains[index] = cell.chain;
                    } else {
                        assert_eq!(chains[index], cell.chain, "groups saw different tokens");
                    }
                }
            }
        }
        if let Some((slot, cell)) = late_write {
            self.cells[0][slot] = Some(cell);
        }
        chains
    }

    /// Reads everything that a token at `position` attends to, and gives the chain before it.
    fn chain_before(
        &self,
        batch: &RaggedBatch,
        group: usize,
        chunk: usize,
        position: u32,
    ) -> Chain {
        let window = self.shape.groups[group].window.unwrap_or(usize::MAX);
        let first = (position as usize + 1).saturating_sub(window);
        let GroupView { table, block_size } = self.view(batch, group, chunk);
        let mut chain: Option<Chain> = (first == 0).then_some(NO_TOKENS);
        for read in first..position as usize {
            let slot = table[read / block_size] as usize * block_size + read % block_size;
            let cell = self.cells[group][slot];
            let cell = cell.unwrap_or_else(|| panic!("chunk {chunk} reads a freed slot {slot}"));
            assert_eq!(cell.position as usize, read, "chunk {chunk} reads slot {slot}");
            if let Some(before) = chain {
                assert_eq!(extend(before, cell.token), cell.chain, "position {read} is stale");
            }
            chain = Some(cell.chain);
        }
        chain.expect("windows hold two tokens")
    }

    fn view<'a>(&self, batch: &'a RaggedBatch, group: usize, chunk: usize) -> GroupView<'a> {
        let tables = &batch.groups[group];
        let table = &tables.block_tables[chunk * tables.max_blocks..][..tables.max_blocks];
        GroupView { table, block_size: self.shape.block_size }
    }

    fn sample(
        &mut self,
        chain: Chain,
        task: &RowTask,
        masks: &[u32],
        num_logprobs: Option<u32>,
    ) -> RowOutput {
        let token = match task {
            RowTask::Score { target } => Ok(*target),
            RowTask::Draw(draw) => {
                let words = self.shape.vocab_size.div_ceil(32);
                let mask = draw.mask.map(|index| &masks[index as usize * words..][..words]);
                let seen = draw.state_row.map(|row| self.states[row as usize].unwrap_or_default());
                self.model.draw(chain, draw, mask, seen)
            }
        };
        let token = match token {
            Ok(token) => token,
            Err(fault) => return RowOutput { fault: Some(fault), ..RowOutput::default() },
        };
        if let RowTask::Draw(Draw { state_row: Some(row), .. }) = task {
            self.states[*row as usize].get_or_insert_default().draw(token);
        }
        let logprobs = num_logprobs.map(|top| vec![self.model.logprobs(chain, token, top)]);
        RowOutput { tokens: vec![token], logprobs, fault: None }
    }
}

struct GroupView<'a> {
    table: &'a [u32],
    block_size: usize,
}

impl Executor for FakeExecutor {
    fn shape(&self) -> &ExecutorShape {
        &self.shape
    }

    fn submit(&mut self, input: StepInput) -> StepTicket {
        assert!(self.steps.len() < self.shape.max_steps_in_flight, "too many steps in flight");
        let poison = std::mem::take(&mut *self.poison.lock().expect("nobody panics holding it"));
        self.steps.push_back(Submitted { number: self.next, poison, input, sampling: None });
        self.next += 1;
        StepTicket(self.next - 1)
    }

    fn sample(&mut self, ticket: &StepTicket, sampling: SamplingBatch) {
        let step = self.steps.iter_mut().find(|step| step.number == ticket.0);
        let step = step.expect("a step in flight is sampled");
        assert!(step.sampling.replace(sampling).is_none(), "a step is sampled once");
    }

    fn wait(&mut self, ticket: StepTicket) -> Result<StepOutput, ExecutorError> {
        if self.fails_at.is_some_and(|step| ticket.0 >= step) {
            return Err(ExecutorError { message: format!("step {} never ends", ticket.0) });
        }
        let step = self.steps.pop_front().expect("a step in flight is waited for");
        assert_eq!(step.number, ticket.0, "waits come in submit order");
        Ok(self.run(step))
    }
}

//! The state machine: sequences that wait, sequences that run, and the doors between them.
//!
//! # Invariants
//! 1. Same calls, same plans: no clock, no thread, no randomness, no order of a hash map.
//! 2. A waiting sequence holds no block and no row of penalty state.
//! 3. `running` is sorted by rank: priority, then age. The first one is never preempted, so
//!    something always advances.
//! 4. `num_scheduled` moves when a step is planned, `num_computed` when it is committed. At most
//!    one plan is not committed when the next one is made.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pagedllm_core::{FinishReason, SequenceId};
use pagedllm_kv::{BlockPool, SequenceBlocks};

use crate::sequence::{Rank, RequestTerms, Sequence, State};
use crate::{Event, RequestId, RequestSpec, StepLimits};

/// Plans steps. A pure state machine: same calls in, same plans out.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) limits: StepLimits,
    pub(crate) slots: Vec<Option<Sequence>>,
    free_slots: Vec<usize>,
    pub(crate) waiting: BTreeMap<Rank, usize>,
    pub(crate) running: Vec<usize>,
    /// Slots of each request's sequences.
    requests: HashMap<RequestId, Vec<usize>>,
    pub(crate) free_state_rows: Vec<u32>,
    next_sequence: u64,
    next_arrival: u64,
    pub(crate) next_plan: u64,
    /// The waiting sequence that last found too few free blocks, and how many there were.
    pub(crate) blocked: Option<(SequenceId, usize)>,
    pub(crate) num_preemptions: u64,
}

impl Scheduler {
    /// A scheduler without sequences.
    #[must_use]
    pub fn new(limits: StepLimits) -> Self {
        let rows = u32::try_from(limits.max_num_seqs).unwrap_or(u32::MAX);
        Self {
            limits,
            slots: Vec::new(),
            free_slots: Vec::new(),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            requests: HashMap::new(),
            free_state_rows: (0..rows).rev().collect(),
            next_sequence: 0,
            next_arrival: 0,
            next_plan: 0,
            blocked: None,
            num_preemptions: 0,
        }
    }
    /// Limits of every step.
    #[must_use]
    pub const fn limits(&self) -> &StepLimits {
        &self.limits
    }
    /// Whether there is nothing left to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }
    /// Sequences that run.
    #[must_use]
    pub const fn num_running(&self) -> usize {
        self.running.len()
    }
    /// Sequences that wait, preempted ones included.
    #[must_use]
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }
    /// Sequences that have been preempted so far.
    #[must_use]
    pub const fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }
    /// The sequence that runs next of those that wait.
    #[must_use]
    pub fn first_waiting(&self) -> Option<&Sequence> {
        self.waiting.first_key_value().map(|(_, &slot)| self.sequence(slot))
    }
    /// The running sequence that goes first.
    #[must_use]
    pub fn first_running(&self) -> Option<&Sequence> {
        self.running.first().map(|&slot| self.sequence(slot))
    }
    /// Every sequence, in no order.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten()
    }
    /// The sequence in a slot that a plan of this moment names.
    ///
    /// # Panics
    /// If the slot is empty.
    #[must_use]
    pub fn sequence(&self, slot: usize) -> &Sequence {
        self.slots[slot].as_ref().expect("the slot is in use")
    }
    pub(crate) fn sequence_mut(&mut self, slot: usize) -> &mut Sequence {
        self.slots[slot].as_mut().expect("the slot is in use")
    }
    /// Slots that running sequences hold beyond the tokens that they store, in all groups.
    #[must_use]
    pub fn num_wasted_slots(&self, block_size: usize) -> usize {
        let waste = |&slot: &usize| {
            let sequence = self.sequence(slot);
            let held = sequence.blocks.num_blocks() * block_size;
            (held - sequence.num_scheduled) * sequence.blocks.tables().len()
        };
        self.running.iter().map(waste).sum()
    }

    /// Queues a request that [`StepLimits::check`] has passed.
    ///
    /// # Panics
    /// If the request's name is in use.
    pub fn submit(&mut self, spec: RequestSpec) {
        let RequestSpec { id, prompt, hashes, params, eos_token_ids, priority, seed, caching } =
            spec;
        let mut stop_tokens = params.stop_token_ids.clone();
        if !params.ignore_eos {
            stop_tokens.extend(eos_token_ids);
        }
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let max_len = (prompt.len() + params.max_tokens as usize)
            .min(self.limits.max_model_len)
            .min(self.limits.cache_len);
        let num_choices = params.best_of as usize;
        let rank = (priority, self.next_arrival, 0);
        let prompt_len = prompt.len();
        self.next_arrival += 1;
        let sequence = Sequence {
            id: self.new_sequence_id(),
            choice: 0,
            rank,
            state: State::Waiting,
            tokens: prompt,
            num_computed: 0,
            num_scheduled: 0,
            num_pending: 0,
            pending_row: 0,
            blocks: SequenceBlocks::default(),
            hasher: hashes.hasher,
            hashes: hashes.hashes,
            num_offered: 0,
            published: Vec::new(),
            num_score_planned: 0,
            num_scored: 0,
            num_choices,
            early_endings: Vec::new(),
            state_rows: Vec::new(),
            needs_state_reset: true,
            cached_tokens: 0,
            has_run: false,
            cumulative_logprob: None,
            terms: Arc::new(RequestTerms {
                id,
                prompt_len,
                params,
                stop_tokens,
                seed,
                priority,
                caching,
                max_len,
            }),
        };
        let slot = self.put(sequence);
        self.waiting.insert(rank, slot);
        let before = self.requests.insert(id, vec![slot]);
        assert!(before.is_none(), "{id} is in use");
    }

    /// Ends a request, or one choice of it, in whatever state it is. Unknown and ended ones are
    /// left alone. A step in flight may still compute for it; its result will be dropped.
    pub fn end(
        &mut self,
        pool: &mut BlockPool,
        request: RequestId,
        choice: Option<u32>,
        reason: FinishReason,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for slot in self.requests.get(&request).cloned().unwrap_or_default() {
            let sequence = self.sequence_mut(slot);
            match choice {
                None => self.finish(pool, slot, reason, &mut events),
                Some(choice) if sequence.num_choices > 1 => {
                    let is_known = |ending: &(u32, FinishReason)| ending.0 == choice;
                    let exists = (choice as usize) < sequence.num_choices;
                    if exists && !sequence.early_endings.iter().any(is_known) {
                        sequence.early_endings.push((choice, reason));
                    }
                }
                Some(choice) if sequence.choice == choice => {
                    self.finish(pool, slot, reason, &mut events);
                }
                Some(_) => {}
            }
        }
        events
    }

    /// Ends a request with [`FinishReason::Fault`] and forgets what it put into the prefix cache.
    pub fn fail(&mut self, pool: &mut BlockPool, request: RequestId, message: &str) -> Vec<Event> {
        for slot in self.requests.get(&request).cloned().unwrap_or_default() {
            for hash in std::mem::take(&mut self.sequence_mut(slot).published) {
                pool.evict(hash);
            }
        }
        let mut events = self.end(pool, request, None, FinishReason::Fault);
        for event in &mut events {
            if let Event::Finished { message: text, .. } = event {
                *text = Some(message.to_owned());
            }
        }
        events
    }

    /// Every request that has not ended, in order of their names.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestId> {
        let mut requests: Vec<_> = self.requests.keys().copied().collect();
        requests.sort_unstable();
        requests
    }

    pub(crate) fn new_sequence_id(&mut self) -> SequenceId {
        self.next_sequence += 1;
        SequenceId::new(self.next_sequence - 1)
    }

    /// Stores a sequence; its request must list the slot.
    pub(crate) fn put(&mut self, sequence: Sequence) -> usize {
        if let Some(slot) = self.free_slots.pop() {
            self.slots[slot] = Some(sequence);
            return slot;
        }
        self.slots.push(Some(sequence));
        self.slots.len() - 1
    }

    /// Stores a further sequence of a request that is already known.
    pub(crate) fn put_child(&mut self, child: Sequence) -> usize {
        let (request, state, rank) = (child.terms.id, child.state, child.rank);
        let slot = self.put(child);
        self.requests.get_mut(&request).expect("its parent lives").push(slot);
        match state {
            State::Waiting => drop(self.waiting.insert(rank, slot)),
            State::Running => self.run(slot),
        }
        slot
    }

    /// Puts a slot among the running ones.
    pub(crate) fn run(&mut self, slot: usize) {
        let rank = self.sequence(slot).rank;
        let place = self.running.partition_point(|&other| self.sequence(other).rank < rank);
        self.running.insert(place, slot);
        self.sequence_mut(slot).state = State::Running;
    }

    /// Ends one sequence, with all the choices that it stands for, and takes everything back.
    pub(crate) fn finish(
        &mut self,
        pool: &mut BlockPool,
        slot: usize,
        reason: FinishReason,
        events: &mut Vec<Event>,
    ) {
        let sequence = self.slots[slot].take().expect("the slot is in use");
        match sequence.state {
            State::Waiting => drop(self.waiting.remove(&sequence.rank)),
            State::Running => self.running.retain(|&other| other != slot),
        }
        for choice in (sequence.choice..).take(sequence.num_choices) {
            events.push(sequence.finished(choice, reason));
        }
        let slots = self.requests.get_mut(&sequence.terms.id).expect("listed while it lives");
        slots.retain(|&other| other != slot);
        if slots.is_empty() {
            self.requests.remove(&sequence.terms.id);
        }
        self.free_slots.push(slot);
        self.free_state_rows.extend(sequence.state_rows);
        pool.close(sequence.blocks);
    }
}

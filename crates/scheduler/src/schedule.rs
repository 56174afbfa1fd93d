//! Planning a step.
//!
//! Running sequences come first, oldest first, each catching up with its own length. Those that
//! are one token behind have their token set aside, so long chunks share what is left, at most
//! [`max_num_prefill_tokens`](StepBudget::max_num_prefill_tokens) of it. A full pool preempts the
//! newest. Waiting sequences join while tokens, places and blocks last, but never in a step that
//! had to preempt.

use std::ops::Range;

use pagedllm_core::StateOp;
use pagedllm_kv::{BlockPool, SequenceBlocks};

use crate::sequence::State;
use crate::{Admission, Chunk, Preemption, Scheduler, StepBudget, StepPlan};

/// What is left of a step while it is planned.
struct Room {
    tokens: usize,
    /// Of these, tokens for chunks of more than one.
    prefill_tokens: usize,
    logit_rows: usize,
    /// Of these, rows for scores.
    score_rows: usize,
    /// An older sequence waits for blocks that this plan freed, so nobody takes any.
    is_stalled: bool,
}

impl Scheduler {
    /// Plans the next step, or returns `None` when there is nothing to compute now: all is done,
    /// or waits for the step in flight. At most one plan may be uncommitted.
    pub fn schedule(&mut self, pool: &mut BlockPool, budget: StepBudget) -> Option<StepPlan> {
        let mut plan = StepPlan::new(self.next_plan, budget);
        loop {
            let num_preempted = plan.preempted.len();
            let mut room = self.room(&budget);
            plan.freed.clear();
            self.schedule_running(pool, &mut plan, &mut room);
            if plan.preempted.is_empty() {
                self.admit_waiting(pool, &mut plan, &mut room);
            }
            if !plan.chunks.is_empty() {
                self.next_plan += 1;
                return Some(plan);
            }
            // With nothing planned yet, what was just freed may be taken in a second pass.
            if plan.preempted.len() == num_preempted {
                return None;
            }
        }
    }

    fn room(&self, budget: &StepBudget) -> Room {
        let tokens = budget.max_num_batched_tokens.min(self.limits.max_num_batched_tokens);
        let one_behind =
            self.running.iter().filter(|&&slot| self.sequence(slot).num_to_do() == 1).count();
        let mut prefill_tokens = tokens.saturating_sub(one_behind);
        if let Some(limit) = budget.max_num_prefill_tokens
            && one_behind > 0
        {
            prefill_tokens = prefill_tokens.min(limit);
        }
        let logit_rows = self.limits.max_logit_rows;
        let score_rows = logit_rows.saturating_sub(one_behind);
        Room { tokens, prefill_tokens, logit_rows, score_rows, is_stalled: false }
    }

    fn schedule_running(&mut self, pool: &mut BlockPool, plan: &mut StepPlan, room: &mut Room) {
        let mut index = 0;
        while index < self.running.len() {
            let slot = self.running[index];
            if index == 0 {
                // I3. The oldest always has a token and a row.
                room.prefill_tokens = room.prefill_tokens.max(room.tokens.min(1));
                room.score_rows = room.score_rows.max(room.logit_rows.min(1));
            }
            let wanted = self.wanted(slot, room);
            if wanted > 0 {
                match self.take_blocks(pool, plan, slot, wanted, room.is_stalled) {
                    Ok(end) => self.plan_chunk(plan, room, slot, end),
                    // The input may turn out to lie behind a stop token: nobody makes way for it.
                    Err(_) if self.sequence(slot).num_pending > 0 || room.is_stalled => {}
                    Err(needed) => {
                        self.make_way(pool, plan, index, needed);
                        room.is_stalled = true;
                    }
                }
            }
            index += 1;
        }
    }

    /// Tokens that a sequence may compute in what is left of the step.
    fn wanted(&self, slot: usize, room: &Room) -> usize {
        let sequence = self.sequence(slot);
        let to_do = sequence.num_to_do();
        let mut wanted = to_do.min(room.tokens);
        if to_do > 1 {
            wanted = wanted.min(room.prefill_tokens);
        }
        if wanted == 0 {
            return 0;
        }
        let start = sequence.num_scheduled;
        let draws = sequence.terms.params.max_tokens > 0;
        if draws && room.logit_rows == 0 {
            wanted = wanted.min(to_do - 1);
        }
        let unscored = start.max(sequence.num_score_planned);
        let last = (sequence.terms.prompt_len - 1).min(start + wanted);
        if sequence.terms.params.prompt_logprobs.is_some() && last > unscored {
            let num_scores = last - unscored;
            let rows = room.score_rows.min(room.logit_rows);
            if num_scores > rows {
                wanted = unscored + rows - start;
            } else if draws && wanted == to_do && num_scores == room.logit_rows {
                wanted -= 1;
            }
        }
        wanted
    }

    /// Takes the blocks for the next `wanted` tokens, or for as many as there are blocks; gives
    /// the position after the last one.
    ///
    /// # Errors
    /// Not even one token fits; the number of free blocks that would do.
    fn take_blocks(
        &mut self,
        pool: &mut BlockPool,
        plan: &mut StepPlan,
        slot: usize,
        wanted: usize,
        may_not_take: bool,
    ) -> Result<usize, usize> {
        let block_size = pool.shape().block_size();
        let sequence = self.slots[slot].as_mut().expect("the slot is in use");
        let start = sequence.num_scheduled;
        let blocks = &mut sequence.blocks;
        let tail = start / block_size;
        let has_tail = blocks.num_blocks() > tail;
        let num_shared = if has_tail { pool.num_shared(blocks, tail) } else { 0 };
        let needed = num_shared + if has_tail { 0 } else { pool.shape().num_groups() };
        let end = if may_not_take {
            (start + wanted).min(blocks.num_blocks() * block_size)
        } else {
            pool.fits(blocks, start + wanted, num_shared)
        };
        if end <= start || num_shared > pool.num_free() || (may_not_take && num_shared > 0) {
            return Err(needed);
        }
        let num_copies = plan.copies.len();
        if num_shared > 0 {
            pool.make_writable(blocks, tail, &mut plan.copies).map_err(|_| needed)?;
            plan.taken.extend(plan.copies[num_copies..].iter().map(|copy| copy.target));
        }
        let num_blocks = blocks.num_blocks();
        pool.grow(blocks, end).map_err(|_| needed)?;
        for table in blocks.tables() {
            let first = num_blocks.saturating_sub(table.num_released());
            plan.taken.extend_from_slice(&table.blocks()[first..]);
        }
        Ok(end)
    }

    fn plan_chunk(&mut self, plan: &mut StepPlan, room: &mut Room, slot: usize, end: usize) {
        let first_row = plan.num_rows();
        let sequence = self.sequence_mut(slot);
        let start = sequence.num_scheduled;
        let is_end = end == sequence.len();
        let generates = sequence.terms.params.max_tokens > 0;
        let scores = sequence.scores_in(start..end);
        let chunk = Chunk {
            sequence: sequence.id,
            slot,
            tokens: start..end,
            sampled_by: (is_end && sequence.num_pending > 0).then_some(sequence.pending_row),
            first_row,
            scores,
            num_samples: if is_end && generates { sequence.num_choices } else { 0 },
        };
        assert!(sequence.num_pending <= 1, "one plan at most is not committed");
        room.tokens -= chunk.tokens.len();
        if sequence.num_to_do() > 1 {
            room.prefill_tokens -= chunk.tokens.len().min(room.prefill_tokens);
        }
        room.logit_rows -= chunk.num_logit_rows().min(room.logit_rows);
        room.score_rows -= chunk.scores.len().min(room.score_rows);
        sequence.num_scheduled = end;
        sequence.num_score_planned = sequence.num_score_planned.max(chunk.scores.end);
        if chunk.num_samples > 0 {
            sequence.num_pending += 1;
            sequence.pending_row = (first_row + chunk.scores.len()) as u32;
            if sequence.needs_state_reset && sequence.terms.params.has_penalties() {
                let (prompt, output) = sequence.tokens.split_at(sequence.terms.prompt_len);
                let (prompt, output) = (prompt.to_vec(), output.to_vec());
                let from = sequence.state_rows[0];
                plan.state_ops.push(StateOp::Reset { row: from, prompt, output });
                let copy = |&to: &u32| StateOp::Copy { from, to };
                plan.state_ops.extend(sequence.state_rows[1..].iter().map(copy));
            }
            sequence.needs_state_reset = false;
        }
        plan.chunks.push(chunk);
    }

    /// Preempts the newest sequences behind `index` until `needed` blocks are free. They are left
    /// alone until the next plan: copies of this one may still read them.
    fn make_way(&mut self, pool: &mut BlockPool, plan: &mut StepPlan, index: usize, needed: usize) {
        while pool.num_free() < needed && self.running.len() > index + 1 {
            let slot = self.running.pop().expect("one is behind the index");
            self.num_preemptions += 1;
            let sequence = self.slots[slot].as_mut().expect("the slot is in use");
            let blocks = std::mem::take(&mut sequence.blocks);
            let held: Vec<_> = blocks.iter().collect();
            pool.close(blocks);
            plan.freed.extend(held.into_iter().filter(|&block| !pool.is_held(block)));
            sequence.leave_device();
            self.free_state_rows.append(&mut sequence.state_rows);
            let (request, sequence_id) = (sequence.terms.id, sequence.id);
            plan.preempted.push(Preemption { request, sequence: sequence_id });
            sequence.state = State::Waiting;
            self.waiting.insert(sequence.rank, slot);
        }
    }

    fn admit_waiting(&mut self, pool: &mut BlockPool, plan: &mut StepPlan, room: &mut Room) {
        while let Some((&rank, &slot)) = self.waiting.first_key_value()
            && !room.is_stalled
            && self.admit(pool, plan, room, slot)
        {
            self.waiting.remove(&rank);
            self.run(slot);
        }
    }

    /// Takes a waiting sequence in, with its first chunk, or says that it must go on waiting.
    fn admit(
        &mut self,
        pool: &mut BlockPool,
        plan: &mut StepPlan,
        room: &mut Room,
        slot: usize,
    ) -> bool {
        let (num_free, is_alone) = (pool.num_free(), self.running.is_empty());
        let is_blocked =
            |id| self.blocked.is_some_and(|(head, free)| head == id && num_free <= free);
        let sequence = self.sequence(slot);
        let places = sequence.num_choices;
        if room.tokens.min(room.prefill_tokens) == 0
            || sequence.num_pending > 0
            || self.free_state_rows.len() < places
            || (!is_alone && is_blocked(sequence.id))
        {
            return false;
        }
        let (queried_tokens, cached_tokens) = self.open(pool, slot);
        let needed = self.blocks_to_finish(pool, slot);
        let fits = is_alone || needed <= pool.num_free();
        let wanted = if fits { self.wanted(slot, room) } else { 0 };
        let end = match wanted {
            0 => None,
            _ => self.take_blocks(pool, plan, slot, wanted, false).ok(),
        };
        let Some(end) = end else {
            if !fits {
                self.blocked = Some((self.sequence(slot).id, num_free));
            }
            let sequence = self.sequence_mut(slot);
            pool.close(std::mem::take(&mut sequence.blocks));
            sequence.leave_device();
            return false;
        };
        let rows = self.free_state_rows.split_off(self.free_state_rows.len() - places);
        let sequence = self.sequence_mut(slot);
        sequence.state_rows = rows;
        let is_first = !std::mem::replace(&mut sequence.has_run, true);
        if is_first {
            sequence.cached_tokens = cached_tokens;
        }
        plan.admitted.push(Admission {
            request: sequence.terms.id,
            sequence: sequence.id,
            queried_tokens,
            cached_tokens,
            is_first,
        });
        self.plan_chunk(plan, room, slot, end);
        true
    }

    /// Opens a waiting sequence's tables on its longest cached prefix. Gives the tokens that were
    /// looked up and those that were found.
    fn open(&mut self, pool: &mut BlockPool, slot: usize) -> (usize, usize) {
        let block_size = pool.shape().block_size();
        let sequence = self.slots[slot].as_mut().expect("the slot is in use");
        sequence.hash_full_blocks(block_size);
        let max_hits = (sequence.max_hit_tokens() / block_size).min(sequence.hashes.len());
        sequence.blocks = pool.open(&sequence.hashes[..max_hits]);
        let num_hits = sequence.blocks.num_blocks();
        sequence.num_offered = num_hits;
        sequence.num_computed = num_hits * block_size;
        sequence.num_scheduled = sequence.num_computed;
        let queried = if sequence.max_hit_tokens() > 0 { sequence.len() } else { 0 };
        (queried, sequence.num_computed)
    }

    /// Blocks that the rest of a sequence's known tokens takes, and a tail for each choice.
    fn blocks_to_finish(&self, pool: &BlockPool, slot: usize) -> usize {
        let sequence = self.sequence(slot);
        let shape = pool.shape();
        let held = |blocks: &SequenceBlocks| blocks.iter().count();
        let tails = if sequence.len().is_multiple_of(shape.block_size()) {
            0
        } else {
            (sequence.num_choices - 1) * shape.num_groups()
        };
        let peak = shape.peak_blocks(sequence.len(), self.limits.max_num_batched_tokens);
        peak.saturating_sub(held(&sequence.blocks)) + tails
    }
}

impl crate::Sequence {
    /// Prompt positions among `tokens` whose next token is still to be scored.
    fn scores_in(&self, tokens: Range<usize>) -> Range<usize> {
        if self.terms.params.prompt_logprobs.is_none() {
            return tokens.end..tokens.end;
        }
        let start = tokens.start.max(self.num_score_planned);
        let end = tokens.end.min(self.terms.prompt_len - 1);
        if start < end { start..end } else { tokens.end..tokens.end }
    }

    /// Forgets what was computed: its blocks are gone.
    fn leave_device(&mut self) {
        self.num_computed = 0;
        self.num_scheduled = 0;
        self.num_offered = 0;
        self.needs_state_reset = true;
    }
}

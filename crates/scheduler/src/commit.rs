//! Applying the results of a step.
//!
//! A chunk whose sequence has ended meanwhile is ignored. One whose sequence was preempted
//! meanwhile still gives its tokens, but its KV is gone. What became full is published here and
//! not when it was planned, so the cache never holds blocks that a device has yet to write.

use pagedllm_core::{FinishReason, RowOutput, StepOutput};
use pagedllm_kv::BlockPool;

use crate::sequence::{Sequence, State};
use crate::{Chunk, Event, Scheduler, StepPlan};

impl Scheduler {
    /// Applies a finished step: appends a token for each row that drew one, publishes the blocks
    /// that became full, forks sequences with several choices, and closes those that ended.
    ///
    /// # Panics
    /// If `output` has not the rows of `plan`.
    pub fn commit(
        &mut self,
        pool: &mut BlockPool,
        plan: &StepPlan,
        output: &StepOutput,
    ) -> Vec<Event> {
        assert_eq!(output.rows.len(), plan.num_rows(), "one result a row");
        let mut events = Vec::with_capacity(plan.chunks.len());
        for chunk in &plan.chunks {
            let lives = |sequence: &Sequence| sequence.id == chunk.sequence;
            if self.slots[chunk.slot].as_ref().is_some_and(lives) {
                let rows = &output.rows[chunk.first_row..][..chunk.num_rows()];
                self.commit_chunk(pool, chunk, rows, &mut events);
            }
        }
        events
    }

    fn commit_chunk(
        &mut self,
        pool: &mut BlockPool,
        chunk: &Chunk,
        rows: &[RowOutput],
        events: &mut Vec<Event>,
    ) {
        let sequence = self.slots[chunk.slot].as_mut().expect("looked at by the caller");
        if let Some(message) = fault_in(rows) {
            let request = sequence.terms.id;
            events.extend(self.fail(pool, request, &message));
            return;
        }
        let (scores, draws) = rows.split_at(chunk.scores.len());
        if !scores.is_empty() {
            sequence.num_scored = chunk.scores.end;
            let logprobs = scores.iter().filter_map(|row| row.logprobs.as_ref()?.first().cloned());
            let request = sequence.terms.id;
            events.push(Event::PromptLogprobs { request, logprobs: logprobs.collect() });
        }
        // A sequence can't be admitted again before this, so a running one has kept its blocks.
        if sequence.state == State::Running {
            sequence.num_computed = chunk.tokens.end;
            sequence.keep_prefix(pool);
        }
        if draws.is_empty() {
            let is_scored = sequence.terms.params.max_tokens == 0;
            if is_scored && chunk.tokens.end == sequence.terms.prompt_len {
                self.finish(pool, chunk.slot, FinishReason::Length, events);
            }
            return;
        }
        sequence.num_pending -= 1;
        if draws.len() == 1 {
            self.append(pool, chunk.slot, &draws[0], events);
        } else {
            self.fork(pool, chunk, draws, events);
        }
    }

    /// Makes a sequence of each choice: they share every block and copy the one that they write.
    fn fork(
        &mut self,
        pool: &mut BlockPool,
        chunk: &Chunk,
        draws: &[RowOutput],
        events: &mut Vec<Event>,
    ) {
        let parent = self.sequence_mut(chunk.slot);
        let early_endings = std::mem::take(&mut parent.early_endings);
        parent.num_choices = 1;
        let child_rows = parent.state_rows.split_off(parent.state_rows.len().min(1));
        let mut slots = vec![chunk.slot];
        for choice in 1..draws.len() {
            let id = self.new_sequence_id();
            let parent = self.sequence(chunk.slot);
            let mut child = parent.child(id, choice as u32);
            if parent.state == State::Running {
                child.blocks = pool.fork(&parent.blocks, parent.num_computed);
                child.state_rows = vec![child_rows[choice - 1]];
            }
            slots.push(self.put_child(child));
        }
        for (slot, draw) in slots.into_iter().zip(draws) {
            let choice = self.sequence(slot).choice;
            match early_endings.iter().find(|ending| ending.0 == choice) {
                Some(&(_, reason)) => self.finish(pool, slot, reason, events),
                None => self.append(pool, slot, draw, events),
            }
        }
    }

    fn append(
        &mut self,
        pool: &mut BlockPool,
        slot: usize,
        draw: &RowOutput,
        events: &mut Vec<Event>,
    ) {
        let sequence = self.sequence_mut(slot);
        let token = draw.tokens[0];
        sequence.tokens.push(token);
        let logprobs = draw.logprobs.as_ref().and_then(|all| all.first().cloned());
        if let Some(logprobs) = &logprobs {
            let sum = sequence.cumulative_logprob.get_or_insert(0.0);
            *sum += f64::from(logprobs.chosen.logprob);
        }
        let (request, choice) = (sequence.terms.id, sequence.choice);
        events.push(Event::Token { request, choice, token, logprobs });
        let may_stop = sequence.num_output() > sequence.terms.params.min_tokens as usize;
        if may_stop && sequence.terms.stop_tokens.binary_search(&token).is_ok() {
            self.finish(pool, slot, FinishReason::StopToken(token), events);
        } else if sequence.tokens.len() >= sequence.terms.max_len {
            self.finish(pool, slot, FinishReason::Length, events);
        }
    }
}

/// The first fault among the rows of a chunk. A row that should have drawn and did not is one.
fn fault_in(rows: &[RowOutput]) -> Option<String> {
    rows.iter().find_map(|row| match row.fault {
        Some(fault) => Some(fault.to_string()),
        None if row.tokens.is_empty() => Some("the device gave no token".to_owned()),
        None => None,
    })
}

impl Sequence {
    /// Offers the blocks that became full to the cache, and lets go of what lies before every
    /// window.
    fn keep_prefix(&mut self, pool: &mut BlockPool) {
        let block_size = pool.shape().block_size();
        let num_full = self.num_computed / block_size;
        if self.terms.caching && self.num_offered < num_full {
            self.hash_full_blocks(block_size);
            for index in self.num_offered..num_full {
                let hash = self.hashes[index];
                if pool.publish(&self.blocks, index, hash) {
                    self.published.push(hash);
                }
            }
            self.num_offered = num_full;
        }
        if pool.shape().has_window() {
            for group in 0..pool.shape().num_groups() {
                let window = pool.shape().windows()[group];
                let first = pool.shape().first_read(window, self.num_computed);
                pool.release_front(&mut self.blocks, group, first);
            }
        }
    }

    /// Another choice of the same request, with the same past. Its blocks are still to be forked.
    fn child(&self, id: pagedllm_core::SequenceId, choice: u32) -> Self {
        Self {
            id,
            terms: self.terms.clone(),
            choice,
            rank: (self.rank.0, self.rank.1, choice),
            state: self.state,
            tokens: self.tokens.clone(),
            num_computed: self.num_computed,
            num_scheduled: self.num_scheduled,
            num_pending: 0,
            pending_row: 0,
            blocks: pagedllm_kv::SequenceBlocks::default(),
            hasher: self.hasher.clone(),
            hashes: self.hashes.clone(),
            num_offered: self.num_offered,
            published: Vec::new(),
            num_score_planned: self.num_score_planned,
            num_scored: self.num_scored,
            num_choices: 1,
            early_endings: Vec::new(),
            state_rows: Vec::new(),
            needs_state_reset: self.state == State::Waiting,
            cached_tokens: self.cached_tokens,
            has_run: true,
            cumulative_logprob: None,
        }
    }
}

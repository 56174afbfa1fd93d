//! Step inputs at fixed addresses.
//!
//! The host packs a step into one of two page-locked buffers; one copy brings it to a landing
//! area, and one kernel distributes it to where every other kernel finds it. All three are in
//! stream order, so step N + 1 can be uploaded while step N runs, and a recorded step finds its
//! input where it was when it was recorded.

use std::sync::Arc;

use pagedllm_backend::{DeviceError, WorkspaceSpec};
use pagedllm_core::{BlockCopy, RaggedBatch, StateOp, StepInput, TokenSource};

use crate::device::{Device, DeviceBuffer, Staging};
use crate::plan::{AttentionPlan, GroupShape, Problem, Room, SAMPLED_BY, SEGMENT_TOKENS, Segment};

/// A slot that is not written.
const UNUSED_SLOT: u32 = u32::MAX;
/// Words of a segment.
const SEGMENT_LEN: usize = size_of::<Segment>() / 4;

/// A step that was begun: a cheap handle on the fixed addresses.
#[derive(Clone, Debug)]
pub struct Step {
    pub(crate) num_tokens: usize,
    pub(crate) num_logit_rows: usize,
    /// Sequences that a recorded step of this shape has, where it is a decode step.
    pub(crate) padded: Option<usize>,
    pub(crate) groups: Vec<GroupStep>,
}

impl Step {
    /// A step whose input did not reach the device; its verbs do nothing of use.
    pub(crate) fn without_items(batch: &RaggedBatch) -> Self {
        Self {
            num_tokens: batch.num_tokens(),
            num_logit_rows: batch.logit_rows.len(),
            padded: None,
            groups: Vec::new(),
        }
    }
}

/// Items of a group in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupStep {
    pub decode_items: usize,
    pub prefill_items: usize,
    /// Decode items of the recorded step of this shape.
    pub padded_items: usize,
}

/// Addresses of one group's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupArea {
    pub slots: u64,
    pub block_tables: u64,
    pub table_stride: usize,
    pub decode_items: u64,
    pub prefill_items: u64,
    /// Ranges beyond one a sequence and shared ones.
    pub extra_splits: usize,
    /// Rows of partial results.
    pub partials: usize,
}

/// The input area, and the way into it.
#[derive(Debug)]
pub(crate) struct StepArea {
    staging: Staging,
    landing: DeviceBuffer,
    _area: DeviceBuffer,
    pub token_ids: u64,
    pub positions: u64,
    pub logit_rows: u64,
    pub groups: Vec<GroupArea>,
    shapes: Vec<GroupShape>,
    plans: Vec<AttentionPlan>,
    block_size: usize,
}

/// Sizes of a step that was packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    /// Address of the segments.
    pub landing: u64,
    pub num_segments: usize,
    /// Words of the largest segment.
    pub largest: usize,
}

impl StepArea {
    /// Reserves the area.
    pub fn new(
        device: &Arc<Device>,
        spec: &WorkspaceSpec,
        shapes: &[GroupShape],
    ) -> Result<Self, DeviceError> {
        let tokens = spec.max_num_batched_tokens.max(spec.max_num_seqs);
        let logit_rows = spec.max_logit_rows.max(spec.max_num_seqs);
        let table_stride = spec.max_model_len.div_ceil(spec.block_size);
        let mut words = 0;
        let mut place = |len: usize| {
            let at = words;
            words += len.next_multiple_of(64);
            at as u64 * 4
        };
        let token_ids = place(tokens);
        let positions = place(tokens);
        let logit_rows = place(logit_rows);
        let mut groups = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let extra_splits = shape.extra_splits(device.num_sms);
            groups.push(GroupArea {
                slots: place(tokens),
                block_tables: place(spec.max_num_seqs * table_stride),
                table_stride,
                decode_items: place(shape.max_items(spec.max_num_seqs, extra_splits) * 8),
                prefill_items: place((tokens + spec.max_num_seqs) * 4),
                extra_splits,
                partials: shape.max_partials(spec.max_num_seqs, extra_splits),
            });
        }
        let num_segments = 3 + 4 * shapes.len();
        let host_words = words + num_segments * SEGMENT_LEN;
        let area = DeviceBuffer::zeroed(device, words * 4, "step inputs")?;
        for group in &mut groups {
            group.slots += area.address();
            group.block_tables += area.address();
            group.decode_items += area.address();
            group.prefill_items += area.address();
        }
        Ok(Self {
            staging: Staging::new(device, host_words)?,
            landing: DeviceBuffer::new(device, host_words * 4, "step inputs")?,
            token_ids: token_ids + area.address(),
            positions: positions + area.address(),
            logit_rows: logit_rows + area.address(),
            _area: area,
            groups,
            shapes: shapes.to_vec(),
            plans: vec![AttentionPlan::default(); shapes.len()],
            block_size: spec.block_size,
        })
    }

    /// Packs a step and starts its copy. `padded` is the number of sequences of the recorded
    /// step, where this is a decode step.
    pub fn upload(
        &mut self,
        input: &StepInput,
        padded: Option<usize>,
    ) -> Result<(Step, Packed), DeviceError> {
        let batch = &input.batch;
        let groups = &batch.groups[..batch.groups.len().min(self.groups.len())];
        let num_segments = 3 + 4 * groups.len();
        let mut writer = Writer {
            words: self.staging.words()?,
            at: num_segments * SEGMENT_LEN,
            segments: Vec::with_capacity(num_segments),
        };
        let (tokens, seqs) = (batch.num_tokens(), batch.num_seqs());
        let padding = padded.map_or(0, |padded| padded - tokens);
        let zeros = || std::iter::repeat_n(0, padding);

        let ids = batch.token_ids.iter().map(|token| match *token {
            TokenSource::Known(token) => token & !SAMPLED_BY,
            TokenSource::SampledBy { row } => row | SAMPLED_BY,
        });
        writer.row(self.token_ids, SEGMENT_TOKENS, ids.chain(zeros()));
        writer.row(self.positions, 0, batch.positions.iter().copied().chain(zeros()));
        let unread = padded.map_or(0, |padded| padded - batch.logit_rows.len());
        let rows = batch.logit_rows.iter().copied();
        writer.row(self.logit_rows, 0, rows.chain(std::iter::repeat_n(0, unread)));

        let mut group_steps = Vec::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            let area = self.groups[index];
            let shape = &self.shapes[index];
            let plan = &mut self.plans[index];
            let items = shape.max_items(padded.unwrap_or(seqs), area.extra_splits);
            let room = Room { extra_splits: area.extra_splits, items, partials: area.partials };
            let block_size = self.block_size;
            plan.make(&Problem { batch, group, block_size, shape, room });
            let unused = std::iter::repeat_n(UNUSED_SLOT, padding);
            writer.row(area.slots, 0, group.slot_mapping.iter().copied().chain(unused));
            // Columns past the longest sequence of the step are not read.
            let longest = batch.seq_lens.iter().copied().max().unwrap_or(0) as usize;
            let width = longest.div_ceil(self.block_size).min(group.max_blocks);
            let table = group.block_tables.chunks_exact(group.max_blocks.max(1));
            let cells = table.flat_map(|row| row[..width].iter().copied());
            writer.rectangle(area.block_tables, seqs, width, area.table_stride, cells);
            let padded_items = padded.map_or(0, |_| items);
            let missing = padded_items.saturating_sub(plan.decode.len()) * 8;
            let items = bytemuck::cast_slice::<_, u32>(&plan.decode).iter().copied();
            writer.row(area.decode_items, 0, items.chain(std::iter::repeat_n(0, missing)));
            let items = bytemuck::cast_slice::<_, u32>(&plan.prefill).iter().copied();
            writer.row(area.prefill_items, 0, items);
            group_steps.push(GroupStep {
                decode_items: plan.decode.len(),
                prefill_items: plan.prefill.len(),
                padded_items,
            });
        }
        let (len, segments) = writer.finish();
        self.staging.send(self.landing.address(), len)?;
        let step = Step {
            num_tokens: tokens,
            num_logit_rows: batch.logit_rows.len(),
            padded,
            groups: group_steps,
        };
        let largest = segments.iter().map(|s| s.rows * s.width).max().unwrap_or(0) as usize;
        let packed =
            Packed { landing: self.landing.address(), num_segments: segments.len(), largest };
        Ok((step, packed))
    }
}

/// Packs rectangles of words one after the other, behind the list of them.
struct Writer<'a> {
    words: &'a mut [u32],
    at: usize,
    segments: Vec<Segment>,
}

impl Writer<'_> {
    fn push(&mut self, values: impl Iterator<Item = u32>) -> u32 {
        let start = self.at;
        for value in values {
            self.words[self.at] = value;
            self.at += 1;
        }
        (self.at - start) as u32
    }
    fn row(&mut self, target: u64, kind: u32, values: impl Iterator<Item = u32>) {
        let source = self.at as u32;
        let width = self.push(values);
        let target_stride = width;
        self.segments.push(Segment {
            target,
            source,
            rows: 1,
            width,
            target_stride,
            kind,
            unused: 0,
        });
    }
    fn rectangle(
        &mut self,
        target: u64,
        rows: usize,
        width: usize,
        stride: usize,
        values: impl Iterator<Item = u32>,
    ) {
        let source = self.at as u32;
        self.push(values);
        self.segments.push(Segment {
            target,
            source,
            rows: rows as u32,
            width: width as u32,
            target_stride: stride as u32,
            kind: 0,
            unused: 0,
        });
    }
    /// Writes the list; returns the words used and the segments.
    fn finish(self) -> (usize, Vec<Segment>) {
        let list = bytemuck::cast_slice::<_, u32>(&self.segments);
        self.words[..list.len()].copy_from_slice(list);
        (self.at, self.segments)
    }
}

/// Lists that a step brings beside its batch: block copies and tokens of the penalty state. They
/// are rare, so they have a way of their own.
#[derive(Debug)]
pub(crate) struct Lists {
    staging: Staging,
    area: DeviceBuffer,
}

impl Lists {
    /// Reserves room for `words`.
    pub fn new(device: &Arc<Device>, words: usize) -> Result<Self, DeviceError> {
        let area = DeviceBuffer::new(device, words * 4, "step inputs")?;
        Ok(Self { staging: Staging::new(device, words)?, area })
    }
    /// Words that fit one upload.
    pub fn capacity(&self) -> usize {
        self.staging.capacity()
    }
    /// Starts copying `words`; returns where they will be.
    pub fn upload(
        &mut self,
        words: impl ExactSizeIterator<Item = u32>,
    ) -> Result<u64, DeviceError> {
        let len = words.len();
        for (to, word) in self.staging.words()?[..len].iter_mut().zip(words) {
            *to = word;
        }
        self.staging.send(self.area.address(), len)?;
        Ok(self.area.address())
    }
}

/// Cuts copies into runs of at most `limit` in which no block is written twice, or written and
/// read.
pub(crate) fn independent_runs(copies: &[BlockCopy], limit: usize) -> Vec<&[BlockCopy]> {
    let mut runs = Vec::new();
    let mut start = 0;
    for end in 1..=copies.len() {
        let run = &copies[start..end];
        let is_last = end == copies.len();
        let clashes = copies.get(end).is_some_and(|next| {
            run.iter().any(|copy| {
                copy.target == next.source
                    || copy.target == next.target
                    || copy.source == next.target
            })
        });
        if is_last || clashes || run.len() == limit {
            runs.push(run);
            start = end;
        }
    }
    runs
}

/// One piece of the tokens that a state operation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatePiece<'a> {
    /// Forget everything of a row.
    Clear { row: u32 },
    /// Row `to` becomes row `from`.
    Copy { from: u32, to: u32 },
    /// Mark or count these tokens.
    Count { row: u32, tokens: &'a [u32], is_prompt: bool },
}

/// The operations as pieces of at most `limit` tokens.
pub(crate) fn state_pieces(ops: &[StateOp], limit: usize) -> Vec<StatePiece<'_>> {
    let mut pieces = Vec::new();
    for op in ops {
        match op {
            StateOp::Copy { from, to } => pieces.push(StatePiece::Copy { from: *from, to: *to }),
            StateOp::Reset { row, prompt, output } => {
                let row = *row;
                pieces.push(StatePiece::Clear { row });
                for (list, is_prompt) in [(prompt, true), (output, false)] {
                    pieces.extend(list.chunks(limit).map(|tokens| StatePiece::Count {
                        row,
                        tokens,
                        is_prompt,
                    }));
                }
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use pagedllm_core::BlockId;

    use super::*;

    fn copy(source: usize, target: usize) -> BlockCopy {
        BlockCopy { source: BlockId::new(source), target: BlockId::new(target) }
    }

    #[test]
    fn chained_copies_are_not_run_at_once() {
        let copies = [copy(1, 2), copy(1, 3), copy(3, 4), copy(5, 1), copy(6, 7)];
        let runs = independent_runs(&copies, 10);
        assert_eq!(runs, [&copies[..2], &copies[2..]]);
        assert_eq!(independent_runs(&copies, 1).len(), 5);
        assert!(independent_runs(&[], 10).is_empty());
    }

    #[test]
    fn long_prompts_are_counted_in_pieces() {
        let ops = [StateOp::Reset { row: 3, prompt: vec![1; 10], output: vec![2] }];
        let pieces = state_pieces(&ops, 4);
        assert_eq!(pieces.len(), 1 + 3 + 1);
        assert_eq!(pieces[0], StatePiece::Clear { row: 3 });
        assert_eq!(pieces[4], StatePiece::Count { row: 3, tokens: &[2], is_prompt: false });
    }
}

//! The words that host and device share, and the plan of attention: which block reads which part
//! of whose context. Pure; `kernels/include/pagedllm/plan.h` has the same structs.

use bytemuck::{Pod, Zeroable};
use pagedllm_core::RaggedBatch;

/// A rectangle of words on its way from the landing area to its fixed place.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Segment {
    pub target: u64,
    pub source: u32,
    pub rows: u32,
    pub width: u32,
    pub target_stride: u32,
    pub kind: u32,
    pub unused: u32,
}

/// `Segment::kind` of token ids, where the high bit names a row of the previous sampling.
pub(crate) const SEGMENT_TOKENS: u32 = 1;
/// High bit of a token id that the device resolves.
pub(crate) const SAMPLED_BY: u32 = 1 << 31;

/// A range of one sequence's context for one query token.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct DecodeItem {
    pub sequence: u32,
    pub token: u32,
    pub begin: u32,
    pub end: u32,
    pub split: u32,
    /// 0 marks an unused item.
    pub splits: u32,
    pub partial: u32,
    pub length: u32,
}

/// Some query tokens of one chunk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct PrefillItem {
    pub sequence: u32,
    pub token: u32,
    pub count: u32,
    pub position: u32,
}

/// How one row is sampled.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct SamplingWords {
    pub logit_row: u32,
    pub flags: u32,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub top_k: u32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub seed_low: u32,
    pub seed_high: u32,
    pub choice: u32,
    pub position: u32,
    pub target: u32,
    pub mask: u32,
    pub state_row: u32,
    pub bias_begin: u32,
    pub bias_end: u32,
    pub num_top: u32,
    pub unused: u32,
}

pub(crate) const ROW_SCORE: u32 = 1;
pub(crate) const ROW_MASK: u32 = 2;
pub(crate) const ROW_STATE: u32 = 4;
pub(crate) const ROW_LOGPROBS: u32 = 8;
pub(crate) const ROW_GREEDY: u32 = 16;
pub(crate) const ROW_FILTERED: u32 = 32;

/// Alternatives that a row can list.
pub(crate) const MAX_TOP: usize = 20;
/// Words of a `SampledRow`: token, fault, log-probability, rank, then the alternatives.
pub(crate) const SAMPLED_ROW_WORDS: usize = 4 + 2 * MAX_TOP;
/// Slices that the sampling kernels cut the vocabulary into, and the words of each one's result.
pub(crate) const SLICES: usize = 32;
pub(crate) const SLICE_WORDS: usize = 6;

/// Words of a row's histogram: 2048 counts, then as many 64-bit weights.
pub(crate) const HISTOGRAM_WORDS: usize = 2048 * 3;

/// Parameters of the attention kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct AttentionParams {
    pub qkv: u64,
    pub out: u64,
    pub keys: u64,
    pub values: u64,
    pub block_tables: u64,
    pub items: u64,
    pub sinks: u64,
    pub partial_out: u64,
    pub partial_stats: u64,
    pub arrived: u64,
    pub heads: u32,
    pub kv_heads: u32,
    pub dim: u32,
    pub block_size: u32,
    pub table_stride: u32,
    pub window: u32,
    pub scale: f32,
    pub soft_cap: f32,
    pub rope: u64,
    pub slots: u64,
    pub decode_stages: u32,
    pub unused: u32,
}

/// Shortest range that a context is split into: below it, merging costs more than it saves.
const MIN_SPLIT: usize = 256;
/// Ranges are whole multiples of this, the positions that a block takes in one turn.
const SPLIT_STEP: usize = 64;
/// Blocks wanted for each multiprocessor before splitting stops: those of four warps that run at once.
const BLOCKS_PER_SM: usize = 2;

/// What the layers of one KV group have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Most query heads that share one.
    pub heads_per_kv: usize,
    /// Most columns of the attention result.
    pub out_cols: usize,
    /// Query tokens of a prefill item.
    pub tile_tokens: usize,
    /// Positions that a query sees, the most over the layers.
    pub window: Option<usize>,
}

impl GroupShape {
    /// What holds for the layers of both shapes.
    pub fn merged(&self, other: &Self) -> Self {
        if self.kv_heads == 0 {
            return *other;
        }
        Self {
            kv_heads: self.kv_heads.max(other.kv_heads),
            heads_per_kv: self.heads_per_kv.max(other.heads_per_kv),
            out_cols: self.out_cols.max(other.out_cols),
            tile_tokens: self.tile_tokens.min(other.tile_tokens),
            window: self.window.zip(other.window).map(|(a, b)| a.max(b)),
        }
    }
    /// Ranges that a step may have, but for one more a sequence.
    pub fn extra_splits(&self, num_sms: usize) -> usize {
        (num_sms * BLOCKS_PER_SM).div_ceil(self.kv_heads.max(1))
    }
}

/// The plan of one group for one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttentionPlan {
    pub decode: Vec<DecodeItem>,
    pub prefill: Vec<PrefillItem>,
}

impl AttentionPlan {
    /// Plans `batch`. Chunks of one token are split over the context, so that there are about
    /// `extra_splits` ranges in all where that is many for so many sequences; longer chunks are cut into tiles, the longest contexts first.
    pub fn make(&mut self, batch: &RaggedBatch, shape: &GroupShape, extra_splits: usize) {
        self.decode.clear();
        self.prefill.clear();
        let visible = |len: usize| shape.window.map_or(len, |window| window.min(len));
        let chunks = || (0..batch.num_seqs()).map(|chunk| (chunk, batch.chunk(chunk)));
        let (mut total, mut decodes) = (0, 0);
        for (chunk, _) in chunks().filter(|(_, range)| range.len() == 1) {
            total += visible(batch.seq_lens[chunk] as usize);
            decodes += 1;
        }
        let cuts = extra_splits.saturating_sub(decodes).max(extra_splits / 2).max(1);
        let split_len = total.div_ceil(cuts).max(MIN_SPLIT).next_multiple_of(SPLIT_STEP);
        let mut partial = 0;
        for (chunk, range) in chunks() {
            let length = batch.seq_lens[chunk];
            if range.len() == 1 {
                let seen = visible(length as usize);
                // Ranges of one length, or the longest one is waited for.
                let wanted = seen.div_ceil(split_len).max(1);
                let each = seen.div_ceil(wanted).next_multiple_of(SPLIT_STEP);
                let splits = seen.div_ceil(each);
                let first = length as usize - seen;
                for split in 0..splits {
                    let begin = first + split * each;
                    self.decode.push(DecodeItem {
                        sequence: chunk as u32,
                        token: range.start as u32,
                        begin: begin as u32,
                        end: (begin + each).min(length as usize) as u32,
                        split: split as u32,
                        splits: splits as u32,
                        partial,
                        length,
                    });
                }
                if splits > 1 {
                    partial += splits as u32;
                }
            } else {
                let first = batch.positions[range.start];
                for start in (0..range.len()).step_by(shape.tile_tokens.max(1)) {
                    self.prefill.push(PrefillItem {
                        sequence: chunk as u32,
                        token: (range.start + start) as u32,
                        count: shape.tile_tokens.min(range.len() - start) as u32,
                        position: first + start as u32,
                    });
                }
            }
        }
        self.prefill.sort_by_key(|item| std::cmp::Reverse(visible(item.position as usize)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(chunks: &[(u32, u32)]) -> RaggedBatch {
        let mut batch = RaggedBatch { query_starts: vec![0], ..RaggedBatch::default() };
        for &(before, tokens) in chunks {
            batch.positions.extend(before..before + tokens);
            batch.query_starts.push(batch.positions.len() as u32);
            batch.seq_lens.push(before + tokens);
        }
        batch
    }

    fn shape(window: Option<usize>) -> GroupShape {
        GroupShape { kv_heads: 8, heads_per_kv: 4, out_cols: 4096, tile_tokens: 32, window }
    }

    #[test]
    fn structs_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<Segment>(), 32);
        assert_eq!(size_of::<DecodeItem>(), 32);
        assert_eq!(size_of::<PrefillItem>(), 16);
        assert_eq!(size_of::<SamplingWords>(), 80);
        assert_eq!(size_of::<AttentionParams>(), 136);
    }

    #[test]
    fn ranges_cover_what_is_seen_and_stay_in_the_budget() {
        let lens: Vec<(u32, u32)> =
            (0..37u32).map(|i| (i * i * 97 % 5000, if i % 5 == 4 { 70 } else { 1 })).collect();
        let batch = batch(&lens);
        for window in [None, Some(300)] {
            for extra in [1, 7, 50, 400] {
                let mut plan = AttentionPlan::default();
                plan.make(&batch, &shape(window), extra);
                let decodes = lens.iter().filter(|l| l.1 == 1).count();
                assert!(plan.decode.len() <= decodes + extra, "{} items", plan.decode.len());
                for (chunk, &(before, tokens)) in lens.iter().enumerate() {
                    let mine: Vec<_> =
                        plan.decode.iter().filter(|i| i.sequence == chunk as u32).collect();
                    if tokens > 1 {
                        assert!(mine.is_empty());
                        let count: u32 = plan
                            .prefill
                            .iter()
                            .filter(|i| i.sequence == chunk as u32)
                            .map(|i| i.count)
                            .sum();
                        assert_eq!(count, tokens);
                        continue;
                    }
                    let length = before + 1;
                    let first = window.map_or(0, |w| length.saturating_sub(w as u32));
                    assert_eq!(mine[0].begin, first);
                    assert_eq!(mine.last().map(|i| i.end), Some(length));
                    assert!(mine.windows(2).all(|w| w[0].end == w[1].begin));
                    assert!(mine.iter().all(|i| i.splits as usize == mine.len()));
                }
            }
        }
    }
}

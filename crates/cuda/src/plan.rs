//! The words that host and device share, and the plan of attention: which block reads which part
//! of whose context. Pure; `kernels/include/pagedllm/plan.h` has the same structs.

use bytemuck::{Pod, Zeroable};

mod attention;
mod sharing;

pub(crate) use attention::{AttentionPlan, GroupShape, Problem, Room};

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

/// A range of one sequence's context for one query token, or of the context that several sequences
/// begin with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct DecodeItem {
    pub sequence: u32,
    pub token: u32,
    pub begin: u32,
    pub end: u32,
    pub split: u32,
    /// 0 marks an unused item; of a shared range, the number of sequences.
    pub splits: u32,
    /// Of a shared range, the place of the first of consecutive items, one of each sequence.
    pub partial: u32,
    /// 0 marks a shared range.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<Segment>(), 32);
        assert_eq!(size_of::<DecodeItem>(), 32);
        assert_eq!(size_of::<PrefillItem>(), 16);
        assert_eq!(size_of::<SamplingWords>(), 80);
        assert_eq!(size_of::<AttentionParams>(), 136);
    }
}

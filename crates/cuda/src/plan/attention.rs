//! The plan of attention: which block reads which part of whose context. Pure.
//!
//! Every position that a sequence sees is in exactly one of its ranges, of which some may be shared
//! with others; the kernels count on that, and on the room being kept to. The tests walk random plans.

use std::cmp::Reverse;
use std::ops::Range;

use pagedllm_core::{GroupTables, RaggedBatch};

use super::sharing::{MAX_APART, Sharing};
use super::{DecodeItem, PrefillItem};

/// Shortest range that a context is split into: below it, merging costs more than it saves.
const MIN_SPLIT: usize = 256;
/// Ranges are whole multiples of this, the positions that a block takes in one turn.
const SPLIT_STEP: usize = 64;
/// Blocks wanted for each multiprocessor before splitting stops: those of four warps that run at once.
const BLOCKS_PER_SM: usize = 2;
/// Rows of partial results that are reserved for each sequence, where sequences share ranges.
const SHARED_PARTIALS: usize = 4;

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
    /// Sequences that one decode item may serve; less than two where the kernels, or a window that
    /// each query has for itself, let none be shared.
    pub sharing: usize,
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
            sharing: self.sharing.min(other.sharing),
        }
    }
    /// Ranges that a step may have, but for one more a sequence and shared ones.
    pub fn extra_splits(&self, num_sms: usize) -> usize {
        (num_sms * BLOCKS_PER_SM).div_ceil(self.kv_heads.max(1))
    }
    /// Decode items that a step of `seqs` sequences may have. It grows with `seqs`.
    pub fn max_items(&self, seqs: usize, extra_splits: usize) -> usize {
        let has_shared = self.sharing > 1 && seqs > MAX_APART;
        seqs + extra_splits + if has_shared { seqs.div_ceil(self.sharing) } else { 0 }
    }
    /// Rows of partial results that a step of `seqs` sequences may have. It grows with `seqs`.
    pub fn max_partials(&self, seqs: usize, extra_splits: usize) -> usize {
        let each = if self.sharing > 1 { SHARED_PARTIALS } else { 1 };
        seqs * each + extra_splits
    }
}

/// What a plan may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Ranges that keep the device busy.
    pub extra_splits: usize,
    /// Decode items, at least [`GroupShape::max_items`] of the step's sequences.
    pub items: usize,
    /// Rows of partial results, at least [`GroupShape::max_partials`] of the step's sequences.
    pub partials: usize,
}

/// What a sequence reads for itself.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// First position.
    begin: usize,
    /// Shared ranges before it.
    shared: usize,
    /// Ranges in all.
    splits: usize,
    /// Row of the sequence's first partial result.
    partial: u32,
}

/// The plan of one group for one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttentionPlan {
    pub decode: Vec<DecodeItem>,
    pub prefill: Vec<PrefillItem>,
    sharing: Sharing,
    /// Of each chunk of one token; the others stand between them unused.
    rests: Vec<Rest>,
    partials: u32,
}

/// One step, as the functions of a plan pass it on.
#[derive(Clone, Copy)]
pub(crate) struct Problem<'a> {
    pub batch: &'a RaggedBatch,
    pub group: &'a GroupTables,
    pub block_size: usize,
    pub shape: &'a GroupShape,
    pub room: Room,
}

impl Problem<'_> {
    /// Positions that the last query of a sequence of `len` tokens sees.
    fn visible(&self, len: usize) -> usize {
        self.shape.window.map_or(len, |window| window.min(len))
    }
    /// Chunks of one token.
    fn decodes(&self) -> impl Iterator<Item = usize> {
        (0..self.batch.num_seqs()).filter(|&chunk| self.batch.chunk(chunk).len() == 1)
    }
    fn len(&self, chunk: usize) -> usize {
        self.batch.seq_lens[chunk] as usize
    }
}

impl AttentionPlan {
    /// Plans a step. Chunks of one token are split over the context, so that there are about
    /// `extra_splits` ranges in all where that is many for so many sequences; what several of them
    /// begin with is read for them together. Longer chunks are cut into tiles, the longest contexts
    /// first.
    pub fn make(&mut self, step: &Problem<'_>) {
        self.decode.clear();
        self.prefill.clear();
        self.partials = 0;
        let mut sharing = std::mem::take(&mut self.sharing);
        self.find_shared(step, &mut sharing);
        let split_len = if sharing.prefixes.is_empty() {
            length_apart(step)
        } else {
            self.length_together(step, &sharing)
        };
        self.push_shared(&sharing, split_len);
        self.push_members(step, &sharing, split_len);
        for chunk in step.decodes() {
            if self.rests[chunk].shared == 0 {
                self.begin_sequence(step, chunk, split_len);
                self.push_ranges(step, chunk, split_len, 0..usize::MAX);
            }
        }
        self.sharing = sharing;
        self.push_prefill(step);
    }

    /// Finds what is shared, and where each sequence's own part begins.
    fn find_shared(&mut self, step: &Problem<'_>, sharing: &mut Sharing) {
        self.rests.clear();
        self.rests.resize(step.batch.num_seqs(), Rest::default());
        sharing.clear();
        let mut decodes = 0;
        for chunk in step.decodes() {
            self.rests[chunk].begin = step.len(chunk) - step.visible(step.len(chunk));
            decodes += 1;
        }
        if decodes <= MAX_APART || step.shape.sharing < 2 {
            return;
        }
        sharing.find(step.batch, step.group, step.block_size, step.shape.sharing);
        sharing.prefixes.truncate(step.room.items - decodes);
        for prefix in &sharing.prefixes {
            for &chunk in sharing.members(prefix) {
                self.rests[chunk as usize].begin = prefix.positions;
            }
        }
    }

    /// Length of ranges where some are shared: about as many as there are sequences, or more where
    /// they are few, but not more than there is room for.
    fn length_together(&self, step: &Problem<'_>, sharing: &Sharing) -> usize {
        let own = |chunk: usize| step.len(chunk) - self.rests[chunk].begin;
        let prefixes = &sharing.prefixes;
        let total = prefixes.iter().map(|prefix| prefix.positions).sum::<usize>()
            + step.decodes().map(own).sum::<usize>();
        let wanted = step.room.extra_splits.max(step.decodes().count());
        let mut split_len = range_length(total, wanted);
        // At the latest it ends with one range for each prefix and each rest.
        loop {
            let (mut items, mut partials) = (0, 0);
            for chunk in step.decodes() {
                let count = ranges(0, own(chunk), split_len).len();
                items += count;
                partials += count;
            }
            for prefix in prefixes {
                let count = ranges(0, prefix.positions, split_len).len();
                items += count;
                partials += count * prefix.members.len();
            }
            if items <= step.room.items && partials <= step.room.partials {
                return split_len;
            }
            split_len = (split_len + split_len / 4).next_multiple_of(SPLIT_STEP);
        }
    }

    /// The shared ranges come first, since they take longest.
    fn push_shared(&mut self, sharing: &Sharing, split_len: usize) {
        for prefix in &sharing.prefixes {
            let members = sharing.members(prefix);
            let cut = ranges(0, prefix.positions, split_len);
            for &chunk in members {
                self.rests[chunk as usize].shared = cut.len();
            }
            self.decode.extend(cut.enumerate().map(|(split, range)| DecodeItem {
                sequence: members[0],
                begin: range.start as u32,
                end: range.end as u32,
                split: split as u32,
                splits: members.len() as u32,
                ..DecodeItem::default()
            }));
        }
    }

    /// What those that share read for themselves.
    fn push_members(&mut self, step: &Problem<'_>, sharing: &Sharing, split_len: usize) {
        let mut shared_at = 0;
        for prefix in &sharing.prefixes {
            let members = sharing.members(prefix);
            let first = self.decode.len() as u32;
            let count = self.rests[members[0] as usize].shared;
            for item in &mut self.decode[shared_at..][..count] {
                item.partial = first;
            }
            shared_at += count;
            // The first items of all, side by side, then the others.
            for &chunk in members {
                self.begin_sequence(step, chunk as usize, split_len);
                self.push_ranges(step, chunk as usize, split_len, 0..1);
            }
            for &chunk in members {
                self.push_ranges(step, chunk as usize, split_len, 1..usize::MAX);
            }
        }
    }

    /// Reserves the partial results of a sequence.
    fn begin_sequence(&mut self, step: &Problem<'_>, chunk: usize, split_len: usize) {
        let rest = &mut self.rests[chunk];
        rest.partial = self.partials;
        rest.splits = rest.shared + ranges(rest.begin, step.len(chunk), split_len).len();
        if rest.splits > 1 {
            self.partials += rest.splits as u32;
        }
    }

    /// Some of the ranges that a sequence reads for itself.
    fn push_ranges(
        &mut self,
        step: &Problem<'_>,
        chunk: usize,
        split_len: usize,
        places: Range<usize>,
    ) {
        let rest = self.rests[chunk];
        let cut = ranges(rest.begin, step.len(chunk), split_len).enumerate();
        self.decode.extend(cut.filter(|(place, _)| places.contains(place)).map(
            |(place, range)| DecodeItem {
                sequence: chunk as u32,
                token: step.batch.query_starts[chunk],
                begin: range.start as u32,
                end: range.end as u32,
                split: (rest.shared + place) as u32,
                splits: rest.splits as u32,
                partial: rest.partial,
                length: step.batch.seq_lens[chunk],
            },
        ));
    }

    fn push_prefill(&mut self, step: &Problem<'_>) {
        let Problem { batch, shape, .. } = step;
        for chunk in 0..batch.num_seqs() {
            let range = batch.chunk(chunk);
            if range.len() == 1 {
                continue;
            }
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
        self.prefill.sort_by_key(|item| Reverse(step.visible(item.position as usize)));
    }
}

/// Length of ranges where each sequence reads its context for itself.
fn length_apart(step: &Problem<'_>) -> usize {
    let total = step.decodes().map(|chunk| step.visible(step.len(chunk))).sum();
    let extra = step.room.extra_splits;
    range_length(total, extra.saturating_sub(step.decodes().count()).max(extra / 2))
}

/// Length of ranges of which `total` positions make about `count`.
fn range_length(total: usize, count: usize) -> usize {
    total.div_ceil(count.max(1)).max(MIN_SPLIT).next_multiple_of(SPLIT_STEP)
}

/// Cuts positions into ranges of at most about `split_len`: of one length, or the longest one is
/// waited for.
fn ranges(
    begin: usize,
    end: usize,
    split_len: usize,
) -> impl ExactSizeIterator<Item = Range<usize>> {
    let len = end - begin;
    let each = len.div_ceil(len.div_ceil(split_len).max(1)).next_multiple_of(SPLIT_STEP).max(1);
    let starts = (0..len.div_ceil(each)).map(move |place| begin + place * each);
    starts.map(move |start| start..(start + each).min(end))
}

#[cfg(test)]
mod tests {
    use pagedllm_backend::conformance::Random;

    use super::*;

    const BLOCK: usize = 16;
    const SEED: u64 = 7;

    /// Chunks of `(tokens before, tokens)`, each on blocks of its own but for the first `shared`,
    /// which it has in common with those of the same family.
    struct World {
        batch: RaggedBatch,
        group: GroupTables,
    }

    impl World {
        fn new(chunks: &[(u32, u32)]) -> Self {
            let chunks: Vec<_> = chunks.iter().map(|&(before, len)| (before, len, 0, 0)).collect();
            Self::with_families(&chunks)
        }
        /// Chunks of `(tokens before, tokens, family, shared blocks)`.
        fn with_families(chunks: &[(u32, u32, u32, u32)]) -> Self {
            let blocks = |(before, tokens): (u32, u32)| (before + tokens).div_ceil(BLOCK as u32);
            let max_blocks = chunks.iter().map(|c| blocks((c.0, c.1))).max().unwrap_or(0);
            let mut batch = RaggedBatch { query_starts: vec![0], ..RaggedBatch::default() };
            let mut group =
                GroupTables { max_blocks: max_blocks as usize, ..GroupTables::default() };
            for (chunk, &(before, tokens, family, shared)) in chunks.iter().enumerate() {
                batch.positions.extend(before..before + tokens);
                batch.query_starts.push(batch.positions.len() as u32);
                batch.seq_lens.push(before + tokens);
                let own = 1_000_000 + chunk as u32 * 10_000;
                let id = |i| if i < shared { family * 10_000 + i } else { own + i };
                let used = blocks((before, tokens));
                group
                    .block_tables
                    .extend((0..max_blocks).map(|i| if i < used { id(i) } else { 0 }));
            }
            Self { batch, group }
        }
        fn plan(&self, shape: &GroupShape, extra_splits: usize, padded: usize) -> AttentionPlan {
            let room = Room {
                extra_splits,
                items: shape.max_items(padded, extra_splits),
                partials: shape.max_partials(padded, extra_splits),
            };
            let Self { batch, group } = self;
            let mut plan = AttentionPlan::default();
            let step = Problem { batch, group, block_size: BLOCK, shape, room };
            // What a step leaves behind does not change the next.
            plan.make(&step);
            plan.make(&step);
            plan
        }
        fn table(&self, chunk: u32) -> &[u32] {
            &self.group.block_tables[chunk as usize * self.group.max_blocks..]
        }
    }

    fn shape(window: Option<usize>) -> GroupShape {
        GroupShape {
            kv_heads: 8,
            heads_per_kv: 4,
            out_cols: 4096,
            tile_tokens: 32,
            window,
            sharing: if window.is_some() { 1 } else { 4 },
        }
    }

    #[test]
    fn ranges_cover_what_is_seen_and_stay_in_the_budget() {
        let lens: Vec<(u32, u32)> =
            (0..37u32).map(|i| (i * i * 97 % 5000, if i % 5 == 4 { 70 } else { 1 })).collect();
        let world = World::new(&lens);
        for window in [None, Some(300)] {
            for extra in [1, 7, 50, 400] {
                let plan = world.plan(&shape(window), extra, lens.len());
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

    /// Checks all that the kernels rely on; returns the number of shared ranges.
    fn check(world: &World, plan: &AttentionPlan, shape: &GroupShape, case: &str) -> usize {
        let World { batch, .. } = world;
        // Ranges of each sequence, with its partial row.
        let mut seen = vec![Vec::new(); batch.num_seqs()];
        for item in &plan.decode {
            if item.length > 0 {
                seen[item.sequence as usize].push((item.split, item.begin, item.end, *item));
                continue;
            }
            assert!((2..=shape.sharing as u32).contains(&item.splits), "{case}: {item:?}");
            let own = &plan.decode[item.partial as usize..][..item.splits as usize];
            let blocks = item.begin as usize / BLOCK..(item.end as usize).div_ceil(BLOCK);
            for its in own {
                assert!(its.length > item.end, "{case}: {item:?} reaches the token of {its:?}");
                let tables = [its.sequence, item.sequence].map(|chunk| world.table(chunk));
                assert_eq!(tables[0][blocks.clone()], tables[1][blocks.clone()], "{case}");
                seen[its.sequence as usize].push((item.split, item.begin, item.end, *its));
            }
        }
        let mut rows = Vec::new();
        for (chunk, ranges) in seen.iter_mut().enumerate() {
            let tokens = batch.chunk(chunk);
            if tokens.len() > 1 {
                assert!(ranges.is_empty(), "{case}");
                continue;
            }
            ranges.sort_unstable_by_key(|range| range.0);
            let (splits, partial) = (ranges.len() as u32, ranges[0].3.partial);
            let mut at = 0;
            for (place, (split, begin, end, item)) in ranges.iter().enumerate() {
                assert_eq!((*split, *begin), (place as u32, at), "{case}, sequence {chunk}");
                assert!(begin < end, "{case}, sequence {chunk}");
                let own = (item.token, item.length, item.splits, item.partial);
                let want = (tokens.start as u32, batch.seq_lens[chunk], splits, partial);
                assert_eq!(own, want, "{case}, sequence {chunk}");
                at = *end;
            }
            assert_eq!(at, batch.seq_lens[chunk], "{case}, sequence {chunk}");
            if splits > 1 {
                rows.extend(partial..partial + splits);
            }
        }
        rows.sort_unstable();
        assert!(rows.windows(2).all(|w| w[0] < w[1]), "{case}: partial rows of two sequences");
        assert!(rows.last().is_none_or(|&row| (row as usize) < rows.len()), "{case}: holes");
        plan.decode.iter().filter(|item| item.length == 0).count()
    }

    #[test]
    fn every_position_is_read_once_for_each_sequence_that_sees_it() {
        let mut random = Random::new(SEED);
        let mut shared = 0;
        for round in 0..300 {
            let families = 1 + random.below(5);
            let lens: Vec<u32> = (0..families).map(|_| random.below(200) as u32).collect();
            let chunks: Vec<_> = (0..1 + random.below(90))
                .map(|_| {
                    let family = random.below(families);
                    // Some leave the family early.
                    let blocks = lens[family] - random.below(2) as u32 * (lens[family] / 3);
                    let before = blocks * BLOCK as u32 + random.below(600) as u32;
                    let tokens = if random.below(10) == 0 { 2 + random.below(60) } else { 1 };
                    (before, tokens as u32, family as u32, blocks)
                })
                .collect();
            let world = World::with_families(&chunks);
            let heads_per_kv = 1 + random.below(16);
            let shape = GroupShape { heads_per_kv, sharing: 16 / heads_per_kv, ..shape(None) };
            let extra = [1, 33, 132, 264][random.below(4)];
            let padded = chunks.len() + random.below(8);
            let plan = world.plan(&shape, extra, padded);
            let case = format!("round {round}, seed {SEED}");
            shared += check(&world, &plan, &shape, &case);
            let (items, partials) = (plan.decode.len(), plan.partials as usize);
            assert!(items <= shape.max_items(padded, extra), "{case}: {items} items");
            assert!(partials <= shape.max_partials(padded, extra), "{case}: {partials} partials");
        }
        assert!(shared > 1000, "{shared} shared ranges");
    }

    #[test]
    fn a_prefix_of_2048_is_read_for_four_at_a_time() {
        let chunks: Vec<_> = (0..50).map(|i| (2100 + i * 5, 1, 0, 128)).collect();
        let world = World::with_families(&chunks);
        let plan = world.plan(&shape(None), 33, 56);
        let shared = check(&world, &plan, &shape(None), "50 sequences");
        // 12 fours and a pair, in three ranges each, and one rest each.
        assert_eq!((shared, plan.decode.len()), (39, 89));
        assert!(plan.decode[..39].iter().all(|item| item.length == 0 && item.splits >= 2));
    }

    #[test]
    fn few_sequences_windows_and_other_kernels_share_nothing() {
        let chunks: Vec<_> = (0..50).map(|i| (2100 + i * 5, 1, 0, 128)).collect();
        let shared = |count: usize, shape: &GroupShape| {
            let plan = World::with_families(&chunks[..count]).plan(shape, 33, count);
            plan.decode.iter().filter(|item| item.length == 0).count()
        };
        assert_eq!(shared(16, &shape(None)), 0);
        assert!(shared(17, &shape(None)) > 0);
        assert_eq!(shared(50, &shape(Some(4096))), 0);
        assert_eq!(shared(50, &GroupShape { sharing: 1, ..shape(None) }), 0);
        // One layer of a group that can't is enough.
        let merged = shape(None).merged(&GroupShape { sharing: 1, ..shape(None) });
        assert_eq!(merged.sharing, 1);
    }
}

//! Which sequences of a step begin with the same blocks, so that attention reads those once for
//! several of them. Pure; it looks at block ids only, so what the prefix cache or a copy of a sequence
//! made common is found alike.
//!
//! The work is linear in the tables' lengths: sequences are sorted by a few of their block ids, and
//! then each one is compared with the first of its neighbours only.

use std::cmp::{Ordering, Reverse};
use std::ops::Range;

use pagedllm_core::{GroupTables, RaggedBatch};

/// Steps of up to so many sequences share nothing: reading the weights is what they wait for.
pub(crate) const MAX_APART: usize = 16;
/// Fewest positions that are worth items of their own.
const MIN_SHARED: usize = 512;

/// Some sequences, and the positions that all of them begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedPrefix {
    /// Places in [`Sharing::order`].
    pub members: Range<usize>,
    /// Whole blocks of positions; no member writes one of them in this step.
    pub positions: usize,
}

/// The sequences of one step that share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sharing {
    /// Chunks of one token with tables that are long enough.
    pub order: Vec<u32>,
    /// Disjoint; those that save most come first.
    pub prefixes: Vec<SharedPrefix>,
}

/// Block tables of a step, and how much of each is full before it.
struct Tables<'a> {
    batch: &'a RaggedBatch,
    group: &'a GroupTables,
    block_size: usize,
}

impl Tables<'_> {
    /// Ids of the blocks that end before the token of this step.
    fn full(&self, chunk: u32) -> &[u32] {
        let chunk = chunk as usize;
        let row = &self.group.block_tables[chunk * self.group.max_blocks..];
        &row[..(self.batch.seq_lens[chunk] as usize - 1) / self.block_size]
    }
    /// Orders chunks by the blocks at `min_blocks`, at twice, four times as many and so on: those
    /// that share much become neighbours.
    fn compare(&self, a: u32, b: u32, min_blocks: usize) -> Ordering {
        let (left, right) = (self.full(a), self.full(b));
        let mut count = min_blocks;
        loop {
            let ids = (left.get(count - 1), right.get(count - 1));
            if ids.0 != ids.1 || ids == (None, None) {
                return ids.0.cmp(&ids.1).then(a.cmp(&b));
            }
            count *= 2;
        }
    }
}

impl Sharing {
    /// Nothing shared.
    pub fn clear(&mut self) {
        self.order.clear();
        self.prefixes.clear();
    }

    /// The chunks that share a prefix.
    pub fn members(&self, prefix: &SharedPrefix) -> &[u32] {
        &self.order[prefix.members.clone()]
    }

    /// Finds prefixes of at least [`MIN_SHARED`] positions, each for at most `most` of the chunks of
    /// one token.
    pub fn find(
        &mut self,
        batch: &RaggedBatch,
        group: &GroupTables,
        block_size: usize,
        most: usize,
    ) {
        self.clear();
        let tables = Tables { batch, group, block_size };
        let min_blocks = MIN_SHARED.div_ceil(block_size);
        let chunks = (0..batch.num_seqs()).filter(|&chunk| batch.chunk(chunk).len() == 1);
        let chunks = chunks.map(|chunk| chunk as u32);
        self.order.extend(chunks.filter(|&chunk| tables.full(chunk).len() >= min_blocks));
        self.order.sort_unstable_by(|&a, &b| tables.compare(a, b, min_blocks));
        let mut start = 0;
        while start < self.order.len() {
            let mut common = tables.full(self.order[start]);
            let mut end = start + 1;
            while end < self.order.len() && end - start < most {
                let same = equal_ids(common, tables.full(self.order[end]));
                // One that shares much less would take the rest from the others.
                if same < min_blocks || (end - start > 1 && same < common.len() / 2) {
                    break;
                }
                common = &common[..same];
                end += 1;
            }
            if end - start > 1 {
                let positions = common.len() * block_size;
                self.prefixes.push(SharedPrefix { members: start..end, positions });
            }
            start = end;
        }
        let saved = |prefix: &SharedPrefix| prefix.positions * (prefix.members.len() - 1);
        self.prefixes.sort_unstable_by_key(|p| (Reverse(saved(p)), p.members.start));
    }
}

/// Length of the common beginning.
fn equal_ids(a: &[u32], b: &[u32]) -> usize {
    // Pieces of this length are compared at once.
    const PIECE: usize = 32;
    let pieces = a.chunks_exact(PIECE).zip(b.chunks_exact(PIECE));
    let done = pieces.take_while(|(a, b)| a == b).count() * PIECE;
    done + a[done..].iter().zip(&b[done..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 16;

    /// Decode chunks: length and table of each.
    fn batch(sequences: &[(usize, Vec<u32>)]) -> (RaggedBatch, GroupTables) {
        let max_blocks = sequences.iter().map(|s| s.1.len()).max().unwrap_or(0);
        let mut group = GroupTables { max_blocks, ..GroupTables::default() };
        let mut batch = RaggedBatch { query_starts: vec![0], ..RaggedBatch::default() };
        for (len, table) in sequences {
            batch.seq_lens.push(*len as u32);
            batch.query_starts.push(batch.seq_lens.len() as u32);
            group.block_tables.extend(table);
            group.block_tables.resize(batch.seq_lens.len() * max_blocks, 0);
        }
        (batch, group)
    }

    /// `shared` blocks from `first` on, then blocks of its own, for `len` tokens.
    fn sequence(number: u32, len: usize, first: u32, shared: usize) -> (usize, Vec<u32>) {
        let own = |index| 100_000 + number * 1000 + index;
        let blocks = 0..len.div_ceil(BLOCK) as u32;
        (len, blocks.map(|i| if (i as usize) < shared { first + i } else { own(i) }).collect())
    }

    fn find(sequences: &[(usize, Vec<u32>)], most: usize) -> Vec<(Vec<u32>, usize)> {
        let (batch, group) = batch(sequences);
        let mut sharing = Sharing::default();
        sharing.find(&batch, &group, BLOCK, most);
        sharing.prefixes.iter().map(|p| (sharing.members(p).to_vec(), p.positions)).collect()
    }

    #[test]
    fn sequences_on_the_same_blocks_are_taken_together() {
        let all: Vec<_> = (0..6).map(|i| sequence(i, 1000 + i as usize, 7, 40)).collect();
        assert_eq!(find(&all, 4), [(vec![0, 1, 2, 3], 640), (vec![4, 5], 640)]);
        assert_eq!(find(&all, 16), [(vec![0, 1, 2, 3, 4, 5], 640)]);
        assert_eq!(find(&all[..1], 4), []);
    }

    #[test]
    fn short_prefixes_are_left_alone() {
        let all = |shared| [sequence(0, 2000, 7, shared), sequence(1, 2000, 7, shared)];
        assert_eq!(find(&all(31), 4), []);
        assert_eq!(find(&all(32), 4), [(vec![0, 1], 512)]);
    }

    #[test]
    fn the_block_of_the_token_itself_is_never_shared() {
        // The last token of 640 lies in the block that the tables end with.
        let all: Vec<_> = (0..2).map(|i| sequence(i, 640, 7, 40)).collect();
        assert_eq!(find(&all, 4), [(vec![0, 1], 624)]);
        let all: Vec<_> = (0..2).map(|i| sequence(i, 641, 7, 41)).collect();
        assert_eq!(find(&all, 4), [(vec![0, 1], 640)]);
    }

    #[test]
    fn equal_blocks_behind_different_ones_are_not_shared() {
        let mut all = [sequence(0, 2000, 7, 125), sequence(1, 2000, 7, 125)];
        all[1].1[3] = 9999;
        assert_eq!(find(&all, 4), []);
    }

    #[test]
    fn those_that_share_more_go_together() {
        // Two long conversations on one short prefix, alternating.
        let mut all: Vec<_> = (0..8).map(|i| sequence(i, 2100, 7, 40)).collect();
        for (i, (_, table)) in all.iter_mut().enumerate() {
            for (place, id) in table[40..128].iter_mut().enumerate() {
                *id = (5000 + i % 2 * 1000 + place) as u32;
            }
        }
        assert_eq!(find(&all, 4), [(vec![0, 2, 4, 6], 2048), (vec![1, 3, 5, 7], 2048)]);
    }
}

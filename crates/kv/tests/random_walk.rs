//! The pool against a naive model: a map from block to what was written there.

use std::collections::HashMap;

use pagedllm_core::{BlockHasher, BlockId, DType, KvGroup, KvLayout, TokenId};
use pagedllm_kv::{BlockPool, KvShape, OutOfBlocks, SequenceBlocks};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

struct Sequence {
    tokens: Vec<TokenId>,
    num_written: usize,
    blocks: SequenceBlocks,
}

/// What the device would hold: the token in each slot, and the one before it.
type Contents = HashMap<(BlockId, usize), (TokenId, usize)>;

fn shape(windows: &[Option<usize>], block_size: usize, num_blocks: usize) -> KvShape {
    let layout = KvLayout { block_size, num_kv_heads: 1, head_dim: 1, dtype: DType::F32 };
    let group = |(layer, &window)| KvGroup { layers: vec![layer], layout, window };
    let groups: Vec<_> = windows.iter().enumerate().map(group).collect();
    KvShape::new(&groups, block_size, num_blocks)
}

fn hashes(tokens: &[TokenId], block_size: usize) -> Vec<pagedllm_core::BlockHash> {
    let mut hasher = BlockHasher::new(b"salt", b"");
    tokens.chunks_exact(block_size).map(|block| hasher.push(block)).collect()
}

struct Walk {
    random: Random,
    pool: BlockPool,
    contents: Contents,
    sequences: Vec<Sequence>,
}

impl Walk {
    fn new(seed: u64, shape: KvShape) -> Self {
        let random = Random(seed * 2 + 1);
        Self { random, pool: BlockPool::new(shape), contents: HashMap::new(), sequences: vec![] }
    }

    fn block_size(&self) -> usize {
        self.pool.shape().block_size()
    }

    /// A hit must hold exactly the tokens that were asked for.
    fn open(&mut self) {
        let alphabet = 1 + self.random.below(2);
        let len = 1 + self.random.below(5 * self.block_size());
        let tokens: Vec<_> = (0..len).map(|_| self.random.below(alphabet) as TokenId).collect();
        let hashes = hashes(&tokens[..len - 1], self.block_size());
        let found = self.pool.longest_prefix(&hashes);
        let blocks = self.pool.open(&hashes);
        assert_eq!(blocks.num_blocks(), found);
        let num_written = found * self.block_size();
        self.sequences.push(Sequence { tokens, num_written, blocks });
        self.check_contents(self.sequences.len() - 1);
    }

    /// Every position that the next token reads is there, in every group.
    fn check_contents(&self, index: usize) {
        let Sequence { tokens, num_written, blocks } = &self.sequences[index];
        let size = self.block_size();
        for (table, window) in blocks.tables().iter().zip(self.pool.shape().windows()) {
            let first = window.map_or(0, |window| (num_written + 1).saturating_sub(window));
            for (position, &token) in tokens.iter().enumerate().take(*num_written).skip(first) {
                let slot = (table.block(position / size), position % size);
                assert_eq!(self.contents[&slot], (token, position));
                let device_slot = table.slot_of(position, size) as usize;
                assert_eq!(device_slot, slot.0.index() * size + slot.1);
            }
        }
    }

    /// Writes some more tokens, as a step does: copy-on-write, growth, publication.
    fn write(&mut self, index: usize) -> Result<(), OutOfBlocks> {
        let size = self.block_size();
        let more = 1 + self.random.below(2 * size);
        let Sequence { tokens, num_written, blocks } = &mut self.sequences[index];
        let (start, end) = (*num_written, *num_written + more);
        while tokens.len() < end {
            tokens.push(self.random.below(2) as TokenId);
        }
        let mut copies = Vec::new();
        if blocks.num_blocks() > start / size {
            self.pool.make_writable(blocks, start / size, &mut copies)?;
        }
        for copy in copies {
            for offset in 0..size {
                let cell = self.contents.get(&(copy.source, offset)).copied();
                cell.map(|cell| self.contents.insert((copy.target, offset), cell));
            }
        }
        let before: Vec<_> = blocks.iter().collect();
        if let Err(full) = self.pool.grow(blocks, end) {
            assert_eq!(before, blocks.iter().collect::<Vec<_>>(), "all or nothing");
            assert!(full.needed > full.free);
            return Err(full);
        }
        for table in blocks.tables() {
            for (position, &token) in tokens.iter().enumerate().take(end).skip(start) {
                let slot = (table.block(position / size), position % size);
                self.contents.insert(slot, (token, position));
            }
        }
        *num_written = end;
        let hashes = hashes(&tokens[..end], size);
        for (block, &hash) in hashes.iter().enumerate().skip(start / size) {
            self.pool.publish(blocks, block, hash);
        }
        for group in 0..self.pool.shape().num_groups() {
            let window = self.pool.shape().windows()[group];
            let first = self.pool.shape().first_read(window, end);
            self.pool.release_front(blocks, group, first);
        }
        Ok(())
    }

    fn turn(&mut self) {
        let num = self.sequences.len();
        match self.random.below(12) {
            0..=2 => self.open(),
            _ if num == 0 => self.open(),
            3..=7 => {
                let index = self.random.below(num);
                // Full for now is an answer, not a failure.
                let _ = self.write(index);
                self.check_contents(index);
            }
            8 => {
                let parent = self.random.below(num);
                let Sequence { tokens, num_written, blocks } = &self.sequences[parent];
                let (tokens, num_written) = (tokens.clone(), *num_written);
                let blocks = self.pool.fork(blocks, num_written);
                self.sequences.push(Sequence { tokens, num_written, blocks });
                self.check_contents(num);
            }
            9 => {
                let index = self.random.below(num);
                let hashes = hashes(&self.sequences[index].tokens, self.block_size());
                for hash in &hashes {
                    self.pool.evict(*hash);
                }
                assert_eq!(self.pool.longest_prefix(&hashes), 0, "forgotten");
            }
            _ => {
                let index = self.random.below(num);
                let sequence = self.sequences.swap_remove(index);
                self.pool.close(sequence.blocks);
            }
        }
        self.pool.check(self.sequences.iter().map(|sequence| &sequence.blocks));
        let stats = self.pool.stats();
        assert_eq!(stats.used + stats.free, self.pool.shape().num_blocks());
    }
}

#[test]
fn random_walks_keep_every_invariant() {
    for seed in 0..300 {
        let windows: &[Option<usize>] = match seed % 4 {
            0 | 1 => &[None],
            2 => &[None, Some(6)],
            _ => &[Some(3), Some(17)],
        };
        let block_size = [1, 4, 16][seed as usize % 3];
        let mut walk = Walk::new(seed, shape(windows, block_size, 12 + seed as usize % 20));
        let walked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..300 {
                walk.turn();
            }
            for sequence in walk.sequences.drain(..) {
                walk.pool.close(sequence.blocks);
            }
            walk.pool.check(std::iter::empty());
            assert_eq!(walk.pool.stats().used, 0);
        }));
        assert!(walked.is_ok(), "seed {seed}");
    }
}

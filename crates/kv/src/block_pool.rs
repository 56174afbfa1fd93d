//! The block pool: who holds which KV block, and which blocks can be reused as a prefix.
//!
//! A *block* is `block_size` consecutive token slots in every layer of one group. The pool deals
//! in block ids and never touches device memory. It has no `unsafe`, no clock, no lock and no
//! I/O, so a whole day of serving can be replayed inside a unit test.
//!
//! # Invariants
//! 1. The holders that a block counts are the live [`BlockTable`]s that contain it.
//! 2. A published block is full and is never written again.
//! 3. The free list *is* the prefix cache: a free block keeps its contents and its hash until
//!    it is taken again, least recently released first. Blocks without a hash go first of all.
//!
//! [`BlockPool::check`] proves them; `tests/random_walk.rs` and the simulator call it after each
//! operation.

use std::collections::hash_map::{Entry, HashMap};

use pagedllm_core::{BlockCopy, BlockHash, BlockId};

use crate::free_list::FreeList;
use crate::{BlockTable, KvShape, SequenceBlocks};

/// The pool is full for now. The scheduler answers by preempting; the request does not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV blocks needed, {free} free")]
pub struct OutOfBlocks {
    /// Blocks that the call would have taken.
    pub needed: usize,
    /// Blocks that were free.
    pub free: usize,
}

/// Where the blocks are. `used + free = num_blocks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks with a holder.
    pub used: usize,
    /// Blocks without one.
    pub free: usize,
    /// Free blocks that still hold a published prefix.
    pub cached: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    num_holders: u32,
    /// Group and hash under which it is published.
    published: Option<(u32, BlockHash)>,
}

/// Hands out KV blocks, counts their holders, and finds published prefixes.
#[derive(Debug)]
pub struct BlockPool {
    shape: KvShape,
    blocks: Vec<Block>,
    free: FreeList,
    /// One map a group.
    published: Vec<HashMap<BlockHash, BlockId>>,
    num_cached: usize,
}

impl BlockPool {
    /// A pool in which every block is free.
    #[must_use]
    pub fn new(shape: KvShape) -> Self {
        let num_blocks = shape.num_blocks();
        let mut free = FreeList::new(num_blocks);
        for index in 0..num_blocks {
            free.push_back(BlockId::new(index));
        }
        Self {
            blocks: vec![Block::default(); num_blocks],
            free,
            published: vec![HashMap::new(); shape.num_groups()],
            shape,
            num_cached: 0,
        }
    }
    /// Sizes.
    #[must_use]
    pub const fn shape(&self) -> &KvShape {
        &self.shape
    }
    /// Blocks that can be taken now.
    #[must_use]
    pub const fn num_free(&self) -> usize {
        self.free.len()
    }
    /// Where the blocks are.
    #[must_use]
    pub const fn stats(&self) -> PoolStats {
        let free = self.free.len();
        PoolStats { used: self.blocks.len() - free, free, cached: self.num_cached }
    }

    /// Opens tables on the longest published prefix of `hashes` that is valid in all groups; it
    /// may be empty. Looking up and holding are one step, so what was found can't be lost.
    pub fn open(&mut self, hashes: &[BlockHash]) -> SequenceBlocks {
        let num_hits = self.longest_prefix(hashes);
        let mut tables = Vec::with_capacity(self.shape.num_groups());
        for group in 0..self.shape.num_groups() {
            let window = self.shape.windows()[group];
            let first = self.shape.first_read(window, num_hits * self.shape.block_size());
            let num_released = first.min(num_hits);
            let mut table = BlockTable { num_released, blocks: Vec::new() };
            for hash in &hashes[num_released..num_hits] {
                let block = self.published[group][hash];
                self.hold(block);
                table.blocks.push(block);
            }
            tables.push(table);
        }
        SequenceBlocks { tables }
    }

    /// How many blocks of `hashes` an [`open`](Self::open) would find.
    #[must_use]
    pub fn longest_prefix(&self, hashes: &[BlockHash]) -> usize {
        let mut num_hits = hashes.len();
        for (published, window) in self.published.iter().zip(self.shape.windows()) {
            if window.is_none() {
                let found = |hash| published.contains_key(hash);
                num_hits = hashes[..num_hits].iter().take_while(|hash| found(hash)).count();
            }
        }
        // A group with a window needs only the blocks that the next token reads.
        while num_hits > 0 && !self.windows_reach(hashes, num_hits) {
            num_hits -= 1;
        }
        num_hits
    }

    /// Whether every windowed group still has what a token after `num_hits` blocks reads.
    fn windows_reach(&self, hashes: &[BlockHash], num_hits: usize) -> bool {
        self.published.iter().zip(self.shape.windows()).all(|(published, &window)| {
            window.is_none() || {
                let first = self.shape.first_read(window, num_hits * self.shape.block_size());
                let read = first.min(num_hits)..num_hits;
                hashes[read].iter().rev().all(|hash| published.contains_key(hash))
            }
        })
    }

    /// Opens second tables on the blocks of the first `num_tokens` tokens (parallel sampling).
    /// Copies nothing.
    pub fn fork(&mut self, parent: &SequenceBlocks, num_tokens: usize) -> SequenceBlocks {
        let num_blocks = num_tokens.div_ceil(self.shape.block_size());
        let mut tables = Vec::with_capacity(parent.tables.len());
        for table in &parent.tables {
            let blocks = table.blocks[..num_blocks - table.num_released].to_vec();
            for &block in &blocks {
                self.hold(block);
            }
            tables.push(BlockTable { num_released: table.num_released, blocks });
        }
        SequenceBlocks { tables }
    }

    /// Grows every table until it can store `num_tokens` tokens: all the blocks needed in all
    /// groups, or none.
    ///
    /// # Errors
    /// There are not enough free blocks; nothing has changed.
    pub fn grow(
        &mut self,
        blocks: &mut SequenceBlocks,
        num_tokens: usize,
    ) -> Result<(), OutOfBlocks> {
        let wanted = num_tokens.div_ceil(self.shape.block_size());
        let each = wanted.saturating_sub(blocks.num_blocks());
        if each == 0 {
            return Ok(());
        }
        self.ensure_free(each * self.shape.num_groups())?;
        blocks.tables.resize_with(self.shape.num_groups(), BlockTable::default);
        for table in &mut blocks.tables {
            table.blocks.extend((0..each).map(|_| self.take_oldest_free()));
        }
        Ok(())
    }

    /// Most tokens, at most `num_tokens`, that the tables can store after growing into what is
    /// free now, with `spare` blocks left over.
    #[must_use]
    pub fn fits(&self, blocks: &SequenceBlocks, num_tokens: usize, spare: usize) -> usize {
        let each = self.num_free().saturating_sub(spare) / self.shape.num_groups();
        num_tokens.min((blocks.num_blocks() + each) * self.shape.block_size())
    }

    /// Blocks that [`make_writable`](Self::make_writable) would take for block `index`.
    #[must_use]
    pub fn num_shared(&self, blocks: &SequenceBlocks, index: usize) -> usize {
        let shared = |table: &&BlockTable| self.block(table.block(index)).num_holders > 1;
        blocks.tables.iter().filter(shared).count()
    }

    /// Makes block `index` safe to write in all groups (copy-on-write). Each shared block is
    /// swapped for a private one, and the copy to run first is added to `copies`.
    ///
    /// # Errors
    /// There are not enough free blocks; nothing has changed.
    ///
    /// # Panics
    /// If the block is published: it is full, and whoever writes to it has lost count.
    pub fn make_writable(
        &mut self,
        blocks: &mut SequenceBlocks,
        index: usize,
        copies: &mut Vec<BlockCopy>,
    ) -> Result<(), OutOfBlocks> {
        self.ensure_free(self.num_shared(blocks, index))?;
        for table in &mut blocks.tables {
            let source = table.block(index);
            assert!(self.block(source).published.is_none(), "published blocks are never written");
            if self.block(source).num_holders > 1 {
                let target = self.take_oldest_free();
                self.drop_hold(source);
                table.blocks[index - table.num_released] = target;
                copies.push(BlockCopy { source, target });
            }
        }
        Ok(())
    }

    /// Publishes full block `index` of every group under its chained content hash. The first
    /// publisher wins, so tables stay append-only; a duplicate simply remains private. Says
    /// whether anything was published.
    pub fn publish(&mut self, blocks: &SequenceBlocks, index: usize, hash: BlockHash) -> bool {
        let mut any = false;
        for (group, table) in blocks.tables.iter().enumerate() {
            if index < table.num_released {
                continue;
            }
            let block = table.block(index);
            if self.block(block).published.is_some() {
                continue;
            }
            if let Entry::Vacant(entry) = self.published[group].entry(hash) {
                entry.insert(block);
                self.blocks[block.index()].published = Some((group as u32, hash));
                any = true;
            }
        }
        any
    }

    /// Forgets what was published under `hash`, in all groups. Holders keep their blocks.
    pub fn evict(&mut self, hash: BlockHash) {
        for group in 0..self.published.len() {
            if let Some(block) = self.published[group].remove(&hash) {
                self.blocks[block.index()].published = None;
                if self.free.contains(block) {
                    self.num_cached -= 1;
                    self.free.remove(block);
                    self.free.push_front(block);
                }
            }
        }
    }

    /// Drops the first blocks of group `group` until only those from block `first` on are held.
    pub fn release_front(&mut self, blocks: &mut SequenceBlocks, group: usize, first: usize) {
        let table = &mut blocks.tables[group];
        let num = first.saturating_sub(table.num_released).min(table.blocks.len());
        table.num_released += num;
        for block in table.blocks.drain(..num) {
            self.drop_hold(block);
        }
    }

    /// Takes the tables back, last block first, so that eviction eats a cached prefix from its
    /// tail.
    pub fn close(&mut self, blocks: SequenceBlocks) {
        let longest = blocks.tables.iter().map(|table| table.blocks.len()).max().unwrap_or(0);
        for back in 0..longest {
            for table in &blocks.tables {
                if let Some(index) = table.blocks.len().checked_sub(back + 1) {
                    self.drop_hold(table.blocks[index]);
                }
            }
        }
    }

    /// Whether some table contains the block.
    #[must_use]
    pub fn is_held(&self, block: BlockId) -> bool {
        self.block(block).num_holders > 0
    }

    /// Whether nobody holds the block and nobody can find it: its contents are meaningless.
    #[must_use]
    pub fn is_meaningless(&self, block: BlockId) -> bool {
        let Block { num_holders, published } = self.block(block);
        *num_holders == 0 && published.is_none()
    }

    /// Proves the invariants, given every live table.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check<'a>(&self, live: impl Iterator<Item = &'a SequenceBlocks>) {
        let mut holders = vec![0u32; self.blocks.len()];
        for blocks in live {
            for block in blocks.iter() {
                holders[block.index()] += 1;
            }
        }
        let mut is_free = vec![false; self.blocks.len()];
        for block in self.free.iter() {
            assert!(!std::mem::replace(&mut is_free[block.index()], true), "{block} is free twice");
        }
        let mut num_published = 0;
        let mut num_cached = 0;
        for (index, block) in self.blocks.iter().enumerate() {
            let id = BlockId::new(index);
            assert_eq!(block.num_holders, holders[index], "holders of {id}");
            assert_eq!(is_free[index], holders[index] == 0, "{id} is free exactly if unheld");
            if let Some((group, hash)) = block.published {
                assert_eq!(self.published[group as usize].get(&hash), Some(&id), "hash of {id}");
                num_published += 1;
                num_cached += usize::from(self.free.contains(id));
            }
        }
        assert_eq!(num_published, self.published.iter().map(HashMap::len).sum::<usize>());
        assert_eq!(num_cached, self.num_cached, "cached blocks are counted");
        assert_eq!(self.free.iter().count(), self.free.len(), "free blocks are counted");
    }

    fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.index()]
    }

    fn ensure_free(&self, needed: usize) -> Result<(), OutOfBlocks> {
        let free = self.free.len();
        if needed > free { Err(OutOfBlocks { needed, free }) } else { Ok(()) }
    }

    /// Takes the block that was released longest ago; its old contents can't be found any more.
    fn take_oldest_free(&mut self) -> BlockId {
        let block = self.free.pop_front().expect("checked by `ensure_free`");
        let entry = &mut self.blocks[block.index()];
        entry.num_holders = 1;
        if let Some((group, hash)) = entry.published.take() {
            self.published[group as usize].remove(&hash);
            self.num_cached -= 1;
        }
        block
    }

    fn hold(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        entry.num_holders += 1;
        if entry.num_holders == 1 {
            self.num_cached -= usize::from(entry.published.is_some());
            self.free.remove(block);
        }
    }

    fn drop_hold(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.num_holders > 0, "{block} has no holder");
        entry.num_holders -= 1;
        if entry.num_holders == 0 {
            self.put_free(block);
        }
    }

    fn put_free(&mut self, block: BlockId) {
        if self.block(block).published.is_some() {
            self.num_cached += 1;
            self.free.push_back(block);
        } else {
            self.free.push_front(block);
        }
    }
}

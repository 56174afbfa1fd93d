//! The blocks of one sequence: position to block to slot.

use pagedllm_core::BlockId;

/// The blocks of one sequence in one group of layers, in token order.
///
/// Not `Clone`: only the pool can add or drop a holder, which keeps its counts right.
#[derive(Debug, Default)]
#[must_use = "give it back with `BlockPool::close`, or its blocks stay held"]
pub struct BlockTable {
    /// Blocks that have left the front (a window moved on).
    pub(crate) num_released: usize,
    /// The blocks from there on.
    pub(crate) blocks: Vec<BlockId>,
}

impl BlockTable {
    /// Blocks that left the front; their places in a table on the device are never read.
    #[must_use]
    pub const fn num_released(&self) -> usize {
        self.num_released
    }
    /// The blocks after the released ones.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }
    /// Length in blocks, released ones included.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.num_released + self.blocks.len()
    }
    /// The block at `index` of the sequence.
    ///
    /// # Panics
    /// If it was released or never held.
    #[must_use]
    pub fn block(&self, index: usize) -> BlockId {
        self.blocks[index - self.num_released]
    }
    /// The slot of a token: `block * block_size + offset`.
    ///
    /// # Panics
    /// If its block was released or never held.
    #[must_use]
    pub fn slot_of(&self, position: usize, block_size: usize) -> u32 {
        self.block(position / block_size).get() * block_size as u32 + (position % block_size) as u32
    }
}

/// The block tables of one sequence, one a group. All are equally long.
#[derive(Debug, Default)]
#[must_use = "give it back with `BlockPool::close`, or its blocks stay held"]
pub struct SequenceBlocks {
    pub(crate) tables: Vec<BlockTable>,
}

impl SequenceBlocks {
    /// One table a group; none when nothing is held.
    pub fn tables(&self) -> &[BlockTable] {
        &self.tables
    }
    /// Length in blocks of each table, released ones included.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.tables.first().map_or(0, BlockTable::num_blocks)
    }
    /// Every held block.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.tables.iter().flat_map(|table| table.blocks.iter().copied())
    }
}

//! Ids. Each is its own kind, so that a block can't be mistaken for a sequence.

use std::fmt;

/// Vocabulary index.
pub type TokenId = u32;

/// One KV block of the pool, shared by all groups of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(u32);

impl BlockId {
    /// The block at `index` of the pool.
    ///
    /// # Panics
    /// If `index` does not fit 32 bits; a pool is never that large.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a pool has fewer than 2^32 blocks"))
    }
    /// Its place in the pool.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// The id as the device sees it.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// A copy of one whole block, in all layers, before the forward pass of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that is read.
    pub source: BlockId,
    /// The block that is overwritten.
    pub target: BlockId,
}

/// One growing list of tokens. Unique for the life of an engine, in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

impl SequenceId {
    /// The `number`-th sequence of an engine.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// One member of a tensor-parallel group, and the size of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankId {
    /// `0 ..world`.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
}

impl RankId {
    /// The only rank of a single device.
    pub const SINGLE: Self = Self { rank: 0, world: 1 };
}

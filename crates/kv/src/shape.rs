//! Sizes of the cache: blocks, groups, and how many blocks a sequence takes.

use pagedllm_core::KvGroup;

/// Blocks of the pool and the windows of the groups that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShape {
    block_size: usize,
    num_blocks: usize,
    windows: Vec<Option<usize>>,
}

impl KvShape {
    /// A pool of `num_blocks` blocks of `block_size` slots for these groups.
    ///
    /// # Panics
    /// If there is no group or no slot, or a window is empty.
    #[must_use]
    pub fn new(groups: &[KvGroup], block_size: usize, num_blocks: usize) -> Self {
        let windows: Vec<_> = groups.iter().map(|group| group.window).collect();
        assert!(!windows.is_empty() && block_size > 0, "a cache has groups and slots");
        assert!(windows.iter().all(|&window| window != Some(0)), "a window holds a token");
        Self { block_size, num_blocks, windows }
    }
    /// Token slots in a block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }
    /// Blocks of the pool.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }
    /// Groups that share the pool.
    #[must_use]
    pub const fn num_groups(&self) -> usize {
        self.windows.len()
    }
    /// For each group, how many of the last tokens are read; `None` reads all.
    #[must_use]
    pub fn windows(&self) -> &[Option<usize>] {
        &self.windows
    }
    /// Whether some group forgets old tokens.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.windows.iter().any(Option::is_some)
    }
    /// Index of the first block that a token at `position` or later reads in a group.
    #[must_use]
    pub fn first_read(&self, window: Option<usize>, position: usize) -> usize {
        window.map_or(0, |window| (position + 1).saturating_sub(window) / self.block_size)
    }
    /// Most blocks that one sequence of `num_tokens` holds at any time, when it is computed in
    /// chunks of at most `max_chunk` tokens.
    #[must_use]
    pub fn peak_blocks(&self, num_tokens: usize, max_chunk: usize) -> usize {
        let all = num_tokens.div_ceil(self.block_size);
        let held = |window: Option<usize>| match window {
            None => all,
            // The window and the chunk, which need not begin at the border of a block.
            Some(window) => all.min((window + max_chunk).div_ceil(self.block_size) + 1),
        };
        self.windows.iter().map(|&window| held(window)).sum()
    }
}

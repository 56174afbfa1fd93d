//! Free blocks in the order in which they will be reused: a doubly linked list in two vectors,
//! so that push, pop and removal from the middle take constant time.

use pagedllm_core::BlockId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    previous: u32,
    next: u32,
}

/// Not in the list.
const NOWHERE: Link = Link { previous: u32::MAX, next: u32::MAX };

/// Free blocks, next to be reused first.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// One link a block; the last one is the head and the tail of the ring.
    links: Vec<Link>,
    len: usize,
}

impl FreeList {
    /// A list without blocks, for blocks `0 ..num_blocks`.
    pub(crate) fn new(num_blocks: usize) -> Self {
        let ring = BlockId::new(num_blocks).get();
        let mut links = vec![NOWHERE; num_blocks + 1];
        links[num_blocks] = Link { previous: ring, next: ring };
        Self { links, len: 0 }
    }
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.links[block.index()] != NOWHERE
    }
    /// Puts a block where it is reused last.
    pub(crate) fn push_back(&mut self, block: BlockId) {
        let ring = self.ring();
        self.insert(block, self.links[ring as usize].previous, ring);
    }
    /// Puts a block where it is reused next.
    pub(crate) fn push_front(&mut self, block: BlockId) {
        let ring = self.ring();
        self.insert(block, ring, self.links[ring as usize].next);
    }
    pub(crate) fn pop_front(&mut self) -> Option<BlockId> {
        let first = self.links[self.ring() as usize].next;
        if first == self.ring() {
            return None;
        }
        let block = BlockId::new(first as usize);
        self.remove(block);
        Some(block)
    }
    pub(crate) fn remove(&mut self, block: BlockId) {
        let link = std::mem::replace(&mut self.links[block.index()], NOWHERE);
        assert!(link != NOWHERE, "{block} is not free");
        self.links[link.previous as usize].next = link.next;
        self.links[link.next as usize].previous = link.previous;
        self.len -= 1;
    }
    /// The blocks, next to be reused first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let ring = self.ring();
        let step = move |&at: &u32| Some(self.links[at as usize].next).filter(|&next| next != ring);
        std::iter::successors(step(&ring), step).map(|at| BlockId::new(at as usize))
    }

    fn ring(&self) -> u32 {
        (self.links.len() - 1) as u32
    }
    fn insert(&mut self, block: BlockId, previous: u32, next: u32) {
        assert!(!self.contains(block), "{block} is free twice");
        self.links[block.index()] = Link { previous, next };
        self.links[previous as usize].next = block.get();
        self.links[next as usize].previous = block.get();
        self.len += 1;
    }
}

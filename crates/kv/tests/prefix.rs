//! Which prefix is found, and what is forgotten first.

use pagedllm_core::{BlockHash, DType, KvGroup, KvLayout};
use pagedllm_kv::{BlockPool, KvShape, OutOfBlocks};

fn pool(windows: &[Option<usize>], block_size: usize, num_blocks: usize) -> BlockPool {
    let layout = KvLayout { block_size, num_kv_heads: 1, head_dim: 1, dtype: DType::F32 };
    let groups: Vec<_> =
        windows.iter().map(|&window| KvGroup { layers: vec![0], layout, window }).collect();
    BlockPool::new(KvShape::new(&groups, block_size, num_blocks))
}

fn chain(range: std::ops::Range<u128>) -> Vec<BlockHash> {
    range.map(BlockHash::from_u128).collect()
}

/// Writes and publishes a sequence of full blocks, and closes it.
fn fill(pool: &mut BlockPool, hashes: &[BlockHash]) {
    let mut blocks = pool.open(hashes);
    let found = blocks.num_blocks();
    pool.grow(&mut blocks, hashes.len() * pool.shape().block_size()).expect("room");
    for (index, &hash) in hashes.iter().enumerate().skip(found) {
        pool.publish(&blocks, index, hash);
    }
    pool.close(blocks);
}

#[test]
fn a_cached_prefix_is_eaten_from_its_tail() {
    let mut pool = pool(&[None], 4, 6);
    fill(&mut pool, &chain(0..4));
    assert_eq!(pool.stats().cached, 4);
    // Two blocks were never used and go first, then the tail of the prefix.
    for (taken, left) in [(2, 4), (1, 3), (1, 2)] {
        let mut blocks = pool.open(&[]);
        pool.grow(&mut blocks, taken * 4).expect("room");
        assert_eq!(pool.longest_prefix(&chain(0..4)), left);
        std::mem::forget(blocks);
    }
}

#[test]
fn what_was_released_longest_ago_goes_first() {
    let mut pool = pool(&[None], 4, 4);
    fill(&mut pool, &chain(0..2));
    fill(&mut pool, &chain(10..12));
    // A new look at the first one makes it the younger.
    let again = pool.open(&chain(0..2));
    assert_eq!(again.num_blocks(), 2);
    pool.close(again);
    let mut blocks = pool.open(&[]);
    pool.grow(&mut blocks, 8).expect("room");
    assert_eq!(pool.longest_prefix(&chain(10..12)), 0);
    assert_eq!(pool.longest_prefix(&chain(0..2)), 2);
    pool.close(blocks);
}

#[test]
fn a_held_prefix_is_never_taken() {
    let mut pool = pool(&[None], 4, 4);
    fill(&mut pool, &chain(0..3));
    let held = pool.open(&chain(0..3));
    let mut other = pool.open(&[]);
    assert_eq!(pool.grow(&mut other, 8), Err(OutOfBlocks { needed: 2, free: 1 }));
    pool.close(held);
    assert_eq!(pool.grow(&mut other, 8), Ok(()));
    pool.close(other);
}

#[test]
fn the_first_publisher_wins() {
    let mut pool = pool(&[None], 4, 4);
    let mut one = pool.open(&[]);
    let mut two = pool.open(&[]);
    pool.grow(&mut one, 4).expect("room");
    pool.grow(&mut two, 4).expect("room");
    assert!(pool.publish(&one, 0, BlockHash::from_u128(1)));
    assert!(!pool.publish(&two, 0, BlockHash::from_u128(1)));
    pool.check([&one, &two].into_iter());
    pool.close(one);
    pool.close(two);
}

#[test]
fn a_window_needs_only_its_own_blocks() {
    // 40 tokens in blocks of 4; the second group reads the last 8 tokens.
    let mut pool = pool(&[None, Some(8)], 4, 40);
    let hashes = chain(0..10);
    let mut blocks = pool.open(&[]);
    pool.grow(&mut blocks, 40).expect("room");
    for (index, &hash) in hashes.iter().enumerate() {
        pool.publish(&blocks, index, hash);
    }
    pool.release_front(&mut blocks, 1, 8);
    pool.close(blocks);
    assert_eq!(pool.longest_prefix(&hashes), 10);
    let hit = pool.open(&hashes);
    assert_eq!(hit.tables()[0].blocks().len(), 10);
    // Position 40 reads from 33 on: blocks 8 and 9.
    assert_eq!((hit.tables()[1].num_released(), hit.tables()[1].blocks().len()), (8, 2));
    pool.close(hit);

    // Once the window's blocks are gone in the second group, the prefix is cut to where they are.
    let first_seven = pool.open(&hashes[..7]);
    pool.check([&first_seven].into_iter());
    pool.close(first_seven);
}

#[test]
fn a_prefix_must_be_valid_in_all_groups() {
    let mut pool = pool(&[None, None], 4, 12);
    fill(&mut pool, &chain(0..3));
    assert_eq!(pool.longest_prefix(&chain(0..3)), 3);
    // Ten blocks are needed: six were never used, then the two youngest of each group go.
    let mut blocks = pool.open(&[]);
    pool.grow(&mut blocks, 16).expect("room");
    assert_eq!(pool.longest_prefix(&chain(0..3)), 2);
    pool.close(blocks);
}

#[test]
fn an_evicted_hash_is_not_found_and_its_holder_keeps_it() {
    let mut pool = pool(&[None], 4, 3);
    fill(&mut pool, &chain(0..2));
    let held = pool.open(&chain(0..2));
    pool.evict(BlockHash::from_u128(1));
    assert_eq!(pool.longest_prefix(&chain(0..2)), 1);
    pool.check([&held].into_iter());
    pool.close(held);
    pool.check(std::iter::empty());
}

#[test]
fn peak_blocks_count_windows_and_chunks() {
    let pool = pool(&[None, Some(8)], 4, 1);
    let cases = [(0, 4, 0), (1, 4, 2), (4, 4, 2), (5, 4, 4), (400, 4, 104), (400, 100, 128)];
    for (num_tokens, max_chunk, want) in cases {
        assert_eq!(pool.shape().peak_blocks(num_tokens, max_chunk), want, "{num_tokens} tokens");
    }
}

//! Content hashes of full KV blocks: chained, salted, collision-safe (BLAKE3, 128 bits kept).

use crate::TokenId;

/// What a full block of KV was computed from: its tokens, all tokens before them, and the salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(u128);

impl BlockHash {
    /// A hash made of a number, for tests of the pool alone.
    #[must_use]
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }
    /// The bits.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

/// Hashes the blocks of one sequence, first to last; each hash covers its parent's.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    parent: [u8; 32],
}

impl BlockHasher {
    /// Starts a chain. `salt` keeps tenants apart; `extra` holds whatever else changes KV (an
    /// adapter's name, the digest of an image). Both are length-prefixed, so no two pairs meet.
    #[must_use]
    pub fn new(salt: &[u8], extra: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("pagedllm 2026-11 KV block chain");
        hasher.update(&(salt.len() as u64).to_le_bytes()).update(salt);
        hasher.update(&(extra.len() as u64).to_le_bytes()).update(extra);
        Self { parent: *hasher.finalize().as_bytes() }
    }

    /// The hash of the next full block.
    pub fn push(&mut self, tokens: &[TokenId]) -> BlockHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.parent);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        self.parent = *hasher.finalize().as_bytes();
        let mut low = [0u8; 16];
        low.copy_from_slice(&self.parent[..16]);
        BlockHash(u128::from_le_bytes(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_covers_its_parents_and_the_framed_salt() {
        let chain = |salt: &[u8], extra: &[u8], blocks: &[&[TokenId]]| {
            let mut hasher = BlockHasher::new(salt, extra);
            blocks.iter().map(|b| hasher.push(b)).last().expect("blocks")
        };
        let base = chain(b"a", b"", &[&[1, 2], &[3, 4]]);
        assert_eq!(base, chain(b"a", b"", &[&[1, 2], &[3, 4]]));
        assert_ne!(base, chain(b"a", b"", &[&[2, 1], &[3, 4]]), "the parent counts");
        assert_ne!(base, chain(b"b", b"", &[&[1, 2], &[3, 4]]), "the salt counts");
        assert_ne!(chain(b"ab", b"c", &[&[1]]), chain(b"a", b"bc", &[&[1]]), "fields are framed");
    }
}

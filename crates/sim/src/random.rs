//! A small seeded generator: the same seed gives the same world everywhere.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Mixes two numbers into one that depends on every bit of both.
#[must_use]
pub const fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xD134_2543_DE82_EF95) ^ b;
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Random {
    /// A generator that depends on nothing but `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed, 0x5EED))
    }
    /// 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0, 1)
    }
    /// `0 ..bound`.
    pub const fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
    /// `low ..=high`.
    pub const fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }
    /// True in `percent` of a hundred.
    pub const fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
    /// One of these.
    pub const fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

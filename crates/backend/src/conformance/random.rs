//! Random data from a printed seed: numbers, weights of every format, ragged batches.

use std::borrow::Cow;

use half::{bf16, f16};
use pagedllm_core::{
    GroupTables, RaggedBatch, StepInput, TokenId, TokenSource, WeightFormat, WeightView,
};

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `limit`.
    pub const fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }
    /// A number in -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    /// `len` numbers in -1 to 1.
    pub fn units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    /// A matrix of random bits in `format`, scaled so that weights are about one over the square
    /// root of `cols`.
    pub fn weight(
        &mut self,
        format: WeightFormat,
        rows: usize,
        cols: usize,
    ) -> WeightView<'static> {
        let scale = 1.0 / (cols as f32).sqrt();
        let blocks = rows * cols / format.block_len();
        let mut data = Vec::with_capacity(blocks * format.block_bytes());
        for _ in 0..blocks {
            let start = data.len();
            match format {
                WeightFormat::F32 => data.extend((self.unit() * scale).to_le_bytes()),
                WeightFormat::F16 => data.extend(f16::from_f32(self.unit() * scale).to_le_bytes()),
                WeightFormat::BF16 => {
                    data.extend(bf16::from_f32(self.unit() * scale).to_le_bytes());
                }
                _ => {
                    data.extend((0..format.block_bytes()).map(|_| self.bits() as u8));
                    self.set_scales(format, &mut data[start..], scale);
                }
            }
        }
        let name = format!("random {format} {rows} x {cols}");
        WeightView { name, format, rows, cols, data: Cow::Owned(data) }
    }

    /// Overwrites the f16 scales of a block, so that its weights stay small.
    fn set_scales(&mut self, format: WeightFormat, block: &mut [u8], scale: f32) {
        let magnitude = scale * (0.5 + 0.5 * self.unit().abs());
        let mut set = |at: usize, value: f32| {
            block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        match format {
            WeightFormat::Q8_0 => set(0, magnitude / 127.0),
            WeightFormat::Q4_0 => set(0, magnitude / 8.0),
            WeightFormat::Q5_0 => set(0, magnitude / 16.0),
            WeightFormat::Q4_1 => {
                set(0, magnitude / 8.0);
                set(2, -magnitude);
            }
            WeightFormat::Q5_1 => {
                set(0, magnitude / 16.0);
                set(2, -magnitude);
            }
            WeightFormat::Q4K => {
                set(0, magnitude / 8.0 / 32.0);
                set(2, magnitude / 32.0);
            }
            WeightFormat::Q5K => {
                set(0, magnitude / 16.0 / 32.0);
                set(2, magnitude / 32.0);
            }
            WeightFormat::Q6K => set(208, magnitude / 32.0 / 64.0),
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => {}
        }
    }
}

/// Sequences on shuffled blocks, advanced chunk by chunk.
pub struct World {
    /// Block ids of each sequence.
    pub tables: Vec<Vec<u32>>,
    /// Tokens of each sequence that are in the cache.
    pub lens: Vec<usize>,
    /// Token slots in a block.
    pub block_size: usize,
}

impl World {
    /// `max_lens` tokens for each sequence, on blocks in random order.
    pub fn new(random: &mut Random, max_lens: &[usize], block_size: usize) -> (Self, usize) {
        let counts: Vec<usize> = max_lens.iter().map(|len| len.div_ceil(block_size)).collect();
        let num_blocks = counts.iter().sum::<usize>() + 3;
        let mut order: Vec<u32> = (0..num_blocks as u32).collect();
        for i in (1..num_blocks).rev() {
            order.swap(i, random.below(i + 1));
        }
        let mut next = order.into_iter();
        let tables = counts.iter().map(|&count| next.by_ref().take(count).collect()).collect();
        (Self { tables, lens: vec![0; max_lens.len()], block_size }, num_blocks)
    }

    /// A step with `(sequence, tokens)` chunks; the last token of each goes to the head.
    pub fn step(
        &mut self,
        random: &mut Random,
        chunks: &[(usize, usize)],
        vocab: usize,
    ) -> StepInput {
        let max_blocks = chunks.iter().map(|&(s, _)| self.tables[s].len()).max().expect("a chunk");
        let mut batch = RaggedBatch { query_starts: vec![0], ..RaggedBatch::default() };
        let mut group = GroupTables { max_blocks, ..GroupTables::default() };
        for &(sequence, tokens) in chunks {
            let table = &self.tables[sequence];
            for position in self.lens[sequence]..self.lens[sequence] + tokens {
                batch.token_ids.push(TokenSource::Known(random.below(vocab) as TokenId));
                batch.positions.push(position as u32);
                let block = table[position / self.block_size];
                let offset = (position % self.block_size) as u32;
                group.slot_mapping.push(block * self.block_size as u32 + offset);
            }
            self.lens[sequence] += tokens;
            batch.query_starts.push(batch.token_ids.len() as u32);
            batch.seq_lens.push(self.lens[sequence] as u32);
            batch.logit_rows.push(batch.token_ids.len() as u32 - 1);
            let used = self.lens[sequence].div_ceil(self.block_size);
            group.block_tables.extend(&table[..used]);
            group.block_tables.extend(std::iter::repeat_n(0, max_blocks - used));
        }
        batch.groups.push(group);
        batch.check(self.block_size);
        StepInput { batch, ..StepInput::default() }
    }
}

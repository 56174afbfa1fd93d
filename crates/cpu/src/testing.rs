//! Random inputs for this crate's tests.

use half::f16;
use pagedllm_core::{WeightFormat, WeightView};

/// SplitMix64: enough for test data, and the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
    /// In `-1.0..1.0`.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

/// A matrix of random bits whose scales are small numbers.
pub fn random_weight(
    random: &mut Random,
    format: WeightFormat,
    rows: usize,
    cols: usize,
) -> WeightView<'static> {
    let blocks = rows * cols / format.block_len();
    let mut data = Vec::new();
    for _ in 0..blocks {
        let mut block: Vec<u8> =
            (0..format.block_bytes()).map(|_| random.next().to_le_bytes()[3]).collect();
        let mut put = |at: usize, value: f32| {
            block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        let value = random.float();
        match format {
            WeightFormat::F32 => block.copy_from_slice(&value.to_le_bytes()),
            WeightFormat::F16 => put(0, value),
            WeightFormat::BF16 => {
                block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
            }
            WeightFormat::Q8_0 | WeightFormat::Q4_0 | WeightFormat::Q5_0 => put(0, value * 0.01),
            WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K => {
                put(0, value * 0.01);
                put(2, random.float() * 0.01);
            }
            WeightFormat::Q6K => put(208, value * 0.001),
        }
        data.extend(block);
    }
    WeightView { name: "random".into(), format, rows, cols, data: data.into() }
}

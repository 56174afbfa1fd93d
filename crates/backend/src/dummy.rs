//! Made-up weights, for measuring shapes whose files are not at hand: pseudo-random values that
//! follow from a tensor's name, the same on every device and in every run.

use half::{bf16, f16};
use pagedllm_core::{DType, LinearPart, WeightFormat, WeightView};

/// A matrix without a file. Value `i`, counted row by row, is a hash of the name and `i`, even in
/// `(-s, s)` for `s = sqrt(3 / cols)`, so that a product keeps the size of what passes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DummyMatrix {
    /// Name that the tensor would have in a checkpoint.
    pub name: String,
    /// Type in which a checkpoint would hold it.
    pub dtype: DType,
    /// Rows, which are outputs.
    pub rows: usize,
    /// Columns, which are inputs.
    pub cols: usize,
    /// Whether it has a bias, of zeros.
    pub has_bias: bool,
}

impl DummyMatrix {
    /// What the values follow from: the FNV-1a hash of the name.
    #[must_use]
    pub fn seed(&self) -> u32 {
        self.name
            .bytes()
            .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// Bound of the values.
    #[must_use]
    pub fn scale(&self) -> f32 {
        (3.0 / self.cols as f32).sqrt()
    }

    /// The matrix in host memory.
    #[must_use]
    pub fn weight(&self) -> WeightView<'static> {
        let (seed, scale) = (self.seed(), self.scale());
        let values = (0..(self.rows * self.cols) as u64).map(|index| value(index, seed, scale));
        let mut data = Vec::with_capacity(self.rows * self.cols * self.dtype.size());
        let format = match self.dtype {
            DType::F16 => {
                values.for_each(|value| data.extend(f16::from_f32(value).to_le_bytes()));
                WeightFormat::F16
            }
            DType::BF16 => {
                values.for_each(|value| data.extend(bf16::from_f32(value).to_le_bytes()));
                WeightFormat::BF16
            }
            DType::F32 | DType::Fp8E4M3 => {
                values.for_each(|value| data.extend(value.to_le_bytes()));
                WeightFormat::F32
            }
        };
        let name = self.name.clone();
        WeightView { name, format, rows: self.rows, cols: self.cols, data: data.into() }
    }

    /// The matrix in host memory, with its bias.
    #[must_use]
    pub fn part(&self) -> LinearPart<'static> {
        let bias = self.has_bias.then(|| WeightView {
            name: format!("the bias of {}", self.name),
            format: WeightFormat::F32,
            rows: 1,
            cols: self.rows,
            data: vec![0; self.rows * size_of::<f32>()].into(),
        });
        LinearPart { weight: self.weight(), bias }
    }
}

/// Value `index`. `kernels/move.cu` has the same function, bit for bit.
fn value(index: u64, seed: u32, scale: f32) -> f32 {
    let mut hash = (index as u32).wrapping_mul(2_654_435_761)
        ^ ((index >> 32) as u32).wrapping_mul(40_503)
        ^ seed.wrapping_mul(2_246_822_519);
    hash = (hash ^ (hash >> 15)).wrapping_mul(2_246_822_519);
    hash = (hash ^ (hash >> 13)).wrapping_mul(3_266_489_917);
    hash ^= hash >> 16;
    ((hash >> 8) as f32 * (2.0 / 16_777_216.0) - 1.0) * scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequantize;

    fn matrix(name: &str, dtype: DType) -> DummyMatrix {
        DummyMatrix { name: name.into(), dtype, rows: 64, cols: 48, has_bias: true }
    }

    #[test]
    fn values_follow_from_the_name_alone_and_have_the_promised_size() {
        let values = dequantize::matrix(&matrix("a", DType::F32).weight());
        assert_eq!(values, dequantize::matrix(&matrix("a", DType::F32).weight()));
        assert_ne!(values, dequantize::matrix(&matrix("b", DType::F32).weight()));
        let scale = 0.25;
        assert!(values.iter().all(|value| value.abs() <= scale));
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / count;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance * 48.0 - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn narrow_types_round_the_same_values() {
        let exact = dequantize::matrix(&matrix("a", DType::F32).weight());
        for dtype in [DType::F16, DType::BF16] {
            let rounded = dequantize::matrix(&matrix("a", dtype).weight());
            let off = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off > 0.0 && off < 1e-3, "{dtype}: {off}");
        }
    }

    #[test]
    fn the_bias_is_zeros() {
        let bias = matrix("a", DType::BF16).part().bias.expect("asked for");
        assert_eq!(dequantize::matrix(&bias), vec![0.0; 64]);
        let plain = DummyMatrix { has_bias: false, ..matrix("a", DType::BF16) };
        assert!(plain.part().bias.is_none());
    }
}

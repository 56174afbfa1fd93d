//! How weights lie in memory.
//!
//! A matrix is cut into panels of 16 outputs (rows of the matrix). One layout serves every
//! instruction set: 16 columns are two AVX2 registers, one of AVX-512, or one side of an AMX
//! tile. Nothing is widened, so a packed matrix takes the bytes that the file has (`Q4_K` and
//! `Q5_K` take 3% more: their 6-bit scales are kept in bytes).
//!
//! Dense panels, `k` inputs padded to 32:
//! - F32, F16: `[k][16]`;
//! - BF16: `[k / 2][16][2]`, pairs of inputs side by side as the bf16 dot products want them.
//!
//! Block panels: the integers of all blocks, then the scales of all blocks. A block is 32 inputs
//! of 16 outputs, 8 groups of 4 inputs; byte `b = output * 4 + input % 4` of a group:
//! - 8 bits: `[8][64]`;
//! - 4 bits: `[4][64]`, group `g` in the low, `g + 4` in the high halves of chunk `g`;
//! - 5 bits: the low four as above, then `[64]` bytes whose bit `g` is the fifth of group `g`;
//! - 6 bits: the low four as above, then `[2][64]` bytes: two bits at `2 * (g % 4)` of chunk
//!   `g / 4`.
//!
//! A weight is `scale * integer + minimum`. Scales, as f16 unless said otherwise:
//! - `Q8_0`, `Q4_0`, `Q5_0`: `[16]` a block; the minimum follows from the format's offset;
//! - `Q4_1`, `Q5_1`: `[16]` scales, `[16]` minima a block;
//! - `Q4_K`, `Q5_K`: for each 8 blocks `[16]` scales, `[16]` minima, `[8][16]` byte sub-scales,
//!   `[8][16]` byte sub-minima;
//! - `Q6_K`: for each 8 blocks `[16]` scales, `[16][16]` signed byte sub-scales (16 inputs each).

use half::f16;
use pagedllm_backend::{DeviceError, dequantize};
use pagedllm_core::{WeightFormat, WeightView};

use crate::threads::{Chunks, ThreadPool};
use crate::workspace::Buffer;

/// Outputs in a panel.
pub const PANEL: usize = 16;
/// Inputs in a block.
pub const BLOCK: usize = 32;
/// Inputs under one scale of the K formats.
const SUPER: usize = 256;

/// Bits of a packed integer; 0 for dense formats.
#[must_use]
pub const fn bits(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => 0,
        WeightFormat::Q8_0 => 8,
        WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q4K => 4,
        WeightFormat::Q5_0 | WeightFormat::Q5_1 | WeightFormat::Q5K => 5,
        WeightFormat::Q6K => 6,
    }
}

/// Whether weights are floats of their own.
#[must_use]
pub const fn is_dense(format: WeightFormat) -> bool {
    bits(format) == 0
}

/// Bytes of the integers of one block of one panel, or of 32 dense inputs.
#[must_use]
pub const fn int_bytes(format: WeightFormat) -> usize {
    match format {
        WeightFormat::F32 => BLOCK * PANEL * 4,
        WeightFormat::F16 | WeightFormat::BF16 => BLOCK * PANEL * 2,
        _ => BLOCK * PANEL * bits(format) as usize / 8,
    }
}

/// Inputs under one entry of the scales, and the bytes of an entry.
#[must_use]
pub const fn scale_entry(format: WeightFormat) -> (usize, usize) {
    match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => (BLOCK, 0),
        WeightFormat::Q8_0 | WeightFormat::Q4_0 | WeightFormat::Q5_0 => (BLOCK, 2 * PANEL),
        WeightFormat::Q4_1 | WeightFormat::Q5_1 => (BLOCK, 4 * PANEL),
        WeightFormat::Q4K | WeightFormat::Q5K => (SUPER, (4 + 16) * PANEL),
        WeightFormat::Q6K => (SUPER, (2 + 16) * PANEL),
    }
}

/// What is subtracted from the integers of formats without stored minima.
#[must_use]
pub const fn offset(format: WeightFormat) -> f32 {
    match format {
        WeightFormat::Q8_0 => 128.0,
        WeightFormat::Q4_0 => 8.0,
        WeightFormat::Q5_0 => 16.0,
        WeightFormat::Q6K => 32.0,
        _ => 0.0,
    }
}

/// A matrix `[rows, cols]` in panels.
pub struct Packed {
    /// Format, which is the file's.
    pub format: WeightFormat,
    /// Inputs.
    pub cols: usize,
    panel_bytes: usize,
    data: Buffer<u8>,
}

/// One panel of a packed matrix.
#[derive(Clone, Copy)]
pub struct Panel<'a> {
    /// Format.
    pub format: WeightFormat,
    /// Inputs, padded.
    pub cols: usize,
    /// Integers, or dense weights.
    pub ints: &'a [u8],
    /// Scales.
    pub scales: &'a [u8],
}

impl Packed {
    /// Packs a matrix; the panels are shared out over `pool`.
    ///
    /// # Errors
    /// Out of memory, or rows of no whole number of blocks.
    pub fn pack(weight: &WeightView<'_>, pool: &mut ThreadPool) -> Result<Self, DeviceError> {
        let (format, rows, cols) = (weight.format, weight.rows, weight.cols);
        let fits = format.row_bytes(cols).is_some_and(|bytes| weight.data.len() == rows * bytes);
        if !fits || rows == 0 || cols == 0 {
            let name = &weight.name;
            let message = format!("{name}: {rows} rows of {cols} are not the {format} data given");
            return Err(DeviceError::Unsupported(message));
        }
        let padded = cols.next_multiple_of(BLOCK);
        let ints = padded / BLOCK * int_bytes(format);
        let (entry_cols, entry_bytes) = scale_entry(format);
        let panel_bytes = (ints + padded / entry_cols * entry_bytes).next_multiple_of(64);
        let mut data = Buffer::new(rows.div_ceil(PANEL) * panel_bytes, &weight.name)?;
        pool.for_parts(Chunks::new(&mut data, panel_bytes), |panel, bytes, _| {
            let (ints, scales) = bytes.split_at_mut(ints);
            for output in 0..PANEL.min(rows - panel * PANEL) {
                pack_row(format, weight.row(panel * PANEL + output), output, ints, scales);
            }
        });
        Ok(Self { format, cols, panel_bytes, data })
    }

    /// Inputs, padded to whole blocks.
    #[must_use]
    pub const fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(BLOCK)
    }
    /// The panel of outputs from `index * 16`.
    #[must_use]
    pub fn panel(&self, index: usize) -> Panel<'_> {
        let bytes = &self.data[index * self.panel_bytes..(index + 1) * self.panel_bytes];
        let cols = self.padded_cols();
        let (ints, scales) = bytes.split_at(cols / BLOCK * int_bytes(self.format));
        Panel { format: self.format, cols, ints, scales }
    }
    /// Writes the weights of one row to `out`, `[cols]`.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let panel = self.panel(row / PANEL);
        for (input, out) in out.iter_mut().enumerate() {
            *out = panel.weight(row % PANEL, input);
        }
    }
}

fn half_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

impl Panel<'_> {
    /// One weight.
    #[must_use]
    pub fn weight(&self, output: usize, input: usize) -> f32 {
        let at = |len: usize| {
            let pair = if self.format == WeightFormat::BF16 { 2 } else { 1 };
            let index = (input / pair * PANEL + output) * pair + input % pair;
            &self.ints[index * len..(index + 1) * len]
        };
        match self.format {
            WeightFormat::F32 => f32::from_le_bytes(at(4).try_into().expect("four bytes")),
            WeightFormat::F16 => half_at(at(2), 0),
            WeightFormat::BF16 => f32::from(half::bf16::from_le_bytes([at(2)[0], at(2)[1]])),
            _ => {
                let (scale, minimum) = self.scale(output, input);
                scale * f32::from(self.int(output, input)) + minimum
            }
        }
    }

    /// The integer of one weight, without sign.
    fn int(&self, output: usize, input: usize) -> u8 {
        let bits = bits(self.format);
        let block = &self.ints[input / BLOCK * int_bytes(self.format)..][..int_bytes(self.format)];
        let (group, byte) = (input % BLOCK / 4, output * 4 + input % 4);
        if bits == 8 {
            return block[group * 64 + byte] ^ 0x80;
        }
        let low = block[group % 4 * 64 + byte] >> (group / 4 * 4) & 15;
        let high = match bits {
            5 => block[256 + byte] >> group & 1,
            6 => block[256 + group / 4 * 64 + byte] >> (group % 4 * 2) & 3,
            _ => 0,
        };
        low | high << 4
    }

    /// Scale and minimum of the weights around `input`.
    #[must_use]
    pub fn scale(&self, output: usize, input: usize) -> (f32, f32) {
        let (entry_cols, entry_bytes) = scale_entry(self.format);
        let entry = &self.scales[input / entry_cols * entry_bytes..][..entry_bytes];
        let d = half_at(entry, output);
        let within = input % entry_cols;
        match self.format {
            WeightFormat::Q4_1 | WeightFormat::Q5_1 => (d, half_at(entry, PANEL + output)),
            WeightFormat::Q4K | WeightFormat::Q5K => {
                let sub = &entry[4 * PANEL..];
                let place = within / BLOCK * PANEL + output;
                let minimum = half_at(entry, PANEL + output);
                (d * f32::from(sub[place]), -(minimum * f32::from(sub[8 * PANEL + place])))
            }
            WeightFormat::Q6K => {
                let sub = entry[2 * PANEL + within / 16 * PANEL + output].cast_signed();
                let scale = d * f32::from(sub);
                (scale, -32.0 * scale)
            }
            format => (d, -offset(format) * d),
        }
    }
}

/// Spreads one stored row over its panel.
fn pack_row(format: WeightFormat, row: &[u8], output: usize, ints: &mut [u8], scales: &mut [u8]) {
    if is_dense(format) {
        let pair = if format == WeightFormat::BF16 { 2 } else { 1 };
        let len = format.block_bytes();
        for (input, bytes) in row.chunks_exact(len).enumerate() {
            let index = (input / pair * PANEL + output) * pair + input % pair;
            ints[index * len..(index + 1) * len].copy_from_slice(bytes);
        }
        return;
    }
    let (entry_cols, entry_bytes) = scale_entry(format);
    let mut quants = [0u8; SUPER];
    let quants = &mut quants[..format.block_len()];
    for (index, block) in row.chunks_exact(format.block_bytes()).enumerate() {
        let entry = &mut scales[index * entry_bytes..(index + 1) * entry_bytes];
        block_scales(format, block, output, entry);
        block_ints(format, block, quants);
        for (sub, quants) in quants.chunks_exact(BLOCK).enumerate() {
            let bytes = int_bytes(format);
            let place = (index * entry_cols / BLOCK + sub) * bytes;
            put_ints(bits(format), quants, output, &mut ints[place..place + bytes]);
        }
    }
}

/// The scales of a stored block, into the panel's entry.
fn block_scales(format: WeightFormat, block: &[u8], output: usize, entry: &mut [u8]) {
    let mut put =
        |index: usize, bytes: &[u8]| entry[2 * index..2 * index + 2].copy_from_slice(bytes);
    match format {
        WeightFormat::Q6K => {
            put(output, &block[208..210]);
            for (sub, &scale) in block[192..208].iter().enumerate() {
                entry[2 * PANEL + sub * PANEL + output] = scale;
            }
        }
        WeightFormat::Q4_1 | WeightFormat::Q5_1 => {
            put(output, &block[..2]);
            put(PANEL + output, &block[2..4]);
        }
        WeightFormat::Q4K | WeightFormat::Q5K => {
            put(output, &block[..2]);
            put(PANEL + output, &block[2..4]);
            for sub in 0..8 {
                let (scale, minimum) = dequantize::k_scale_min(&block[4..16], sub);
                entry[(4 + sub) * PANEL + output] = scale;
                entry[(12 + sub) * PANEL + output] = minimum;
            }
        }
        _ => put(output, &block[..2]),
    }
}

/// The integers of a stored block, without sign.
fn block_ints(format: WeightFormat, block: &[u8], out: &mut [u8]) {
    let nibbles = |bytes: &[u8], out: &mut [u8]| {
        for (i, &byte) in bytes.iter().enumerate() {
            out[i] = byte & 15;
            out[i + bytes.len()] = byte >> 4;
        }
    };
    match format {
        WeightFormat::Q8_0 => {
            out.iter_mut().zip(&block[2..34]).for_each(|(out, &q)| *out = q ^ 0x80);
        }
        WeightFormat::Q4_0 => nibbles(&block[2..18], out),
        WeightFormat::Q4_1 => nibbles(&block[4..20], out),
        WeightFormat::Q5_0 | WeightFormat::Q5_1 => {
            let high = if format == WeightFormat::Q5_0 { 2 } else { 4 };
            nibbles(&block[high + 4..high + 20], out);
            for (i, out) in out.iter_mut().enumerate() {
                *out |= (block[high + i / 8] >> (i % 8) & 1) << 4;
            }
        }
        WeightFormat::Q4K | WeightFormat::Q5K => {
            let low = if format == WeightFormat::Q4K { 16 } else { 48 };
            for pair in 0..4 {
                nibbles(&block[low + pair * 32..low + pair * 32 + 32], &mut out[pair * 64..][..64]);
            }
            if format == WeightFormat::Q5K {
                for (i, out) in out.iter_mut().enumerate() {
                    *out |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
                }
            }
        }
        WeightFormat::Q6K => {
            for (half, out) in out.chunks_exact_mut(128).enumerate() {
                nibbles(&block[half * 64..half * 64 + 64], out);
                for (i, out) in out.iter_mut().enumerate() {
                    *out |= (block[128 + half * 32 + i % 32] >> (i / 32 * 2) & 3) << 4;
                }
            }
        }
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => {}
    }
}

/// Puts the 32 integers of one output into a block that starts as zeroes.
fn put_ints(bits: u32, quants: &[u8], output: usize, block: &mut [u8]) {
    for (input, &q) in quants.iter().enumerate() {
        let (group, byte) = (input / 4, output * 4 + input % 4);
        if bits == 8 {
            block[group * 64 + byte] = q ^ 0x80;
            continue;
        }
        block[group % 4 * 64 + byte] |= (q & 15) << (group / 4 * 4);
        match bits {
            5 => block[256 + byte] |= (q >> 4) << group,
            6 => block[256 + group / 4 * 64 + byte] |= (q >> 4) << (group % 4 * 2),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, random_weight};

    #[test]
    fn packed_rows_are_the_stored_rows() {
        let mut pool = ThreadPool::new(2).unwrap();
        for format in WeightFormat::ALL {
            for seed in 0..4 {
                let mut random = Random::new(seed);
                let rows = 1 + random.below(40);
                let blocks = 1 + random.below(3);
                let cols = if is_dense(format) { 1 + random.below(70) } else { 0 };
                let cols = if is_dense(format) { cols } else { blocks * format.block_len() };
                let weight = random_weight(&mut random, format, rows, cols);
                let packed = Packed::pack(&weight, &mut pool).unwrap();
                let want = dequantize::matrix(&weight);
                let mut got = vec![0.0; cols];
                for row in 0..rows {
                    packed.row(row, &mut got);
                    assert_eq!(got, want[row * cols..(row + 1) * cols], "{format} seed {seed}");
                }
            }
        }
    }

    #[test]
    fn packing_adds_next_to_nothing() {
        let mut pool = ThreadPool::new(1).unwrap();
        for format in WeightFormat::ALL {
            let weight = random_weight(&mut Random::new(1), format, 64, 512);
            let packed = Packed::pack(&weight, &mut pool).unwrap();
            let ratio = packed.data.len() as f64 / weight.data.len() as f64;
            assert!((1.0..1.03).contains(&ratio), "{format} {ratio}");
        }
    }
}

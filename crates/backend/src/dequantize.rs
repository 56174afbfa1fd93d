//! Exact dequantization of stored rows to f32, block by block. The executable meaning of every
//! [`WeightFormat`]; the bit layouts are those of the GGUF specification.

use half::{bf16, f16};
use pagedllm_core::{WeightFormat, WeightView};

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Dequantizes one stored row. `out` has one place for each weight.
///
/// # Panics
/// If the lengths do not fit the format.
pub fn row(format: WeightFormat, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(format.row_bytes(out.len()), Some(bytes.len()), "a row of {format}");
    let block = match format {
        WeightFormat::F32 => {
            |b: &[u8], o: &mut [f32]| o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])
        }
        WeightFormat::F16 => |b: &[u8], o: &mut [f32]| o[0] = half_at(b, 0),
        WeightFormat::BF16 => {
            |b: &[u8], o: &mut [f32]| o[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()
        }
        WeightFormat::Q8_0 => q8_0,
        WeightFormat::Q4_0 => q4_0,
        WeightFormat::Q4_1 => q4_1,
        WeightFormat::Q5_0 => q5_0,
        WeightFormat::Q5_1 => q5_1,
        WeightFormat::Q4K => q4_k,
        WeightFormat::Q5K => q5_k,
        WeightFormat::Q6K => q6_k,
    };
    for (bytes, out) in
        bytes.chunks_exact(format.block_bytes()).zip(out.chunks_exact_mut(format.block_len()))
    {
        block(bytes, out);
    }
}

/// Dequantizes a whole matrix, `[rows, cols]`.
#[must_use]
pub fn matrix(weight: &WeightView<'_>) -> Vec<f32> {
    let mut out = vec![0.0; weight.rows * weight.cols];
    for (index, out) in out.chunks_exact_mut(weight.cols.max(1)).enumerate() {
        row(weight.format, weight.row(index), out);
    }
    out
}

fn q8_0(b: &[u8], out: &mut [f32]) {
    let scale = half_at(b, 0);
    for (out, &q) in out.iter_mut().zip(&b[2..34]) {
        *out = scale * f32::from(q.cast_signed());
    }
}

/// Nibbles: weight `i` is the low half of byte `i`, weight `i + 16` its high half.
fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    for (i, &byte) in bytes.iter().enumerate() {
        out[i] = value(i, byte & 15);
        out[i + bytes.len()] = value(i + bytes.len(), byte >> 4);
    }
}

fn q4_0(b: &[u8], out: &mut [f32]) {
    let scale = half_at(b, 0);
    nibbles(&b[2..18], out, |_, q| scale * (f32::from(q) - 8.0));
}

fn q4_1(b: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..20], out, |_, q| scale * f32::from(q) + min);
}

fn high_bit(bits: u32, i: usize) -> u8 {
    u8::from(bits >> i & 1 == 1) << 4
}

fn q5_0(b: &[u8], out: &mut [f32]) {
    let scale = half_at(b, 0);
    let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    nibbles(&b[6..22], out, |i, q| scale * (f32::from(q | high_bit(high, i)) - 16.0));
}

fn q5_1(b: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(b, 0), half_at(b, 2));
    let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    nibbles(&b[8..24], out, |i, q| scale * f32::from(q | high_bit(high, i)) + min);
}

/// Six-bit scale and minimum of sub-block `j` out of the twelve packed bytes of Q4_K and Q5_K.
#[must_use]
pub fn k_scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

fn q4_k(b: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(b, 0), half_at(b, 2));
    for j in 0..8 {
        let (sub_scale, sub_min) = k_scale_min(&b[4..16], j);
        let (d, m) = (scale * f32::from(sub_scale), min * f32::from(sub_min));
        for i in 0..32 {
            let byte = b[16 + j / 2 * 32 + i];
            let q = if j % 2 == 0 { byte & 15 } else { byte >> 4 };
            out[j * 32 + i] = d * f32::from(q) - m;
        }
    }
}

fn q5_k(b: &[u8], out: &mut [f32]) {
    let (scale, min) = (half_at(b, 0), half_at(b, 2));
    for j in 0..8 {
        let (sub_scale, sub_min) = k_scale_min(&b[4..16], j);
        let (d, m) = (scale * f32::from(sub_scale), min * f32::from(sub_min));
        for i in 0..32 {
            let byte = b[48 + j / 2 * 32 + i];
            let low = if j % 2 == 0 { byte & 15 } else { byte >> 4 };
            let q = low | (b[16 + i] >> j & 1) << 4;
            out[j * 32 + i] = d * f32::from(q) - m;
        }
    }
}

fn q6_k(b: &[u8], out: &mut [f32]) {
    let scale = half_at(b, 208);
    for i in 0..256 {
        let (half, within) = (i / 128, i % 128);
        let low = b[half * 64 + within % 64];
        let low = if within < 64 { low & 15 } else { low >> 4 };
        let high = b[128 + half * 32 + within % 32] >> (within / 32 * 2) & 3;
        let q = i16::from(low | high << 4) - 32;
        out[i] = scale * f32::from(b[192 + i / 16].cast_signed()) * f32::from(q);
    }
}

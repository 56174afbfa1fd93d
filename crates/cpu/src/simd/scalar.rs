//! Plain loops over the packed layout: the meaning of every kernel, and the path for processors
//! without one of their own. Sixteen columns at a time, which compilers vectorize.

use half::{bf16, f16};
use pagedllm_core::WeightFormat;

use super::{CHUNK, FloatRows, Int8Rows, Isa, Kernels, elementwise};
use crate::linear::packed::{BLOCK, PANEL, Panel, bits, int_bytes, is_dense};
use crate::workspace::Buffer;

pub const KERNELS: Kernels = Kernels {
    isa: Isa::Portable,
    rows_float,
    rows_int8,
    rows_bf16: None,
    gemm,
    widen,
    elementwise: elementwise::table!(),
};

type Lanes = [f32; PANEL];

/// Integers of one block without sign, `[8][64]`.
#[inline(always)]
pub fn unpack_block(format: WeightFormat, block: &[u8], out: &mut [u8; BLOCK * PANEL]) {
    let bits = bits(format);
    for (group, out) in out.chunks_exact_mut(64).enumerate() {
        if bits == 8 {
            for (out, &q) in out.iter_mut().zip(&block[group * 64..]) {
                *out = q ^ 0x80;
            }
            continue;
        }
        let shift = group / 4 * 4;
        for (out, &q) in out.iter_mut().zip(&block[group % 4 * 64..]) {
            *out = q >> shift & 15;
        }
        if bits == 5 {
            for (out, &q) in out.iter_mut().zip(&block[256..]) {
                *out |= (q >> group & 1) << 4;
            }
        } else if bits == 6 {
            for (out, &q) in out.iter_mut().zip(&block[256 + group / 4 * 64..]) {
                *out |= (q >> (group % 4 * 2) & 3) << 4;
            }
        }
    }
}

/// Scales and minima of the 16 inputs from `input`.
#[inline(always)]
pub fn scales(panel: &Panel<'_>, input: usize) -> (Lanes, Lanes) {
    let (mut scales, mut minima) = ([0.0; PANEL], [0.0; PANEL]);
    for output in 0..PANEL {
        (scales[output], minima[output]) = panel.scale(output, input);
    }
    (scales, minima)
}

/// Weights of the inputs `from..from + len` of a panel as f32 `[len][16]`.
#[inline(always)]
pub fn expand(panel: &Panel<'_>, from: usize, len: usize, out: &mut [f32]) {
    if is_dense(panel.format) {
        let bytes = panel.format.block_bytes() * PANEL;
        widen_plain(panel.format, &panel.ints[from * bytes..(from + len) * bytes], out);
        return;
    }
    let mut ints = [0; BLOCK * PANEL];
    for block in 0..len / BLOCK {
        let bytes = int_bytes(panel.format);
        let input = from + block * BLOCK;
        unpack_block(panel.format, &panel.ints[input / BLOCK * bytes..][..bytes], &mut ints);
        for half in 0..2 {
            let (scales, minima) = scales(panel, input + half * 16);
            for k in half * 16..half * 16 + 16 {
                let out = &mut out[(block * BLOCK + k) * PANEL..][..PANEL];
                for (output, out) in out.iter_mut().enumerate() {
                    let int = ints[k / 4 * 64 + output * 4 + k % 4];
                    *out = scales[output] * f32::from(int) + minima[output];
                }
            }
        }
    }
}

#[inline(always)]
fn widen_plain(format: WeightFormat, from: &[u8], to: &mut [f32]) {
    match format {
        WeightFormat::F16 => {
            for (to, from) in to.iter_mut().zip(from.chunks_exact(2)) {
                *to = f16::from_le_bytes([from[0], from[1]]).to_f32();
            }
        }
        WeightFormat::BF16 => {
            for (to, from) in to.chunks_exact_mut(2 * PANEL).zip(from.chunks_exact(4 * PANEL)) {
                for (i, pair) in from.chunks_exact(4).enumerate() {
                    to[i] = bf16::from_le_bytes([pair[0], pair[1]]).to_f32();
                    to[i + PANEL] = bf16::from_le_bytes([pair[2], pair[3]]).to_f32();
                }
            }
        }
        _ => {
            for (to, from) in to.iter_mut().zip(from.chunks_exact(4)) {
                *to = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
            }
        }
    }
}

unsafe fn widen(format: WeightFormat, from: &[u8], to: &mut [f32]) {
    widen_plain(format, from, to);
}

/// # Safety
/// `a` has `rows` rows of `k`, `panel` `[k][16]`, `c` `rows` rows of 16.
unsafe fn gemm(
    (a, lda): (*const f32, usize),
    rows: usize,
    panel: *const f32,
    k: usize,
    (c, ldc): (*mut f32, usize),
    adds: bool,
) {
    // SAFETY: the caller's.
    let panel = unsafe { std::slice::from_raw_parts(panel, k * PANEL) };
    for row in 0..rows {
        // SAFETY: the caller's.
        let (a, c) = unsafe {
            (
                std::slice::from_raw_parts(a.add(row * lda), k),
                &mut *c.add(row * ldc).cast::<Lanes>(),
            )
        };
        let mut sums = if adds { *c } else { [0.0; PANEL] };
        for (a, weights) in a.iter().zip(panel.chunks_exact(PANEL)) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += a * weight;
            }
        }
        *c = sums;
    }
}

/// # Safety
/// As [`gemm`], with the panel's columns for `k`.
unsafe fn rows_float(
    panel: &Panel<'_>,
    x: FloatRows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    for from in (0..panel.cols).step_by(CHUNK) {
        let len = CHUNK.min(panel.cols - from);
        expand(panel, from, len, &mut scratch[..len * PANEL]);
        let a = x.data[from..].as_ptr();
        // SAFETY: the caller's, for a part of the columns.
        unsafe { gemm((a, x.stride), rows, scratch.as_ptr(), len, c, from > 0) };
    }
}

/// # Safety
/// `c` has `rows` rows of 16.
unsafe fn rows_int8(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    _scratch: &mut Buffer<f32>,
) {
    let bytes = int_bytes(panel.format);
    let mut ints = [0; BLOCK * PANEL];
    for block in 0..panel.cols / BLOCK {
        unpack_block(panel.format, &panel.ints[block * bytes..][..bytes], &mut ints);
        let halves = [scales(panel, block * BLOCK), scales(panel, block * BLOCK + 16)];
        for row in 0..rows {
            let x = x.from(row);
            // SAFETY: the caller's.
            let c = unsafe { &mut *c.0.add(row * c.1).cast::<Lanes>() };
            if block == 0 {
                *c = [0.0; PANEL];
            }
            for (half, (scales, minima)) in halves.iter().enumerate() {
                let mut dots = [0i32; PANEL];
                for k in half * 16..half * 16 + 16 {
                    let a = i32::from(x.ints[block * BLOCK + k]);
                    for (output, dot) in dots.iter_mut().enumerate() {
                        *dot += a * i32::from(ints[k / 4 * 64 + output * 4 + k % 4]);
                    }
                }
                let (scale, sum) = (x.scales[block], x.sums[block * 2 + half]);
                for output in 0..PANEL {
                    let dot = scales[output] * dots[output] as f32;
                    c[output] += scale * dot + minima[output] * sum;
                }
            }
        }
    }
}

//! AVX2 products with dense panels, and their widening to f32.

use std::arch::x86_64::*;

use pagedllm_core::WeightFormat;

use super::avx2::{Pair, each, load_floats, load_halves, store_floats};
use crate::linear::packed::PANEL;

/// Asks for what lies this many bytes further on: the prefetchers of the processor stop at page
/// ends, and panels are about a page long.
pub(super) const AHEAD: usize = 2048;

/// Asks for `len` bytes, some time before they are read.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn prefetch(from: *const u8, len: usize) {
    for line in (0..len).step_by(64) {
        // Of any address this is without effect.
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast());
    }
}

/// Sixteen weights of input `k` of a dense panel; in bf16 those of inputs `k` and `k + 1`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_dense<const F: usize>(from: *const u8, k: usize) -> [Pair<__m256>; 2] {
    // SAFETY: the caller has the panel's row `k`, in bf16 the pair of rows.
    unsafe {
        match const { WeightFormat::ALL[F] } {
            WeightFormat::F16 => [load_halves(from.add(k * 32)), [_mm256_setzero_ps(); 2]],
            WeightFormat::BF16 => {
                let (mut even, mut odd) = ([_mm256_setzero_ps(); 2], [_mm256_setzero_ps(); 2]);
                let top = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
                for half in 0..2 {
                    let v = _mm256_loadu_si256(from.add(k * 32 + half * 32).cast());
                    even[half] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
                    odd[half] = _mm256_castsi256_ps(_mm256_and_si256(v, top));
                }
                [even, odd]
            }
            _ => [load_floats(from.cast::<f32>().add(k * PANEL)), [_mm256_setzero_ps(); 2]],
        }
    }
}

/// `R` rows by a dense panel; `U` sets of sums, so that a single row does not wait for its adds.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dense_tile<const F: usize, const R: usize, const U: usize>(
    (a, lda): (*const f32, usize),
    panel: *const u8,
    k: usize,
    (c, ldc): (*mut f32, usize),
    adds: bool,
) {
    let step = if matches!(WeightFormat::ALL[F], WeightFormat::BF16) { 2 } else { 1 };
    let mut sums = [[[_mm256_setzero_ps(); 2]; R]; U];
    // SAFETY: `a` has `R` rows of `k`, the panel `k` rows, `c` `R` rows of 16.
    unsafe {
        let mut i = 0;
        while i + U * step <= k {
            if R == 1 {
                let row_bytes = PANEL * WeightFormat::ALL[F].block_bytes();
                prefetch(panel.wrapping_add(i * row_bytes + AHEAD), U * step * row_bytes);
            }
            for (u, sums) in sums.iter_mut().enumerate() {
                let weights = load_dense::<F>(panel, i + u * step);
                for (odd, weights) in weights.iter().enumerate().take(step) {
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let a = _mm256_set1_ps(*a.add(row * lda + i + u * step + odd));
                        *sums = each(*sums, *weights, |s, w| _mm256_fmadd_ps(a, w, s));
                    }
                }
            }
            i += U * step;
        }
        while i < k {
            let weights = load_dense::<F>(panel, i);
            for (odd, weights) in weights.iter().enumerate().take(step) {
                for (row, sums) in sums[0].iter_mut().enumerate() {
                    let a = _mm256_set1_ps(*a.add(row * lda + i + odd));
                    *sums = each(*sums, *weights, |s, w| _mm256_fmadd_ps(a, w, s));
                }
            }
            i += step;
        }
        for row in 0..R {
            let mut total = sums[0][row];
            for sums in &sums[1..] {
                total = each(total, sums[row], |a, b| _mm256_add_ps(a, b));
            }
            let to = c.add(row * ldc);
            if adds {
                total = each(total, load_floats(to), |a, b| _mm256_add_ps(a, b));
            }
            store_floats(to, total);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dense_rows<const F: usize>(
    (a, lda): (*const f32, usize),
    rows: usize,
    panel: *const u8,
    k: usize,
    (c, ldc): (*mut f32, usize),
    adds: bool,
) {
    let mut row = 0;
    while row < rows {
        let (a, c) = ((a.wrapping_add(row * lda), lda), (c.wrapping_add(row * ldc), ldc));
        // SAFETY: the caller's, for the rows from `row`.
        unsafe {
            let left = rows - row;
            match left {
                1 => dense_tile::<F, 1, 4>(a, panel, k, c, adds),
                2 => dense_tile::<F, 2, 2>(a, panel, k, c, adds),
                3 => dense_tile::<F, 3, 2>(a, panel, k, c, adds),
                4 => dense_tile::<F, 4, 1>(a, panel, k, c, adds),
                5 => dense_tile::<F, 5, 1>(a, panel, k, c, adds),
                _ => dense_tile::<F, 6, 1>(a, panel, k, c, adds),
            }
            row += left.min(6);
        }
    }
}

/// Index of F32 in `WeightFormat::ALL`.
const F32: usize = 0;

pub(super) unsafe fn gemm(
    a: (*const f32, usize),
    rows: usize,
    panel: *const f32,
    k: usize,
    c: (*mut f32, usize),
    adds: bool,
) {
    // SAFETY: the caller's.
    unsafe { dense_rows::<F32>(a, rows, panel.cast(), k, c, adds) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn widen_rows<const F: usize>(from: *const u8, k: usize, to: *mut f32) {
    let step = if matches!(WeightFormat::ALL[F], WeightFormat::BF16) { 2 } else { 1 };
    for i in (0..k).step_by(step) {
        // SAFETY: `from` and `to` have `k` rows of 16.
        unsafe {
            let rows = load_dense::<F>(from, i);
            for (odd, &row) in rows.iter().enumerate().take(step) {
                store_floats(to.add((i + odd) * PANEL), row);
            }
        }
    }
}

pub(super) unsafe fn widen(format: WeightFormat, from: &[u8], to: &mut [f32]) {
    let (source, k, target) = (from.as_ptr(), to.len() / PANEL, to.as_mut_ptr());
    // SAFETY: the caller checked the lengths.
    unsafe { for_format!(format, F => widen_rows::<F>(source, k, target)) }
}

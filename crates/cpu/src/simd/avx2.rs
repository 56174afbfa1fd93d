//! AVX2, FMA and F16C. Sixteen columns of a panel are two registers.
//!
//! Products with 8-bit activations multiply unsigned weights by signed activations in pairs
//! (`vpmaddubsw`) and add pairs in 16 bits as long as they can't overflow: 8 pairs of 4-bit, 4 of
//! 5-bit and 2 of 6-bit weights. 8-bit weights keep their sign: it goes to the activation.

use std::arch::x86_64::*;

use pagedllm_core::WeightFormat;

use super::avx2_dense::{AHEAD, dense_rows, gemm, prefetch, widen, widen_rows};
use super::{CHUNK, FloatRows, Int8Rows, Isa, Kernels, elementwise};
use crate::linear::packed::{BLOCK, PANEL, Panel, bits, int_bytes, is_dense, offset, scale_entry};
use crate::workspace::Buffer;

pub const KERNELS: Kernels = Kernels {
    isa: Isa::Avx2,
    rows_float,
    rows_int8,
    rows_bf16: None,
    gemm,
    widen,
    elementwise: elementwise::table!(#[target_feature(enable = "avx2,fma,f16c")]),
};

/// Rows up to which dense weights are widened in registers, not through the scratch.
const MAX_DIRECT_ROWS: usize = 8;

/// Columns 0 to 7 and 8 to 15.
pub(super) type Pair<T> = [T; 2];

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load_halves(from: *const u8) -> Pair<__m256> {
    // SAFETY: the caller has 32 bytes there.
    unsafe {
        [
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
        ]
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn load_floats(from: *const f32) -> Pair<__m256> {
    // SAFETY: the caller has 16 floats there.
    unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn store_floats(to: *mut f32, values: Pair<__m256>) {
    // SAFETY: the caller has room for 16 floats there.
    unsafe {
        _mm256_storeu_ps(to, values[0]);
        _mm256_storeu_ps(to.add(8), values[1]);
    }
}

/// Sixteen unsigned (or signed) bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_bytes<const SIGNED: bool>(from: *const u8) -> Pair<__m256> {
    // SAFETY: the caller has 16 bytes there.
    let bytes = unsafe { _mm_loadu_si128(from.cast()) };
    let halves = [bytes, _mm_srli_si128::<8>(bytes)];
    halves.map(|half| {
        let wide = if SIGNED { _mm256_cvtepi8_epi32(half) } else { _mm256_cvtepu8_epi32(half) };
        _mm256_cvtepi32_ps(wide)
    })
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn each(
    a: Pair<__m256>,
    b: Pair<__m256>,
    f: impl Fn(__m256, __m256) -> __m256,
) -> Pair<__m256> {
    [f(a[0], b[0]), f(a[1], b[1])]
}

/// Scales, and stored minima, of block `block` of format `F`, from input `half * 16` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_scales<const F: usize>(
    scales: *const u8,
    block: usize,
    half: usize,
) -> (Pair<__m256>, Pair<__m256>) {
    let format = const { WeightFormat::ALL[F] };
    let (entry_cols, entry_bytes) = const { scale_entry(WeightFormat::ALL[F]) };
    let zero = [_mm256_setzero_ps(); 2];
    let sub = block % (entry_cols / BLOCK);
    // SAFETY: the panel has an entry for each block, laid out as `packed` says.
    unsafe {
        let entry = scales.add(block * BLOCK / entry_cols * entry_bytes);
        let d = load_halves(entry);
        match format {
            WeightFormat::Q4_1 | WeightFormat::Q5_1 => (d, load_halves(entry.add(2 * PANEL))),
            WeightFormat::Q4K | WeightFormat::Q5K => {
                let scale = load_bytes::<false>(entry.add((4 + sub) * PANEL));
                let minimum = load_bytes::<false>(entry.add((12 + sub) * PANEL));
                let m =
                    each(load_halves(entry.add(2 * PANEL)), minimum, |a, b| _mm256_mul_ps(a, b));
                (
                    each(d, scale, |a, b| _mm256_mul_ps(a, b)),
                    each(zero, m, |a, b| _mm256_sub_ps(a, b)),
                )
            }
            WeightFormat::Q6K => {
                let scale = load_bytes::<true>(entry.add((2 + sub * 2 + half) * PANEL));
                (each(d, scale, |a, b| _mm256_mul_ps(a, b)), zero)
            }
            _ => (d, zero),
        }
    }
}

/// The unsigned integers of group `G` and of group `G + 4` of a block of fewer than 8 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_groups<const F: usize, const G: i32>(
    block: *const u8,
) -> (Pair<__m256i>, Pair<__m256i>) {
    let bits = const { bits(WeightFormat::ALL[F]) };
    let nibble = _mm256_set1_epi8(15);
    let (mut low, mut high) = ([nibble; 2], [nibble; 2]);
    for half in 0..2 {
        // SAFETY: a block has 256 bytes of nibbles, then the high bits that `bits` asks for.
        unsafe {
            let v = _mm256_loadu_si256(block.add(G as usize * 64 + half * 32).cast());
            low[half] = _mm256_and_si256(v, nibble);
            high[half] = _mm256_and_si256(_mm256_srli_epi16::<4>(v), nibble);
            if bits == 5 {
                let bit = _mm256_set1_epi8(16);
                let h = _mm256_loadu_si256(block.add(256 + half * 32).cast());
                let for_low = match G {
                    0 => _mm256_slli_epi16::<4>(h),
                    1 => _mm256_slli_epi16::<3>(h),
                    2 => _mm256_slli_epi16::<2>(h),
                    _ => _mm256_slli_epi16::<1>(h),
                };
                let for_high = _mm256_srli_epi16::<G>(h);
                low[half] = _mm256_or_si256(low[half], _mm256_and_si256(for_low, bit));
                high[half] = _mm256_or_si256(high[half], _mm256_and_si256(for_high, bit));
            } else if bits == 6 {
                let two = _mm256_set1_epi8(48);
                let place = |v: __m256i| {
                    let moved = match G {
                        0 => _mm256_slli_epi16::<4>(v),
                        1 => _mm256_slli_epi16::<2>(v),
                        2 => v,
                        _ => _mm256_srli_epi16::<2>(v),
                    };
                    _mm256_and_si256(moved, two)
                };
                let h0 = _mm256_loadu_si256(block.add(256 + half * 32).cast());
                let h1 = _mm256_loadu_si256(block.add(320 + half * 32).cast());
                low[half] = _mm256_or_si256(low[half], place(h0));
                high[half] = _mm256_or_si256(high[half], place(h1));
            }
        }
    }
    (low, high)
}

/// Four activations of a row in every lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_four(from: *const i8) -> __m256i {
    // SAFETY: the caller has four bytes there.
    _mm256_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}

/// Integer dot products of one block: for each row those of inputs 0 to 15, and of 16 to 31
/// where the format has a scale for each (else their sum comes first and zeroes follow).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_block<const F: usize, const R: usize>(
    block: *const u8,
    x: *const i8,
    stride: usize,
) -> [Pair<Pair<__m256i>>; R] {
    let bits = const { bits(WeightFormat::ALL[F]) };
    let ones = _mm256_set1_epi16(1);
    let zero = _mm256_setzero_si256();
    let mut dots = [[[zero; 2]; 2]; R];
    if bits == 8 {
        for group in 0..8 {
            // SAFETY: a block has 8 groups of 64 bytes, a row of `x` 8 groups of 4.
            unsafe {
                let w = block.add(group * 64);
                let w = [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(32).cast())];
                let size = [_mm256_abs_epi8(w[0]), _mm256_abs_epi8(w[1])];
                for (row, dots) in dots.iter_mut().enumerate() {
                    let a = load_four(x.add(row * stride + group * 4));
                    for half in 0..2 {
                        let signed = _mm256_sign_epi8(a, w[half]);
                        let pairs = _mm256_maddubs_epi16(size[half], signed);
                        let quads = _mm256_madd_epi16(pairs, ones);
                        dots[0][half] = _mm256_add_epi32(dots[0][half], quads);
                    }
                }
            }
        }
        return dots;
    }
    let mut low = [[zero; 2]; R];
    let mut high = [[zero; 2]; R];
    macro_rules! group {
        ($g:literal) => {
            // SAFETY: as above.
            unsafe {
                let (w_low, w_high) = unpack_groups::<F, $g>(block);
                for row in 0..R {
                    let a = load_four(x.add(row * stride + $g * 4));
                    let b = load_four(x.add(row * stride + ($g + 4) * 4));
                    for half in 0..2 {
                        let p = _mm256_maddubs_epi16(w_low[half], a);
                        let q = _mm256_maddubs_epi16(w_high[half], b);
                        low[row][half] = _mm256_add_epi16(low[row][half], p);
                        if bits == 6 {
                            high[row][half] = _mm256_add_epi16(high[row][half], q);
                        } else {
                            low[row][half] = _mm256_add_epi16(low[row][half], q);
                        }
                    }
                }
            }
        };
    }
    macro_rules! flush {
        () => {
            for row in 0..R {
                for half in 0..2 {
                    let sum = _mm256_madd_epi16(low[row][half], ones);
                    dots[row][0][half] = _mm256_add_epi32(dots[row][0][half], sum);
                    low[row][half] = zero;
                    if bits == 6 {
                        let sum = _mm256_madd_epi16(high[row][half], ones);
                        dots[row][1][half] = _mm256_add_epi32(dots[row][1][half], sum);
                        high[row][half] = zero;
                    }
                }
            }
        };
    }
    group!(0);
    group!(1);
    if bits > 4 {
        flush!();
    }
    group!(2);
    group!(3);
    flush!();
    dots
}

/// `R` rows by one panel. The first rows find it in memory, the others in the cache.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8_tile<const F: usize, const R: usize>(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    (c, ldc): (*mut f32, usize),
    is_first: bool,
) {
    let format = const { WeightFormat::ALL[F] };
    let bytes = const { int_bytes(WeightFormat::ALL[F]) };
    let halves = if matches!(format, WeightFormat::Q6K) { 2 } else { 1 };
    let has_minima = matches!(
        format,
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K
    );
    // 8-bit weights keep their sign, so nothing is to be taken off.
    let off = if bits(format) == 8 { 0.0 } else { offset(format) };
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    let next_scales = panel.scales.as_ptr().wrapping_add(panel.ints.len() + panel.scales.len());
    let (entry_cols, entry_bytes) = const { scale_entry(WeightFormat::ALL[F]) };
    for block in 0..panel.cols / BLOCK {
        if is_first {
            prefetch(panel.ints.as_ptr().wrapping_add(block * bytes + AHEAD), bytes);
            let len = entry_bytes * BLOCK / entry_cols;
            prefetch(next_scales.wrapping_add(block * len), len);
        }
        // SAFETY: the panel has this block, `x` has `R` rows of the panel's columns.
        unsafe {
            let ints = panel.ints.as_ptr().add(block * bytes);
            let dots = dot_block::<F, R>(ints, x.ints.as_ptr().add(block * BLOCK), x.cols);
            #[allow(clippy::needless_range_loop)] // It indexes one half of each row's dots.
            for half in 0..halves {
                let (scales, minima) = load_scales::<F>(panel.scales.as_ptr(), block, half);
                for row in 0..R {
                    let scale = *x.scales.get_unchecked(row * x.cols / BLOCK + block);
                    let at = row * x.cols / 16 + block * 2;
                    let first = *x.sums.get_unchecked(at + half);
                    let sum =
                        if halves == 2 { first } else { first + x.sums.get_unchecked(at + 1) };
                    let scale = _mm256_set1_ps(scale);
                    let less = _mm256_set1_ps(-off * sum);
                    for side in 0..2 {
                        let dot = _mm256_cvtepi32_ps(dots[row][half][side]);
                        let value = _mm256_fmadd_ps(scale, dot, less);
                        let to = &mut sums[row][side];
                        *to = _mm256_fmadd_ps(scales[side], value, *to);
                        if has_minima {
                            *to = _mm256_fmadd_ps(minima[side], _mm256_set1_ps(sum), *to);
                        }
                    }
                }
            }
        }
    }
    for (row, &sums) in sums.iter().enumerate() {
        // SAFETY: `c` has `R` rows of 16.
        unsafe { store_floats(c.add(row * ldc), sums) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8_rows<const F: usize>(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    (c, ldc): (*mut f32, usize),
) {
    let mut row = 0;
    while row < rows {
        let (x, c) = (x.from(row), (c.wrapping_add(row * ldc), ldc));
        // SAFETY: the caller's, for the rows from `row`.
        unsafe {
            row += match rows - row {
                1 => {
                    int8_tile::<F, 1>(panel, x, c, row == 0);
                    1
                }
                2 => {
                    int8_tile::<F, 2>(panel, x, c, row == 0);
                    2
                }
                3 => {
                    int8_tile::<F, 3>(panel, x, c, row == 0);
                    3
                }
                _ => {
                    int8_tile::<F, 4>(panel, x, c, row == 0);
                    4
                }
            };
        }
    }
}

unsafe fn rows_int8(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    _scratch: &mut Buffer<f32>,
) {
    // SAFETY: the caller's.
    unsafe { for_format!(panel.format, F => int8_rows::<F>(panel, x, rows, c)) }
}

/// Weights of `len` inputs from `from` on as f32 `[len][16]`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand<const F: usize>(panel: &Panel<'_>, from: usize, len: usize, out: *mut f32) {
    let format = const { WeightFormat::ALL[F] };
    let bytes = const { int_bytes(WeightFormat::ALL[F]) };
    if is_dense(format) {
        // SAFETY: the panel has these inputs, `out` room for them; so below.
        unsafe { widen_rows::<F>(panel.ints.as_ptr().add(from / BLOCK * bytes), len, out) };
        return;
    }
    let off = if bits(format) == 8 { 0.0 } else { offset(format) };
    for index in 0..len / BLOCK {
        let block = from / BLOCK + index;
        // SAFETY: as above.
        unsafe {
            let ints = panel.ints.as_ptr().add(block * bytes);
            let out = out.add(index * BLOCK * PANEL);
            let scales = [0, 1].map(|half| {
                let (scales, minima) = load_scales::<F>(panel.scales.as_ptr(), block, half);
                let less = each(scales, [_mm256_set1_ps(off); 2], |a, b| _mm256_mul_ps(a, b));
                (scales, each(minima, less, |a, b| _mm256_sub_ps(a, b)))
            });
            let put = |group: usize, ints: Pair<__m256i>| {
                let (scales, minima) = scales[group / 4];
                for side in 0..2 {
                    let v = ints[side];
                    let top = if bits(format) == 8 {
                        [
                            _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(v)),
                            _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(v)),
                            _mm256_srai_epi32::<24>(_mm256_slli_epi32::<8>(v)),
                            _mm256_srai_epi32::<24>(v),
                        ]
                    } else {
                        let byte = _mm256_set1_epi32(255);
                        [
                            _mm256_and_si256(v, byte),
                            _mm256_and_si256(_mm256_srli_epi32::<8>(v), byte),
                            _mm256_and_si256(_mm256_srli_epi32::<16>(v), byte),
                            _mm256_srli_epi32::<24>(v),
                        ]
                    };
                    for (k, int) in top.into_iter().enumerate() {
                        let int = _mm256_cvtepi32_ps(int);
                        let value = _mm256_fmadd_ps(scales[side], int, minima[side]);
                        _mm256_storeu_ps(out.add((group * 4 + k) * PANEL + side * 8), value);
                    }
                }
            };
            if bits(format) == 8 {
                for group in 0..8 {
                    let w = ints.add(group * 64);
                    let w = [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(32).cast())];
                    put(group, w);
                }
            } else {
                macro_rules! groups {
                    ($($g:literal)*) => {$(
                        let (low, high) = unpack_groups::<F, $g>(ints);
                        put($g, low);
                        put($g + 4, high);
                    )*};
                }
                groups!(0 1 2 3);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_rows<const F: usize>(
    panel: &Panel<'_>,
    x: FloatRows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    let a = x.data.as_ptr();
    let scratch = scratch.as_mut_ptr();
    // SAFETY: the caller's; the scratch has room for `CHUNK` inputs.
    unsafe {
        if is_dense(const { WeightFormat::ALL[F] })
            && (rows <= MAX_DIRECT_ROWS || panel.format == WeightFormat::F32)
        {
            return dense_rows::<F>((a, x.stride), rows, panel.ints.as_ptr(), panel.cols, c, false);
        }
        for from in (0..panel.cols).step_by(CHUNK) {
            let len = CHUNK.min(panel.cols - from);
            expand::<F>(panel, from, len, scratch);
            gemm((a.add(from), x.stride), rows, scratch, len, c, from > 0);
        }
    }
}

unsafe fn rows_float(
    panel: &Panel<'_>,
    x: FloatRows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    // SAFETY: the caller's.
    unsafe { for_format!(panel.format, F => float_rows::<F>(panel, x, rows, c, scratch)) }
}

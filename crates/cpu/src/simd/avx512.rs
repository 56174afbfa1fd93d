//! AVX-512 with VNNI, and with BF16 where the processor has it. Sixteen columns of a panel are
//! one register, and a group of four inputs is one operand of `vpdpbusd`.

use std::arch::x86_64::*;

use pagedllm_core::WeightFormat;

use super::{Bf16Rows, CHUNK, FloatRows, Int8Rows, Isa, Kernels, elementwise};
use crate::linear::packed::{BLOCK, PANEL, Panel, bits, int_bytes, is_dense, offset, scale_entry};
use crate::workspace::Buffer;

pub const KERNELS: Kernels = Kernels {
    isa: Isa::Avx512,
    rows_float,
    rows_int8,
    rows_bf16: None,
    gemm,
    widen,
    elementwise: elementwise::table!(
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    ),
};

pub const KERNELS_BF16: Kernels =
    Kernels { isa: Isa::Avx512Bf16, rows_bf16: Some(rows_bf16), ..KERNELS };

/// Rows up to which dense weights are widened in registers, not through the scratch.
const MAX_DIRECT_ROWS: usize = 12;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn load_halves(from: *const u8) -> __m512 {
    // SAFETY: the caller has 32 bytes there.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
}

/// Sixteen unsigned (or signed) bytes as floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load_bytes<const SIGNED: bool>(from: *const u8) -> __m512 {
    // SAFETY: the caller has 16 bytes there.
    let bytes = unsafe { _mm_loadu_si128(from.cast()) };
    let wide = if SIGNED { _mm512_cvtepi8_epi32(bytes) } else { _mm512_cvtepu8_epi32(bytes) };
    _mm512_cvtepi32_ps(wide)
}

/// Scales, and stored minima, of block `block` of format `F`, from input `half * 16` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) unsafe fn load_scales<const F: usize>(
    scales: *const u8,
    block: usize,
    half: usize,
) -> (__m512, __m512) {
    let format = const { WeightFormat::ALL[F] };
    let (entry_cols, entry_bytes) = const { scale_entry(WeightFormat::ALL[F]) };
    let zero = _mm512_setzero_ps();
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
                let m = _mm512_mul_ps(load_halves(entry.add(2 * PANEL)), minimum);
                (_mm512_mul_ps(d, scale), _mm512_sub_ps(zero, m))
            }
            WeightFormat::Q6K => {
                let scale = load_bytes::<true>(entry.add((2 + sub * 2 + half) * PANEL));
                (_mm512_mul_ps(d, scale), zero)
            }
            _ => (d, zero),
        }
    }
}

/// The unsigned integers of a block, group by group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn unpack_block<const F: usize>(block: *const u8) -> [__m512i; 8] {
    let bits = const { bits(WeightFormat::ALL[F]) };
    let mut groups = [_mm512_setzero_si512(); 8];
    // SAFETY: a block has `int_bytes` bytes.
    let load = |at: usize| unsafe { _mm512_loadu_si512(block.add(at * 64).cast()) };
    if bits == 8 {
        let sign = _mm512_set1_epi8(-128);
        for (index, group) in groups.iter_mut().enumerate() {
            *group = _mm512_xor_si512(load(index), sign);
        }
        return groups;
    }
    let nibble = _mm512_set1_epi8(15);
    for index in 0..4 {
        let v = load(index);
        groups[index] = _mm512_and_si512(v, nibble);
        groups[index + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(v), nibble);
    }
    if bits == 5 {
        let (h, bit) = (load(4), _mm512_set1_epi8(16));
        let moved = [
            _mm512_slli_epi16::<4>(h),
            _mm512_slli_epi16::<3>(h),
            _mm512_slli_epi16::<2>(h),
            _mm512_slli_epi16::<1>(h),
            h,
            _mm512_srli_epi16::<1>(h),
            _mm512_srli_epi16::<2>(h),
            _mm512_srli_epi16::<3>(h),
        ];
        for (group, moved) in groups.iter_mut().zip(moved) {
            *group = _mm512_or_si512(*group, _mm512_and_si512(moved, bit));
        }
    } else if bits == 6 {
        let two = _mm512_set1_epi8(48);
        for half in 0..2 {
            let h = load(4 + half);
            let moved = [
                _mm512_slli_epi16::<4>(h),
                _mm512_slli_epi16::<2>(h),
                h,
                _mm512_srli_epi16::<2>(h),
            ];
            for (group, moved) in groups[half * 4..half * 4 + 4].iter_mut().zip(moved) {
                *group = _mm512_or_si512(*group, _mm512_and_si512(moved, two));
            }
        }
    }
    groups
}

/// Whether a format stores minima.
pub(super) const fn has_minima(format: WeightFormat) -> bool {
    matches!(
        format,
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K
    )
}

/// Sub-blocks with scales of their own in a block.
pub(super) const fn halves(format: WeightFormat) -> usize {
    if matches!(format, WeightFormat::Q6K) { 2 } else { 1 }
}

/// `R` rows by one panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
unsafe fn int8_tile<const F: usize, const R: usize>(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    (c, ldc): (*mut f32, usize),
) {
    let format = const { WeightFormat::ALL[F] };
    let bytes = const { int_bytes(WeightFormat::ALL[F]) };
    let (halves, off) = (halves(format), offset(format));
    let mut sums = [_mm512_setzero_ps(); R];
    for block in 0..panel.cols / BLOCK {
        // SAFETY: the panel has this block, `x` has `R` rows of the panel's columns.
        unsafe {
            let weights = unpack_block::<F>(panel.ints.as_ptr().add(block * bytes));
            let mut dots = [[_mm512_setzero_si512(); R]; 2];
            for (group, weights) in weights.iter().enumerate() {
                let half = if halves == 2 { group / 4 } else { group % 2 };
                for (row, dot) in dots[half].iter_mut().enumerate() {
                    let a = x.ints.as_ptr().add(row * x.cols + block * BLOCK + group * 4);
                    let a = _mm512_set1_epi32(a.cast::<i32>().read_unaligned());
                    *dot = _mm512_dpbusd_epi32(*dot, *weights, a);
                }
            }
            for half in 0..halves {
                let (scales, minima) = load_scales::<F>(panel.scales.as_ptr(), block, half);
                for (row, to) in sums.iter_mut().enumerate() {
                    let scale = *x.scales.get_unchecked(row * x.cols / BLOCK + block);
                    let at = row * x.cols / 16 + block * 2;
                    let (mut sum, mut dot) = (*x.sums.get_unchecked(at + half), dots[half][row]);
                    if halves == 1 {
                        sum += x.sums.get_unchecked(at + 1);
                        dot = _mm512_add_epi32(dot, dots[1][row]);
                    }
                    let dot = _mm512_cvtepi32_ps(dot);
                    let less = _mm512_set1_ps(-off * sum);
                    let value = _mm512_fmadd_ps(_mm512_set1_ps(scale), dot, less);
                    *to = _mm512_fmadd_ps(scales, value, *to);
                    if has_minima(format) {
                        *to = _mm512_fmadd_ps(minima, _mm512_set1_ps(sum), *to);
                    }
                }
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        // SAFETY: `c` has `R` rows of 16.
        unsafe { _mm512_storeu_ps(c.add(row * ldc), sums) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
pub(super) unsafe fn int8_rows<const F: usize>(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    (c, ldc): (*mut f32, usize),
) {
    let mut row = 0;
    while row < rows {
        let (x, c) = (x.from(row), (c.wrapping_add(row * ldc), ldc));
        let left = rows - row;
        // SAFETY: the caller's, for the rows from `row`.
        unsafe {
            match left {
                1 => int8_tile::<F, 1>(panel, x, c),
                2 => int8_tile::<F, 2>(panel, x, c),
                3 => int8_tile::<F, 3>(panel, x, c),
                4..=7 => int8_tile::<F, 4>(panel, x, c),
                _ => int8_tile::<F, 8>(panel, x, c),
            }
        }
        row += match left {
            1..=3 => left,
            4..=7 => 4,
            _ => 8,
        };
    }
}

pub(super) unsafe fn rows_int8(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    _scratch: &mut Buffer<f32>,
) {
    // SAFETY: the caller's.
    unsafe { for_format!(panel.format, F => int8_rows::<F>(panel, x, rows, c)) }
}

/// Sixteen weights of input `k` of a dense panel; in bf16 those of inputs `k` and `k + 1`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn load_dense<const F: usize>(from: *const u8, k: usize) -> [__m512; 2] {
    // SAFETY: the caller has the panel's row `k`, in bf16 the pair of rows.
    unsafe {
        match const { WeightFormat::ALL[F] } {
            WeightFormat::F16 => [load_halves(from.add(k * 32)), _mm512_setzero_ps()],
            WeightFormat::BF16 => {
                let v = _mm512_loadu_si512(from.add(k * 32).cast());
                let top = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
                [
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)),
                    _mm512_castsi512_ps(_mm512_and_si512(v, top)),
                ]
            }
            _ => [_mm512_loadu_ps(from.cast::<f32>().add(k * PANEL)), _mm512_setzero_ps()],
        }
    }
}

/// Inputs that one load of a dense format covers.
const fn dense_step(format: WeightFormat) -> usize {
    if matches!(format, WeightFormat::BF16) { 2 } else { 1 }
}

/// `R` rows by a dense panel; `U` sets of sums, so that few rows do not wait for their adds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma,f16c")]
unsafe fn dense_tile<const F: usize, const R: usize, const U: usize>(
    (a, lda): (*const f32, usize),
    panel: *const u8,
    k: usize,
    (c, ldc): (*mut f32, usize),
    adds: bool,
) {
    let step = dense_step(const { WeightFormat::ALL[F] });
    let mut sums = [[_mm512_setzero_ps(); R]; U];
    // SAFETY: `a` has `R` rows of `k`, the panel `k` rows, `c` `R` rows of 16.
    unsafe {
        let mut i = 0;
        while i < k {
            let unrolled = if i + U * step <= k { U } else { 1 };
            for (u, sums) in sums.iter_mut().enumerate().take(unrolled) {
                let weights = load_dense::<F>(panel, i + u * step);
                for (odd, &weights) in weights.iter().enumerate().take(step) {
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let a = _mm512_set1_ps(*a.add(row * lda + i + u * step + odd));
                        *sum = _mm512_fmadd_ps(a, weights, *sum);
                    }
                }
            }
            i += unrolled * step;
        }
        for row in 0..R {
            let mut total = sums[0][row];
            for sums in &sums[1..] {
                total = _mm512_add_ps(total, sums[row]);
            }
            let to = c.add(row * ldc);
            if adds {
                total = _mm512_add_ps(total, _mm512_loadu_ps(to));
            }
            _mm512_storeu_ps(to, total);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma,f16c")]
unsafe fn dense_rows<const F: usize>(
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
        let left = rows - row;
        // SAFETY: the caller's, for the rows from `row`.
        unsafe {
            match left {
                1 => dense_tile::<F, 1, 8>(a, panel, k, c, adds),
                2 => dense_tile::<F, 2, 4>(a, panel, k, c, adds),
                3 => dense_tile::<F, 3, 4>(a, panel, k, c, adds),
                4..=5 => dense_tile::<F, 4, 2>(a, panel, k, c, adds),
                6..=11 => dense_tile::<F, 6, 2>(a, panel, k, c, adds),
                _ => dense_tile::<F, 12, 1>(a, panel, k, c, adds),
            }
        }
        row += match left {
            1..=3 => left,
            4..=5 => 4,
            6..=11 => 6,
            _ => 12,
        };
    }
}

/// Index of F32 in `WeightFormat::ALL`.
const F32: usize = 0;

unsafe fn gemm(
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn widen_rows<const F: usize>(from: *const u8, k: usize, to: *mut f32) {
    let step = dense_step(const { WeightFormat::ALL[F] });
    for i in (0..k).step_by(step) {
        // SAFETY: `from` and `to` have `k` rows of 16.
        unsafe {
            let rows = load_dense::<F>(from, i);
            for (odd, &row) in rows.iter().enumerate().take(step) {
                _mm512_storeu_ps(to.add((i + odd) * PANEL), row);
            }
        }
    }
}

unsafe fn widen(format: WeightFormat, from: &[u8], to: &mut [f32]) {
    let (source, k, target) = (from.as_ptr(), to.len() / PANEL, to.as_mut_ptr());
    // SAFETY: the caller checked the lengths.
    unsafe { for_format!(format, F => widen_rows::<F>(source, k, target)) }
}

/// Weights of `len` inputs from `from` on as f32 `[len][16]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
unsafe fn expand<const F: usize>(panel: &Panel<'_>, from: usize, len: usize, out: *mut f32) {
    let format = const { WeightFormat::ALL[F] };
    let bytes = const { int_bytes(WeightFormat::ALL[F]) };
    if is_dense(format) {
        // SAFETY: the panel has these inputs, `out` room for them; so below.
        unsafe { widen_rows::<F>(panel.ints.as_ptr().add(from / BLOCK * bytes), len, out) };
        return;
    }
    let off = _mm512_set1_ps(offset(format));
    let byte = _mm512_set1_epi32(255);
    for index in 0..len / BLOCK {
        let block = from / BLOCK + index;
        // SAFETY: as above.
        unsafe {
            let groups = unpack_block::<F>(panel.ints.as_ptr().add(block * bytes));
            for (group, &ints) in groups.iter().enumerate() {
                let (scales, minima) = load_scales::<F>(panel.scales.as_ptr(), block, group / 4);
                let minima = _mm512_sub_ps(minima, _mm512_mul_ps(scales, off));
                let ints = [
                    _mm512_and_si512(ints, byte),
                    _mm512_and_si512(_mm512_srli_epi32::<8>(ints), byte),
                    _mm512_and_si512(_mm512_srli_epi32::<16>(ints), byte),
                    _mm512_srli_epi32::<24>(ints),
                ];
                for (k, ints) in ints.into_iter().enumerate() {
                    let value = _mm512_fmadd_ps(scales, _mm512_cvtepi32_ps(ints), minima);
                    _mm512_storeu_ps(out.add((index * BLOCK + group * 4 + k) * PANEL), value);
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
unsafe fn float_rows<const F: usize>(
    panel: &Panel<'_>,
    x: FloatRows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    let (a, scratch) = (x.data.as_ptr(), scratch.as_mut_ptr());
    let (ints, k) = (panel.ints.as_ptr(), panel.cols);
    // SAFETY: the caller's; the scratch has room for `CHUNK` inputs.
    unsafe {
        if is_dense(const { WeightFormat::ALL[F] })
            && (rows <= MAX_DIRECT_ROWS || panel.format == WeightFormat::F32)
        {
            return dense_rows::<F>((a, x.stride), rows, ints, k, c, false);
        }
        for from in (0..k).step_by(CHUNK) {
            let len = CHUNK.min(k - from);
            expand::<F>(panel, from, len, scratch);
            gemm((a.add(from), x.stride), rows, scratch, len, c, from > 0);
        }
    }
}

pub(super) unsafe fn rows_float(
    panel: &Panel<'_>,
    x: FloatRows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    // SAFETY: the caller's.
    unsafe { for_format!(panel.format, F => float_rows::<F>(panel, x, rows, c, scratch)) }
}

/// `R` rows by a bf16 panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn bf16_tile<const R: usize, const U: usize>(
    panel: &Panel<'_>,
    x: Bf16Rows<'_>,
    (c, ldc): (*mut f32, usize),
) {
    let mut sums = [[_mm512_setzero_ps(); R]; U];
    let (a, w) = (x.data.as_ptr(), panel.ints.as_ptr());
    // SAFETY: `x` has `R` rows of the panel's columns, which are a multiple of 32; a pair of
    // bf16 is 32 bits, and 64 bytes of the panel are 16 pairs.
    unsafe {
        for i in (0..panel.cols).step_by(2 * U) {
            for (u, sums) in sums.iter_mut().enumerate() {
                let weights = _mm512_loadu_si512(w.add((i + 2 * u) * 2 * PANEL).cast());
                let weights = std::mem::transmute::<__m512i, __m512bh>(weights);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let pair = a.add(row * x.stride + i + 2 * u).cast::<i32>().read_unaligned();
                    let pair = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair));
                    *sum = _mm512_dpbf16_ps(*sum, weights, pair);
                }
            }
        }
        for row in 0..R {
            let total = sums[1..].iter().fold(sums[0][row], |a, s| _mm512_add_ps(a, s[row]));
            _mm512_storeu_ps(c.add(row * ldc), total);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn rows_bf16_of_bf16(
    panel: &Panel<'_>,
    x: Bf16Rows<'_>,
    rows: usize,
    (c, ldc): (*mut f32, usize),
) {
    let mut row = 0;
    while row < rows {
        let (x, c) = (x.from(row), (c.wrapping_add(row * ldc), ldc));
        let left = rows - row;
        // SAFETY: the caller's, for the rows from `row`.
        unsafe {
            match left {
                1 => bf16_tile::<1, 8>(panel, x, c),
                2..=3 => bf16_tile::<2, 4>(panel, x, c),
                4..=7 => bf16_tile::<4, 2>(panel, x, c),
                8..=11 => bf16_tile::<8, 2>(panel, x, c),
                _ => bf16_tile::<12, 2>(panel, x, c),
            }
        }
        row += match left {
            1 => 1,
            2..=3 => 2,
            4..=7 => 4,
            8..=11 => 8,
            _ => 12,
        };
    }
}

unsafe fn rows_bf16(
    panel: &Panel<'_>,
    x: Bf16Rows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    _scratch: &mut Buffer<f32>,
) {
    // SAFETY: the caller's; `Kernels::takes_bf16` admits bf16 weights alone.
    unsafe { rows_bf16_of_bf16(panel, x, rows, c) }
}

/// A panel of f16 weights as bf16 in the layout of bf16 panels, rounded to nearest.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
pub(super) unsafe fn halves_to_bf16(panel: &Panel<'_>, out: *mut u8) {
    // Of a register with 16 bf16 of one input below 16 of the next: every place its pair.
    let mut order = [0i16; 32];
    for (place, from) in order.iter_mut().enumerate() {
        *from = (place / 2 + place % 2 * 16) as i16;
    }
    // SAFETY: the panel has `cols` rows of 32 bytes, `out` room for as much.
    unsafe {
        let order = _mm512_loadu_si512(order.as_ptr().cast());
        for k in (0..panel.cols).step_by(2) {
            let even = load_halves(panel.ints.as_ptr().add(k * 32));
            let odd = load_halves(panel.ints.as_ptr().add(k * 32 + 32));
            let both = _mm512_cvtne2ps_pbh(odd, even);
            let both = std::mem::transmute::<__m512bh, __m512i>(both);
            let pairs = _mm512_permutexvar_epi16(order, both);
            _mm512_storeu_si512(out.add(k * 32).cast(), pairs);
        }
    }
}

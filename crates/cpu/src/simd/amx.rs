//! AMX: tiles of 16 rows by 16 columns. Few rows go to AVX-512, which reads weights as fast.
//!
//! The compiler knows nothing of tile registers, so each run from `tilezero` to `tilestored` is
//! one block of assembly, and so is the configuration; none of them is declared free of memory
//! effects, so the compiler keeps their order. The system is asked once a process for the use of
//! tiles, and a thread configures its tiles when it first needs them or needs another shape.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::sync::OnceLock;

use pagedllm_core::WeightFormat;

use super::{Bf16Rows, Int8Rows, Isa, Kernels, avx512};
use crate::linear::packed::{BLOCK, PANEL, Panel, bits, int_bytes, is_dense, offset};
use crate::workspace::Buffer;

pub const KERNELS: Kernels =
    Kernels { isa: Isa::Amx, rows_int8, rows_bf16: Some(rows_bf16), ..avx512::KERNELS };

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Rows from which tiles beat single rows.
pub const MIN_ROWS: usize = 4;

/// Whether the processor has AMX for bf16 and int8, and the system lets this process use it.
pub fn is_available() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| has_amx() && request_permission())
}

fn has_amx() -> bool {
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    #[allow(unused_unsafe)] // Newer compilers know that `cpuid` is safe.
    // SAFETY: every x86-64 processor has `cpuid`, and leaf 0 says whether leaf 7 is there.
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BF16_TILE_INT8 == BF16_TILE_INT8
    }
}

#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: the system call takes two numbers and touches no memory of this process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// Shapes of the tiles: sums in 0 to 3, rows in 4 and 5, weights in 6 and 7.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// 32 inputs in bf16.
    Bf16,
    /// 32 inputs in int8: one block.
    Int8,
}

#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shape {
    const fn config(self) -> TileConfig {
        let mut config = TileConfig {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        if matches!(self, Self::Int8) {
            config.row_bytes[4] = 32;
            config.row_bytes[5] = 32;
            config.rows[6] = 8;
            config.rows[7] = 8;
        }
        config
    }
}

thread_local! {
    /// The shape that this thread's tile registers have.
    static CURRENT: Cell<Option<Shape>> = const { Cell::new(None) };
}

/// Gives this thread's tiles a shape.
fn configure(shape: Shape) {
    CURRENT.with(|current| {
        if current.get() != Some(shape) {
            let config = shape.config();
            // SAFETY: a `Kernels` for AMX exists only where `is_available`; the configuration is
            // valid and read within the instruction.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack)) };
            current.set(Some(shape));
        }
    });
}

/// Sums of `T` tiles of rows by one bf16 panel, stored at `c` with `ldc` bytes from row to row.
macro_rules! bf16_tiles {
    ($name:ident, [$($zero:literal),*], [$($tdp:literal),*], [$($store:literal),*]) => {
        unsafe fn $name(
            (a, lda): (*const u16, usize),
            weights: *const u8,
            steps: usize,
            (c, ldc): (*mut f32, usize),
        ) {
            let tile_rows = TILE_ROWS * lda;
            // SAFETY: the caller has whole tiles of rows at `a` and `c` and `steps` KiB of
            // weights; the tiles have the shape for bf16.
            unsafe {
                asm!(
                    $($zero,)*
                    "2:",
                    "tileloadd tmm6, [{w} + {wstride}*1]",
                    $($tdp,)*
                    "add {a0}, 64",
                    "add {a1}, 64",
                    "add {a2}, 64",
                    "add {a3}, 64",
                    "add {w}, 1024",
                    "dec {n}",
                    "jnz 2b",
                    $($store,)*
                    w = inout(reg) weights => _,
                    wstride = in(reg) 64usize,
                    n = inout(reg) steps => _,
                    a0 = inout(reg) a => _,
                    a1 = inout(reg) a.wrapping_byte_add(tile_rows) => _,
                    a2 = inout(reg) a.wrapping_byte_add(2 * tile_rows) => _,
                    a3 = inout(reg) a.wrapping_byte_add(3 * tile_rows) => _,
                    lda = in(reg) lda,
                    c = inout(reg) c => _,
                    ldc = in(reg) ldc,
                    tile = in(reg) TILE_ROWS * ldc,
                    options(nostack)
                );
            }
        }
    };
}

bf16_tiles!(
    bf16_one,
    ["tilezero tmm0"],
    ["tileloadd tmm4, [{a0} + {lda}*1]", "tdpbf16ps tmm0, tmm4, tmm6"],
    ["tilestored [{c} + {ldc}*1], tmm0", "/* {tile} */"]
);
bf16_tiles!(
    bf16_two,
    ["tilezero tmm0", "tilezero tmm1"],
    [
        "tileloadd tmm4, [{a0} + {lda}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{a1} + {lda}*1]",
        "tdpbf16ps tmm1, tmm5, tmm6"
    ],
    ["tilestored [{c} + {ldc}*1], tmm0", "add {c}, {tile}", "tilestored [{c} + {ldc}*1], tmm1"]
);
bf16_tiles!(
    bf16_four,
    ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
    [
        "tileloadd tmm4, [{a0} + {lda}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{a1} + {lda}*1]",
        "tdpbf16ps tmm1, tmm5, tmm6",
        "tileloadd tmm4, [{a2} + {lda}*1]",
        "tdpbf16ps tmm2, tmm4, tmm6",
        "tileloadd tmm5, [{a3} + {lda}*1]",
        "tdpbf16ps tmm3, tmm5, tmm6"
    ],
    [
        "tilestored [{c} + {ldc}*1], tmm0",
        "add {c}, {tile}",
        "tilestored [{c} + {ldc}*1], tmm1",
        "add {c}, {tile}",
        "tilestored [{c} + {ldc}*1], tmm2",
        "add {c}, {tile}",
        "tilestored [{c} + {ldc}*1], tmm3"
    ]
);

/// A tile of sums on the stack, for rows that are no whole tile.
#[repr(C, align(64))]
struct Sums<T>([T; TILE_ROWS * PANEL]);

unsafe fn rows_bf16(
    panel: &Panel<'_>,
    x: Bf16Rows<'_>,
    rows: usize,
    (c, ldc): (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    configure(Shape::Bf16);
    let steps = panel.cols / BLOCK;
    let mut weights = panel.ints.as_ptr();
    if panel.format != WeightFormat::BF16 {
        scratch.grow(panel.cols * PANEL / 2);
        let out = scratch.as_mut_ptr().cast();
        // SAFETY: the scratch has room for the panel in bf16.
        unsafe {
            if is_dense(panel.format) {
                avx512::halves_to_bf16(panel, out);
            } else {
                for_format!(panel.format, F => blocks_to_bf16::<F>(panel, out));
            }
        }
        weights = scratch.as_ptr().cast();
    }
    let mut row = 0;
    while row < rows {
        let left = rows - row;
        let a = (x.data[row * x.stride..].as_ptr(), x.stride * 2);
        let to = (c.wrapping_add(row * ldc), ldc * 4);
        // SAFETY: the caller's: `x` reaches to the end of the last tile, `c` has `rows` rows.
        unsafe {
            match left / TILE_ROWS {
                0 => {
                    let mut sums = Sums([0.0f32; TILE_ROWS * PANEL]);
                    bf16_one(a, weights, steps, (sums.0.as_mut_ptr(), PANEL * 4));
                    for index in 0..left {
                        let from = sums.0.as_ptr().add(index * PANEL);
                        std::ptr::copy_nonoverlapping(from, to.0.add(index * ldc), PANEL);
                    }
                    row += left;
                }
                1 => {
                    bf16_one(a, weights, steps, to);
                    row += TILE_ROWS;
                }
                2 | 3 => {
                    bf16_two(a, weights, steps, to);
                    row += 2 * TILE_ROWS;
                }
                _ => {
                    bf16_four(a, weights, steps, to);
                    row += 4 * TILE_ROWS;
                }
            }
        }
    }
}

/// A panel of a block format as bf16 in the layout of bf16 panels: what many rows share costs
/// little each, and a block's scale costs nothing more for each row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma,f16c")]
unsafe fn blocks_to_bf16<const F: usize>(panel: &Panel<'_>, out: *mut u8) {
    let format = const { WeightFormat::ALL[F] };
    let halves = avx512::halves(format);
    let bytes = const { int_bytes(WeightFormat::ALL[F]) };
    let off = _mm512_set1_ps(offset(format));
    let (byte, upper) = (_mm512_set1_epi32(0xff), _mm512_set1_epi32(0xffff_0000u32.cast_signed()));
    // Rounds to nearest, away from zero at the middle.
    let round = _mm512_set1_epi32(0x8000);
    for block in 0..panel.cols / BLOCK {
        // SAFETY: the panel has the block, and `out` 1 KiB for it.
        unsafe {
            let groups = avx512::unpack_block::<F>(panel.ints.as_ptr().add(block * bytes));
            let scales = [0, halves - 1]
                .map(|half| avx512::load_scales::<F>(panel.scales.as_ptr(), block, half))
                .map(|(scale, minimum)| (scale, _mm512_fnmadd_ps(off, scale, minimum)));
            for (index, &group) in groups.iter().enumerate() {
                let (scale, base) = scales[index / 4];
                let value = |ints: __m512i| {
                    let weight = _mm512_fmadd_ps(_mm512_cvtepi32_ps(ints), scale, base);
                    _mm512_add_epi32(_mm512_castps_si512(weight), round)
                };
                let pair = |even: __m512i, odd: __m512i| {
                    let low = _mm512_srli_epi32::<16>(value(even));
                    _mm512_or_si512(low, _mm512_and_si512(value(odd), upper))
                };
                let second = _mm512_and_si512(_mm512_srli_epi32::<8>(group), byte);
                let third = _mm512_and_si512(_mm512_srli_epi32::<16>(group), byte);
                let fourth = _mm512_srli_epi32::<24>(group);
                let out = out.add(block * 1024 + index * 128);
                _mm512_storeu_si512(out.cast(), pair(_mm512_and_si512(group, byte), second));
                _mm512_storeu_si512(out.add(64).cast(), pair(third, fourth));
            }
        }
    }
}

/// Integer dots of one tile of rows by blocks `b` and `b + 1`, or twice by the halves of one
/// block, into two tiles of `sums`.
macro_rules! int8_pair {
    ($name:ident, $tdp0:literal, $tdp1:literal) => {
        unsafe fn $name(
            (a0, a1, lda): (*const i8, *const i8, usize),
            (w0, w1): (*const u8, *const u8),
            sums: *mut Sums<i32>,
        ) {
            // SAFETY: the caller has 16 rows of 32 bytes at `a0` and `a1`, 512 bytes at `w0` and
            // `w1` and two tiles at `sums`; the tiles have the shape for int8.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tileloadd tmm6, [{w0} + {stride}*1]",
                    "tileloadd tmm4, [{a0} + {lda}*1]",
                    "tileloadd tmm7, [{w1} + {stride}*1]",
                    "tileloadd tmm5, [{a1} + {lda}*1]",
                    $tdp0,
                    $tdp1,
                    "tilestored [{s} + {stride}*1], tmm0",
                    "tilestored [{s} + {stride}*1 + 1024], tmm1",
                    w0 = in(reg) w0,
                    w1 = in(reg) w1,
                    a0 = in(reg) a0,
                    a1 = in(reg) a1,
                    lda = in(reg) lda,
                    s = in(reg) sums,
                    stride = in(reg) 64usize,
                    options(nostack)
                );
            }
        }
    };
}
int8_pair!(int8_pair_unsigned, "tdpbsud tmm0, tmm4, tmm6", "tdpbsud tmm1, tmm5, tmm7");
int8_pair!(int8_pair_signed, "tdpbssd tmm0, tmm4, tmm6", "tdpbssd tmm1, tmm5, tmm7");

/// Bytes of one unpacked block.
const UNPACKED: usize = BLOCK * PANEL;

/// The integers of a panel, a byte each, block after block. Blocks of `Q6_K` come twice: inputs
/// 0 to 15 with zeroes behind, zeroes with inputs 16 to 31 behind.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn unpack_panel<const F: usize>(panel: &Panel<'_>, out: *mut u8) {
    let halves = avx512::halves(const { WeightFormat::ALL[F] });
    let bytes = const { int_bytes(WeightFormat::ALL[F]) };
    for block in 0..panel.cols / BLOCK {
        // SAFETY: the panel has the block, `out` room for what it unpacks to.
        unsafe {
            let groups = avx512::unpack_block::<F>(panel.ints.as_ptr().add(block * bytes));
            for half in 0..halves {
                let out = out.add((block * halves + half) * UNPACKED);
                for (index, &group) in groups.iter().enumerate() {
                    let kept = halves == 1 || index / 4 == half;
                    let group = if kept { group } else { _mm512_setzero_si512() };
                    _mm512_storeu_si512(out.add(index * 64).cast(), group);
                }
            }
        }
    }
}

/// Adds the dots of one tile of rows by one (half of a) block to the sums in `c`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
unsafe fn add_scaled<const F: usize>(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    (block, half): (usize, usize),
    dots: &Sums<i32>,
    (c, ldc): (*mut f32, usize),
) {
    let format = const { WeightFormat::ALL[F] };
    // 8-bit weights keep their sign here.
    let off = if bits(format) == 8 { 0.0 } else { offset(format) };
    // SAFETY: the caller's: `x` and `c` have `rows` rows, at most a tile of them.
    unsafe {
        let (scales, minima) = avx512::load_scales::<F>(panel.scales.as_ptr(), block, half);
        for row in 0..rows {
            let scale = *x.scales.get_unchecked(row * x.cols / BLOCK + block);
            let at = row * x.cols / 16 + block * 2;
            let mut sum = *x.sums.get_unchecked(at + half);
            if avx512::halves(format) == 1 {
                sum += x.sums.get_unchecked(at + 1);
            }
            let dot =
                _mm512_cvtepi32_ps(_mm512_load_si512(dots.0.as_ptr().add(row * PANEL).cast()));
            let value = _mm512_fmadd_ps(_mm512_set1_ps(scale), dot, _mm512_set1_ps(-off * sum));
            let to = c.add(row * ldc);
            let mut total = _mm512_fmadd_ps(scales, value, _mm512_loadu_ps(to));
            if avx512::has_minima(format) {
                total = _mm512_fmadd_ps(minima, _mm512_set1_ps(sum), total);
            }
            _mm512_storeu_ps(to, total);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
unsafe fn int8_rows<const F: usize>(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    (c, ldc): (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    let format = const { WeightFormat::ALL[F] };
    let halves = avx512::halves(format);
    let blocks = panel.cols / BLOCK;
    let mut weights = panel.ints.as_ptr();
    if bits(format) < 8 {
        scratch.grow(blocks * halves * UNPACKED / 4);
        // SAFETY: the scratch has that room.
        unsafe { unpack_panel::<F>(panel, scratch.as_mut_ptr().cast()) };
        weights = scratch.as_ptr().cast();
    }
    let mut dots = [Sums([0i32; TILE_ROWS * PANEL]), Sums([0i32; TILE_ROWS * PANEL])];
    for row in (0..rows).step_by(TILE_ROWS) {
        let count = TILE_ROWS.min(rows - row);
        let (x, c) = (x.from(row), (c.wrapping_add(row * ldc), ldc));
        for index in 0..count {
            // SAFETY: `c` has `rows` rows of 16.
            unsafe { _mm512_storeu_ps(c.0.add(index * ldc), _mm512_setzero_ps()) };
        }
        let at = |block: usize| x.ints[block * BLOCK..].as_ptr();
        for block in (0..blocks * halves).step_by(2) {
            // The last of an odd number of blocks is multiplied twice and added once.
            let next = if block + 1 < blocks * halves { block + 1 } else { block };
            let a = (at(block / halves), at(next / halves), x.cols);
            // SAFETY: `x` reaches to the end of the last tile; both blocks are in the panel.
            unsafe {
                let w = (weights.add(block * UNPACKED), weights.add(next * UNPACKED));
                if bits(format) == 8 {
                    int8_pair_signed(a, w, dots.as_mut_ptr());
                } else {
                    int8_pair_unsigned(a, w, dots.as_mut_ptr());
                }
                let place = |index: usize| (index / halves, index % halves);
                add_scaled::<F>(panel, x, count, place(block), &dots[0], c);
                if next != block {
                    add_scaled::<F>(panel, x, count, place(next), &dots[1], c);
                }
            }
        }
    }
}

unsafe fn rows_int8(
    panel: &Panel<'_>,
    x: Int8Rows<'_>,
    rows: usize,
    c: (*mut f32, usize),
    scratch: &mut Buffer<f32>,
) {
    debug_assert!(!is_dense(panel.format), "block formats alone");
    if rows < MIN_ROWS {
        // SAFETY: the caller's.
        return unsafe { avx512::rows_int8(panel, x, rows, c, scratch) };
    }
    configure(Shape::Int8);
    // SAFETY: the caller's.
    unsafe { for_format!(panel.format, F => int8_rows::<F>(panel, x, rows, c, scratch)) }
}

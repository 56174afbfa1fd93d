//! The inner loops, once for each instruction set, and their choice at start.
//!
//! Everything outside this folder calls the safe methods of [`Kernels`]. A `Kernels` exists only
//! for an instruction set that this processor has, which is what makes those calls sound.
#![allow(unsafe_code)] // Intrinsics, and function pointers compiled for more than the baseline.

/// Calls an expression with `F` as the constant index of a format in `WeightFormat::ALL`.
macro_rules! for_format {
    ($format:expr, $name:ident => $call:expr) => {
        for_format!(@ $format, $name, $call,
            F32 0, F16 1, BF16 2, Q8_0 3, Q4_0 4, Q4_1 5, Q5_0 6, Q5_1 7, Q4K 8, Q5K 9, Q6K 10)
    };
    (@ $format:expr, $name:ident, $call:expr, $($variant:ident $index:literal),*) => {
        match $format {
            $(pagedllm_core::WeightFormat::$variant => {
                const $name: usize = $index;
                $call
            })*
        }
    };
}
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_dense;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod elementwise;
mod scalar;

use std::fmt;

use pagedllm_backend::Activation;
use pagedllm_core::WeightFormat;

use crate::linear::packed::{BLOCK, PANEL, Panel, is_dense};
use crate::threads::TileMut;
use crate::workspace::Buffer;

/// Inputs of a panel that are expanded at a time, so that they stay in the first-level cache.
pub const CHUNK: usize = 256;

/// An instruction set that the inner loops are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Whatever the compiler makes of plain loops (on aarch64: NEON).
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// Those and BF16.
    Avx512Bf16,
    /// Those, and tiles of bf16 and int8.
    Amx,
}

impl Isa {
    /// All of them, least first.
    pub const ALL: [Self; 5] =
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx];

    /// Whether this processor has it, and the system lets this process use it.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            match self {
                Self::Portable => true,
                Self::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
                Self::Avx512 => {
                    Self::Avx2.is_available()
                        && has!("avx512f")
                        && has!("avx512bw")
                        && has!("avx512vl")
                        && has!("avx512dq")
                        && has!("avx512vnni")
                }
                Self::Avx512Bf16 => Self::Avx512.is_available() && has!("avx512bf16"),
                Self::Amx => Self::Avx512Bf16.is_available() && amx::is_available(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }
    /// The best one that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        let mut all = Self::ALL.into_iter().rev();
        all.find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        })
    }
}

/// Activations as 8-bit integers: `x = scale * integer`, a scale for each 32 inputs.
#[derive(Clone, Copy)]
pub struct Int8Rows<'a> {
    /// `[rows, cols]` integers in `-127..=127`.
    pub ints: &'a [i8],
    /// `[rows, cols / 32]`.
    pub scales: &'a [f32],
    /// `[rows, cols / 16]` scale times the sum of 16 integers, for the weights' minima.
    pub sums: &'a [f32],
    /// Columns, a multiple of 32.
    pub cols: usize,
}

impl<'a> Int8Rows<'a> {
    /// Rows from `row`.
    #[must_use]
    pub fn from(self, row: usize) -> Self {
        Self {
            ints: &self.ints[row * self.cols..],
            scales: &self.scales[row * self.cols / BLOCK..],
            sums: &self.sums[row * self.cols / 16..],
            cols: self.cols,
        }
    }
}

/// Activations in f32, `stride` elements from row to row, zero beyond the matrix's inputs.
#[derive(Clone, Copy)]
pub struct FloatRows<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// From one row to the next.
    pub stride: usize,
}

/// Activations in bf16, `stride` elements from row to row, zero beyond the matrix's inputs.
#[derive(Clone, Copy)]
pub struct Bf16Rows<'a> {
    /// The elements, and [`ROW_SLACK`] rows more.
    pub data: &'a [u16],
    /// From one row to the next; the panel's columns.
    pub stride: usize,
}

impl Bf16Rows<'_> {
    /// Rows from `row`.
    #[must_use]
    pub fn from(self, row: usize) -> Self {
        Self { data: &self.data[row * self.stride..], stride: self.stride }
    }
}

/// Rows of any content that follow the rounded activations, because tiles are loaded whole.
pub const ROW_SLACK: usize = 16;

type RowsFloat =
    unsafe fn(&Panel<'_>, FloatRows<'_>, usize, (*mut f32, usize), scratch: &mut Buffer<f32>);
type RowsInt8 =
    unsafe fn(&Panel<'_>, Int8Rows<'_>, usize, (*mut f32, usize), scratch: &mut Buffer<f32>);
type RowsBf16 =
    unsafe fn(&Panel<'_>, Bf16Rows<'_>, usize, (*mut f32, usize), scratch: &mut Buffer<f32>);
/// `(a, lda), rows, panel, k, (c, ldc), adds`.
type Gemm = unsafe fn((*const f32, usize), usize, *const f32, usize, (*mut f32, usize), adds: bool);

/// The inner loops of one instruction set.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    rows_float: RowsFloat,
    rows_int8: RowsInt8,
    rows_bf16: Option<RowsBf16>,
    gemm: Gemm,
    widen: unsafe fn(WeightFormat, &[u8], &mut [f32]),
    elementwise: elementwise::Table,
}

impl Kernels {
    /// The loops for `isa`, if this processor has it.
    #[must_use]
    pub fn new(isa: Isa) -> Option<Self> {
        if !isa.is_available() {
            return None;
        }
        Some(match isa {
            Isa::Portable => scalar::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => avx512::KERNELS_BF16,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => amx::KERNELS,
            #[cfg(not(target_arch = "x86_64"))]
            _ => scalar::KERNELS,
        })
    }
    /// What they are written for.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// `x · panelᵀ` into a tile of up to 16 columns, with exact weights and f32 products.
    pub fn rows_float(
        &self,
        panel: &Panel<'_>,
        x: FloatRows<'_>,
        mut tile: TileMut<'_>,
        [panel_scratch, tile_scratch]: [&mut Buffer<f32>; 2],
    ) {
        let rows = tile.rows;
        assert!(rows > 0 && x.data.len() >= (rows - 1) * x.stride + panel.cols, "activations");
        panel_scratch.grow(CHUNK * PANEL);
        through_full_tile(&mut tile, tile_scratch, |c| {
            // SAFETY: the processor has the instruction set; `x` has `rows` rows of the panel's
            // columns, `c` room for 16 columns of `rows` rows.
            unsafe { (self.rows_float)(panel, x, rows, c, panel_scratch) };
        });
    }

    /// `x · panelᵀ` into a tile of up to 16 columns, with 8-bit activations.
    pub fn rows_int8(
        &self,
        panel: &Panel<'_>,
        x: Int8Rows<'_>,
        mut tile: TileMut<'_>,
        [panel_scratch, tile_scratch]: [&mut Buffer<f32>; 2],
    ) {
        let rows = tile.rows;
        let enough = x.ints.len() >= (rows + ROW_SLACK) * x.cols;
        assert!(panel.cols == x.cols && enough, "activations");
        assert!(x.scales.len() >= rows * x.cols / BLOCK && x.sums.len() >= rows * x.cols / 16);
        through_full_tile(&mut tile, tile_scratch, |c| {
            // SAFETY: as in `rows_float`.
            unsafe { (self.rows_int8)(panel, x, rows, c, panel_scratch) };
        });
    }

    /// Whether `rows` rows by a matrix go through [`rows_bf16`](Self::rows_bf16) where products
    /// may round.
    #[must_use]
    pub fn takes_bf16(&self, format: WeightFormat, rows: usize) -> bool {
        /// Fewer rows are bound by reading weights, and f32 activations are more exact.
        const MIN_ROWS: usize = 4;
        /// From here on, unpacking a panel of blocks to bf16 once costs less than scaling the
        /// integer sums of each row and block.
        const MIN_ROWS_OF_BLOCKS: usize = 17;
        match (self.isa, format) {
            (Isa::Avx512Bf16 | Isa::Amx, WeightFormat::BF16) | (Isa::Amx, WeightFormat::F16) => {
                rows >= MIN_ROWS
            }
            (Isa::Amx, format) if !is_dense(format) => rows >= MIN_ROWS_OF_BLOCKS,
            _ => false,
        }
    }

    /// `x · panelᵀ` into a tile of up to 16 columns, with bf16 activations and f32 sums.
    ///
    /// # Panics
    /// Where [`takes_bf16`](Self::takes_bf16) says no.
    pub fn rows_bf16(
        &self,
        panel: &Panel<'_>,
        x: Bf16Rows<'_>,
        mut tile: TileMut<'_>,
        [panel_scratch, tile_scratch]: [&mut Buffer<f32>; 2],
    ) {
        let rows = tile.rows;
        let enough = x.data.len() >= (rows + ROW_SLACK) * x.stride;
        assert!(panel.cols == x.stride && enough, "activations");
        assert!(self.takes_bf16(panel.format, usize::MAX), "a format that bf16 products are for");
        let kernel = self.rows_bf16.expect("present where bf16 is taken");
        through_full_tile(&mut tile, tile_scratch, |c| {
            // SAFETY: as in `rows_float`.
            unsafe { kernel(panel, x, rows, c, panel_scratch) };
        });
    }

    /// `c[rows, 16] (+)= a[rows, k] · panel[k, 16]`; `lda` and `ldc` from row to row.
    pub fn gemm(
        &self,
        (a, lda): (&[f32], usize),
        rows: usize,
        panel: &[f32],
        k: usize,
        (c, ldc): (&mut [f32], usize),
        adds: bool,
    ) {
        assert!(rows > 0 && a.len() >= (rows - 1) * lda + k && panel.len() >= k * PANEL);
        assert!(c.len() >= (rows - 1) * ldc + PANEL);
        // SAFETY: the processor has the instruction set, and the bounds are checked above.
        unsafe {
            (self.gemm)((a.as_ptr(), lda), rows, panel.as_ptr(), k, (c.as_mut_ptr(), ldc), adds);
        }
    }

    /// A dense panel `[k][16]` (bf16: `[k / 2][16][2]`) as f32 `[k][16]`.
    pub fn widen(&self, format: WeightFormat, from: &[u8], to: &mut [f32]) {
        assert_eq!(from.len(), to.len() * format.block_bytes(), "one f32 for each element");
        // SAFETY: the processor has the instruction set.
        unsafe { (self.widen)(format, from, to) }
    }
}

/// Runs `body` with a tile of 16 columns: `tile` itself, or where it has fewer a copy.
fn through_full_tile(
    tile: &mut TileMut<'_>,
    scratch: &mut Buffer<f32>,
    body: impl FnOnce((*mut f32, usize)),
) {
    if tile.cols == PANEL {
        return body(tile.as_mut_ptr());
    }
    scratch.grow(tile.rows * PANEL);
    body((scratch.as_mut_ptr(), PANEL));
    for row in 0..tile.rows {
        let cols = tile.cols;
        tile.row(row).copy_from_slice(&scratch[row * PANEL..row * PANEL + cols]);
    }
}

/// The safe face of the elementwise loops.
impl Kernels {
    /// Rounds `x` to 8 bits; a scale for each 32 and a sum for each 16 elements.
    pub fn quantize(&self, x: &[f32], ints: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
        // SAFETY: the processor has the instruction set; so for all below.
        unsafe { (self.elementwise.quantize)(x, ints, scales, sums) }
    }
    /// Rounds `x` to bf16, to nearest even.
    pub fn round_to_bf16(&self, x: &[f32], out: &mut [u16]) {
        // SAFETY: the processor has the instruction set; so for all below.
        unsafe { (self.elementwise.round_to_bf16)(x, out) }
    }
    /// `out = x / rms(x) ∘ gain`.
    pub fn normalize(&self, x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.elementwise.normalize)(x, gain, eps, out) }
    }
    /// `to += x`.
    pub fn add(&self, x: &[f32], to: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.elementwise.add)(x, to) }
    }
    /// `out = activation(gate) ∘ up`.
    pub fn gate(&self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { (self.elementwise.gate)(activation, gate, up, out) }
    }
    /// `x = factor * x`.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        // SAFETY: as above.
        unsafe { (self.elementwise.scale)(x, factor) }
    }
    /// `x = cap * tanh(x / cap)`.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: as above.
        unsafe { (self.elementwise.soft_cap)(x, cap) }
    }
    /// The largest of `x`, or negative infinity; NaN is passed over.
    pub fn max(&self, x: &[f32]) -> f32 {
        // SAFETY: as above.
        unsafe { (self.elementwise.max)(x) }
    }
    /// `x = exp(x - max)`, and the sum of it.
    pub fn exp_sum(&self, x: &mut [f32], max: f32) -> f32 {
        // SAFETY: as above.
        unsafe { (self.elementwise.exp_sum)(x, max) }
    }
    /// The first largest element; `None` where one is NaN or none is finite.
    pub fn argmax(&self, x: &[f32]) -> Option<usize> {
        // SAFETY: as above.
        unsafe { (self.elementwise.argmax)(x) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_indices_are_those_of_the_list() {
        for (index, format) in WeightFormat::ALL.into_iter().enumerate() {
            assert_eq!(for_format!(format, F => F), index);
        }
    }
}

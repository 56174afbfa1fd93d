//! Maps that tell Hopper's tensor copies how a matrix lies, or a plane of the KV cache.

use std::ffi::c_void;

use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys;
use pagedllm_backend::DeviceError;
use pagedllm_core::DType;

use crate::device::check;

/// What the driver makes of either. `kernels/include/pagedllm/hopper.cuh` has the same struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct TensorMap {
    words: [u64; 16],
}

/// Rows that a copy brings, which lie together in the cache.
const BOX_ROWS: usize = 16;
/// Columns and rows of the unit that shared memory is made of: 8 rows of 128 bytes.
pub(crate) const ATOM_COLS: usize = 64;
const ATOM_ROWS: usize = 8;

impl TensorMap {
    /// Whether copies can bring such a plane: whole units of 16-bit elements, and blocks of whole
    /// boxes. `prefill_sm90.cu` asks the same.
    pub fn fits(dtype: DType, head_dim: usize, block_size: usize) -> bool {
        dtype.size() == 2
            && [ATOM_COLS, 2 * ATOM_COLS].contains(&head_dim)
            && block_size.is_multiple_of(BOX_ROWS)
    }

    /// The map of `rows` rows of `head_dim` elements from `address` on. A box is 16 rows: the units
    /// across its first 8 rows, then those across the others, each unit swizzled.
    pub fn plane(
        address: u64,
        rows: usize,
        head_dim: usize,
        dtype: DType,
    ) -> Result<Self, DeviceError> {
        let row_bytes = (head_dim * dtype.size()) as u64;
        let across = head_dim / ATOM_COLS;
        // Columns of a unit, rows of a unit, units across, units down.
        let sizes = [ATOM_COLS as u64, ATOM_ROWS as u64, across as u64, (rows / ATOM_ROWS) as u64];
        let strides = [row_bytes, (ATOM_COLS * 2) as u64, ATOM_ROWS as u64 * row_bytes];
        let box_sizes =
            [ATOM_COLS as u32, ATOM_ROWS as u32, across as u32, (BOX_ROWS / ATOM_ROWS) as u32];
        let ahead = sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
        Self::encode(address, dtype, &sizes, &strides, &box_sizes, ahead)
    }

    /// The map of a matrix `[rows, cols]` of 16-bit elements from `address` on, both multiples of 16
    /// bytes along a row. A box is 64 columns of `box_rows` rows, swizzled; what it holds beyond the
    /// matrix is zeros.
    pub fn matrix(
        address: u64,
        rows: usize,
        cols: usize,
        box_rows: usize,
        dtype: DType,
    ) -> Result<Self, DeviceError> {
        let strides = [(cols * dtype.size()) as u64];
        let box_sizes = [ATOM_COLS as u32, box_rows as u32];
        // More read ahead is slower where few rows are read at once.
        let ahead = sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
        Self::encode(address, dtype, &[cols as u64, rows as u64], &strides, &box_sizes, ahead)
    }

    /// The map of `D` dimensions, the innermost first: their sizes, the bytes from one to the next in
    /// all but the innermost, and the sizes of a box.
    fn encode<const D: usize, const STRIDES: usize>(
        address: u64,
        dtype: DType,
        sizes: &[u64; D],
        strides: &[u64; STRIDES],
        box_sizes: &[u32; D],
        ahead: sys::CUtensorMapL2promotion,
    ) -> Result<Self, DeviceError> {
        const { assert!(STRIDES + 1 == D, "the innermost dimension has no gaps") };
        let kind = match dtype {
            DType::BF16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        };
        let steps = [1u32; D];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the place and the arrays of `D` and `D - 1` entries live for the call; the driver
        // keeps the address as a number.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                kind,
                D as u32,
                address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                box_sizes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                ahead,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check(status, "mapping a matrix")?;
        Ok(Self { words: map.opaque })
    }
}

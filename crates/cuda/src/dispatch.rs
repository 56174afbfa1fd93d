//! Which kernel serves which problem. Pure: names, and the numbers that a launch needs.

use pagedllm_backend::Activation;
use pagedllm_core::DType;

use crate::launch::tensor_map::ATOM_COLS;

/// Head widths of the tensor core kernels.
const MMA_DIMS: [usize; 4] = [64, 96, 128, 256];
/// Widest head of any kernel.
pub(crate) const MAX_HEAD_DIM: usize = 256;
/// Most columns of the product of one row, whose x waits in shared memory.
const MAX_ONE_ROW_INPUTS: usize = 24_000;

/// The part of a kernel's name that says the type.
pub(crate) fn suffix(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::Fp8E4M3 => "fp8",
    }
}

/// Both phases of an attention layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttentionKernels {
    pub decode: String,
    /// Decode that rotates and stores as well.
    pub attend: Option<String>,
    pub prefill: String,
    /// Most threads of a decode block, and the bytes of a tile in a warp's ring.
    pub decode_threads: usize,
    pub decode_tile_bytes: usize,
    pub prefill_threads: usize,
    pub prefill_shared: usize,
    /// Rows (token, head of a group) of a prefill block.
    pub prefill_rows: usize,
    /// Whether the prefill kernel is the one for Hopper: its blocks, one a multiprocessor, share
    /// all items, and it takes maps of the cache.
    pub is_hopper_prefill: bool,
    /// Rows that one decode block takes: query heads of a kv head, of one sequence or of several that
    /// share a range.
    pub decode_rows: Option<usize>,
}

/// The kernels for activations of `dtype`, a cache of `kv_dtype` heads of
/// `head_dim` and `heads_per_kv` query heads for each kv head. `has_hopper` says whether the device
/// is a Hopper and its kernels were built.
pub(crate) fn attention(
    dtype: DType,
    kv_dtype: DType,
    head_dim: usize,
    heads_per_kv: usize,
    has_hopper: bool,
) -> AttentionKernels {
    let same = dtype == kv_dtype;
    let has_tiles = dtype.size() == 2 && (same || kv_dtype == DType::Fp8E4M3);
    let prefill_rows = if head_dim > 128 { 64 } else { 128 };
    if has_tiles && MMA_DIMS.contains(&head_dim) && heads_per_kv <= prefill_rows {
        let name = if same { suffix(dtype).into() } else { format!("{}_fp8", suffix(dtype)) };
        let row = head_dim * 2 + 16;
        let tile = if head_dim > 64 { 32 } else { 64 };
        let kernels = AttentionKernels {
            decode: format!("paged_attention_decode_{name}_d{head_dim}"),
            attend: same.then(|| format!("paged_attention_attend_{name}_d{head_dim}")),
            prefill: format!("paged_attention_prefill_{name}_d{head_dim}"),
            decode_threads: 128,
            // 16 keys and 16 values.
            decode_tile_bytes: 2 * 16 * row,
            prefill_threads: 128,
            // 2 tiles of keys and values, and the queries.
            prefill_shared: (2 * 2 * tile + prefill_rows) * row,
            prefill_rows,
            is_hopper_prefill: false,
            decode_rows: Some(16),
        };
        return if has_hopper && same {
            with_hopper_prefill(kernels, &name, head_dim)
        } else {
            kernels
        };
    }
    let name = format!("{}_{}", suffix(dtype), suffix(kv_dtype));
    AttentionKernels {
        decode: format!("paged_attention_decode_generic_{name}"),
        attend: None,
        prefill: format!("paged_attention_prefill_generic_{name}"),
        decode_threads: 128,
        decode_tile_bytes: 0,
        prefill_threads: 128,
        prefill_shared: 0,
        prefill_rows: 16,
        is_hopper_prefill: false,
        decode_rows: None,
    }
}

/// Replaces the prefill kernel where Hopper has one of its own.
fn with_hopper_prefill(kernels: AttentionKernels, name: &str, head_dim: usize) -> AttentionKernels {
    // Warpgroups that multiply, and tiles of 128 positions in each ring.
    let (warpgroups, stages) = match head_dim {
        64 => (3, 4),
        128 => (2, 2),
        _ => return kernels,
    };
    let row = head_dim * 2;
    AttentionKernels {
        prefill: format!("paged_attention_prefill_sm90_{name}_d{head_dim}"),
        prefill_threads: (warpgroups + 1) * 128,
        // Two tiles of queries, the rings of keys and values, and the barriers.
        prefill_shared: (2 * warpgroups * 64 + 2 * stages * 128) * row + 16 * (2 * stages + 2),
        prefill_rows: warpgroups * 64,
        is_hopper_prefill: true,
        ..kernels
    }
}

/// The kernel of a gated activation.
pub(crate) fn gated(activation: Activation, dtype: DType) -> String {
    let name = match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
    };
    format!("gated_{name}_{}", suffix(dtype))
}

/// Whether the product is that of one row, whose cost is reading the weights.
pub(crate) fn is_one_row(rows: usize, inputs: usize, dtype: DType) -> bool {
    rows == 1 && dtype.size() == 2 && inputs.is_multiple_of(8) && inputs <= MAX_ONE_ROW_INPUTS
}

/// Rows of x that the kernels for few rows are made for; there is one for each. For more rows the
/// library is as fast or faster.
pub(crate) const FEW_ROWS: [usize; 2] = [16, 32];
/// Rows of w of a block of such a kernel; with a gate, half of them are of gate and half of up.
pub(crate) const FEW_ROWS_TILE: usize = 128;
/// Threads of a block: two warpgroups that multiply, and a warp that copies.
const FEW_ROWS_THREADS: usize = 2 * 128 + 32;
/// Bytes of a block's ring. What is copied ahead keeps the memory busy from one kernel to the next.
const FEW_ROWS_RING: usize = 190 * 1024;
/// Stages that the kernel has barriers for.
const FEW_ROWS_MAX_STAGES: usize = 12;

/// How a product of few rows is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FewRowsShape {
    /// Which of `FEW_ROWS`.
    pub kernel: usize,
    /// Blocks that share the columns of a tile.
    pub ranks: usize,
    pub blocks: usize,
    pub threads: usize,
    /// Of the ring, each of 64 columns.
    pub stages: usize,
    /// Bytes of shared memory.
    pub shared: usize,
}

/// The launch of a product of `rows` rows by the kernel for few rows, which writes `outputs` columns or
/// with a gate half as many. `None` where that kernel is not made for it.
pub(crate) fn few_rows(
    rows: usize,
    outputs: usize,
    inputs: usize,
    has_gate: bool,
) -> Option<FewRowsShape> {
    let fits = rows > 1 && outputs.is_multiple_of(8) && inputs.is_multiple_of(8);
    let kernel = FEW_ROWS.iter().position(|&most| fits && rows <= most)?;
    let tiles = if has_gate {
        (outputs / 2).div_ceil(FEW_ROWS_TILE / 2)
    } else {
        outputs.div_ceil(FEW_ROWS_TILE)
    };
    let ranks = few_rows_ranks(tiles, inputs.div_ceil(ATOM_COLS));
    let (stages, shared) = few_rows_ring(FEW_ROWS[kernel]);
    let (blocks, threads) = (tiles * ranks, FEW_ROWS_THREADS);
    Some(FewRowsShape { kernel, ranks, blocks, threads, stages, shared })
}

/// Stages of the ring of a kernel for `rows` rows, and the bytes of shared memory.
pub(crate) fn few_rows_ring(rows: usize) -> (usize, usize) {
    let stage = (FEW_ROWS_TILE + rows) * ATOM_COLS * 2;
    let stages = (FEW_ROWS_RING / stage).min(FEW_ROWS_MAX_STAGES);
    (stages, stages * stage)
}

/// As few ranks as make blocks enough to keep the memory busy, as measured on an H200. Clusters of 4
/// do not fill a device, so some tiles wait for others to end: too long where there are many steps.
fn few_rows_ranks(tiles: usize, steps: usize) -> usize {
    let blocks = if steps > 64 { 64 } else { 96 };
    let mut ranks = 1;
    while ranks < 4 && tiles * ranks < blocks && steps >= 4 * (2 * ranks) {
        ranks *= 2;
    }
    ranks
}

/// Warps of a decode block of attention, and tiles in the ring of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodeShape {
    pub warps: usize,
    pub stages: usize,
}

/// Tiles of the largest decode block: 4 warps with 3 each.
pub(crate) const MAX_DECODE_TILES: usize = 12;

/// As many warps as let all `blocks` run at once, on a device of `num_sms` multiprocessors with room
/// for `tiles` tiles each. Where the blocks take turns anyway, more of them with less ahead.
pub(crate) fn decode_shape(blocks: usize, tiles: usize, num_sms: usize) -> DecodeShape {
    let room = tiles / 3 * num_sms;
    let fits = |warps: &usize| blocks * warps <= room && warps * 3 <= tiles;
    match [4, 2, 1].into_iter().find(fits) {
        Some(warps) => DecodeShape { warps, stages: 3 },
        None => DecodeShape { warps: 2.min(tiles / 2), stages: 2 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_heads_of_known_width_take_the_tensor_cores() {
        let kernels = attention(DType::BF16, DType::BF16, 128, 4, false);
        assert_eq!(kernels.decode, "paged_attention_decode_bf16_d128");
        assert_eq!(kernels.decode_tile_bytes, 8704);
        assert_eq!(kernels.prefill_rows, 128);
        assert_eq!(attention(DType::F16, DType::F16, 256, 1, false).prefill_rows, 64);
        let generic = attention(DType::F32, DType::F32, 128, 4, false);
        assert_eq!(generic.decode, "paged_attention_decode_generic_f32_f32");
        let mixed = attention(DType::BF16, DType::F16, 64, 4, false);
        assert_eq!(mixed.prefill, "paged_attention_prefill_generic_bf16_f16");
        let fp8 = attention(DType::BF16, DType::Fp8E4M3, 128, 4, true);
        assert_eq!(fp8.prefill, "paged_attention_prefill_bf16_fp8_d128");
        assert_eq!(fp8.attend, None);
        assert!(attention(DType::F16, DType::F16, 80, 4, false).decode.contains("generic"));
    }

    #[test]
    fn hopper_has_its_own_prefill_for_some_widths() {
        let kernels = attention(DType::BF16, DType::BF16, 128, 4, true);
        assert!(kernels.is_hopper_prefill);
        assert_eq!(kernels.prefill, "paged_attention_prefill_sm90_bf16_d128");
        assert_eq!((kernels.prefill_rows, kernels.prefill_threads), (128, 384));
        assert_eq!(kernels.prefill_shared, 196_704);
        assert_eq!(kernels.decode, "paged_attention_decode_bf16_d128");
        let narrow = attention(DType::F16, DType::F16, 64, 8, true);
        assert_eq!((narrow.prefill_rows, narrow.prefill_threads), (192, 512));
        assert_eq!(narrow.prefill_shared, 180_384);
        for (dtype, head_dim) in [(DType::BF16, 96), (DType::F16, 256), (DType::F32, 128)] {
            assert_eq!(
                attention(dtype, dtype, head_dim, 4, true),
                attention(dtype, dtype, head_dim, 4, false)
            );
        }
        // Shared memory of a Hopper's block.
        assert!(kernels.prefill_shared.max(narrow.prefill_shared) <= 227 * 1024);
    }

    #[test]
    fn one_row_takes_its_own_product() {
        assert!(is_one_row(1, 4096, DType::BF16));
        assert!(!is_one_row(2, 4096, DType::BF16));
        assert!(!is_one_row(1, 4096, DType::F32));
        assert!(!is_one_row(1, 4100, DType::BF16));
        assert!(!is_one_row(1, 65536, DType::F16));
    }

    #[test]
    fn few_rows_take_as_many_ranks_as_keep_the_memory_busy() {
        let ranks = |outputs, inputs, has_gate| {
            let shape = few_rows(8, outputs, inputs, has_gate).expect("few rows");
            (shape.ranks, shape.blocks)
        };
        // Llama 3.1 8B: the fastest of all that were measured.
        assert_eq!(ranks(6144, 4096, false), (2, 96));
        assert_eq!(ranks(4096, 4096, false), (4, 128));
        assert_eq!(ranks(28672, 4096, true), (1, 224));
        assert_eq!(ranks(4096, 14336, false), (2, 64));
        // Llama 3.2 1B.
        assert_eq!(ranks(3072, 2048, false), (4, 96));
        assert_eq!(ranks(2048, 2048, false), (4, 64));
        assert_eq!(ranks(16384, 2048, true), (1, 128));
        assert_eq!(ranks(2048, 8192, false), (4, 64));
        // Four steps a rank at least, and every output in a tile.
        assert_eq!(ranks(136, 7 * 64, false), (1, 2));
        assert_eq!(ranks(136, 7 * 64 + 8, false), (2, 4));
        assert_eq!(ranks(136, 15 * 64 + 8, false), (4, 8));
        assert_eq!(ranks(2 * 72, 64, true), (1, 2));
    }

    #[test]
    fn few_rows_have_a_kernel_and_a_ring() {
        let kernel = |rows| few_rows(rows, 4096, 4096, false).map(|shape| FEW_ROWS[shape.kernel]);
        assert_eq!([2, 16, 17, 32].map(kernel), [16, 16, 32, 32].map(Some));
        assert_eq!([0, 1, 33].map(kernel), [None; 3]);
        assert_eq!(few_rows(8, 4100, 4096, false), None);
        assert_eq!(few_rows(8, 4096, 4100, false), None);
        assert_eq!(FEW_ROWS.map(|rows| few_rows_ring(rows).0), [10, 9]);
        for rows in FEW_ROWS {
            // The sums take the ring's place: rows of a tile's outputs and 4 more.
            assert!(few_rows_ring(rows).1 >= rows * (FEW_ROWS_TILE + 4) * 4);
        }
    }

    #[test]
    fn decode_blocks_shrink_until_all_run_at_once() {
        let shape = |blocks| {
            let DecodeShape { warps, stages } = decode_shape(blocks, 26, 132);
            (warps, stages)
        };
        assert_eq!(shape(8), (4, 3));
        assert_eq!(shape(264), (4, 3));
        assert_eq!(shape(528), (2, 3));
        assert_eq!(shape(1056), (1, 3));
        assert_eq!(shape(1057), (2, 2));
        // A device with little shared memory.
        assert_eq!(decode_shape(8, 6, 80), DecodeShape { warps: 2, stages: 3 });
        assert_eq!(decode_shape(1000, 6, 80), DecodeShape { warps: 2, stages: 2 });
    }
}

//! Which kernel serves which problem. Pure: names, and the numbers that a launch needs.

use pagedllm_backend::Activation;
use pagedllm_core::DType;

/// Head widths of the tensor core kernels.
const MMA_DIMS: [usize; 4] = [64, 96, 128, 256];
/// Widest head of any kernel.
pub(crate) const MAX_HEAD_DIM: usize = 256;
/// Most rows that the skinny products take.
pub(crate) const MAX_SKINNY_ROWS: usize = 16;

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
    pub prefill: String,
    pub decode_threads: usize,
    pub decode_shared: usize,
    pub prefill_threads: usize,
    pub prefill_shared: usize,
    /// Rows (token, head of a group) of a prefill block.
    pub prefill_rows: usize,
    /// Query heads that one decode block takes.
    pub decode_heads: Option<usize>,
}

/// The kernels for activations of `dtype`, a cache of `kv_dtype` heads of
/// `head_dim` and `heads_per_kv` query heads for each kv head.
pub(crate) fn attention(
    dtype: DType,
    kv_dtype: DType,
    head_dim: usize,
    heads_per_kv: usize,
) -> AttentionKernels {
    let is_16_bit = dtype == kv_dtype && dtype.size() == 2;
    let (warps, tile) = if head_dim > 128 { (4, 32) } else { (8, 64) };
    if is_16_bit && MMA_DIMS.contains(&head_dim) && heads_per_kv <= warps * 16 {
        let name = suffix(dtype);
        let row = head_dim * 2 + 16;
        return AttentionKernels {
            decode: format!("paged_attention_decode_{name}_d{head_dim}"),
            prefill: format!("paged_attention_prefill_{name}_d{head_dim}"),
            decode_threads: 128,
            // 4 warps, 2 tiles each of 16 keys and 16 values.
            decode_shared: 4 * 2 * 2 * 16 * row,
            prefill_threads: warps * 32,
            prefill_shared: 2 * 2 * tile * row,
            prefill_rows: warps * 16,
            decode_heads: Some(16),
        };
    }
    let name = format!("{}_{}", suffix(dtype), suffix(kv_dtype));
    AttentionKernels {
        decode: format!("paged_attention_decode_generic_{name}"),
        prefill: format!("paged_attention_prefill_generic_{name}"),
        decode_threads: 128,
        decode_shared: 0,
        prefill_threads: 128,
        prefill_shared: 0,
        prefill_rows: 16,
        decode_heads: None,
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

/// A skinny product: its kernel, and the weight rows that a block takes. `None` where the library
/// does it.
pub(crate) fn skinny(
    rows: usize,
    outputs: usize,
    inputs: usize,
    dtype: DType,
    num_sms: usize,
) -> Option<SkinnyShape> {
    if rows > MAX_SKINNY_ROWS || dtype.size() != 2 || !inputs.is_multiple_of(8) {
        return None;
    }
    let groups = rows.div_ceil(8);
    // Wide blocks read x less often; narrow ones fill the device where there are few outputs.
    let tiles = if groups == 1 && outputs.div_ceil(32) < 2 * num_sms { 1 } else { 2 };
    Some(SkinnyShape { tiles, groups })
}

/// Tiles of 16 weight rows and groups of 8 rows of x of a skinny product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SkinnyShape {
    pub tiles: usize,
    pub groups: usize,
}

impl SkinnyShape {
    /// Every shape that is built.
    pub const ALL: [Self; 3] =
        [Self { tiles: 1, groups: 1 }, Self { tiles: 2, groups: 1 }, Self { tiles: 2, groups: 2 }];

    /// The kernel for these types.
    pub fn name(self, dtype: DType, out: DType) -> String {
        let Self { tiles, groups } = self;
        format!("linear_skinny_{}_{}_t{tiles}_g{groups}", suffix(dtype), suffix(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_heads_of_known_width_take_the_tensor_cores() {
        let kernels = attention(DType::BF16, DType::BF16, 128, 4);
        assert_eq!(kernels.decode, "paged_attention_decode_bf16_d128");
        assert_eq!(kernels.decode_shared, 69_632);
        assert_eq!(kernels.prefill_rows, 128);
        assert_eq!(attention(DType::F16, DType::F16, 256, 1).prefill_rows, 64);
        let generic = attention(DType::F32, DType::F32, 128, 4);
        assert_eq!(generic.decode, "paged_attention_decode_generic_f32_f32");
        let mixed = attention(DType::BF16, DType::F16, 64, 4);
        assert_eq!(mixed.prefill, "paged_attention_prefill_generic_bf16_f16");
        assert!(attention(DType::F16, DType::F16, 80, 4).decode.contains("generic"));
    }

    #[test]
    fn few_rows_take_the_skinny_products() {
        assert_eq!(skinny(17, 4096, 4096, DType::BF16, 132), None);
        assert_eq!(skinny(1, 4096, 4096, DType::F32, 132), None);
        assert_eq!(skinny(1, 4096, 4100, DType::BF16, 132), None);
        let narrow = skinny(1, 4096, 4096, DType::BF16, 132).expect("skinny");
        assert_eq!(narrow.name(DType::BF16, DType::F32), "linear_skinny_bf16_f32_t1_g1");
        assert_eq!(skinny(1, 28672, 4096, DType::BF16, 132).map(|s| s.tiles), Some(2));
        assert_eq!(skinny(9, 512, 4096, DType::BF16, 132).map(|s| s.groups), Some(2));
    }
}

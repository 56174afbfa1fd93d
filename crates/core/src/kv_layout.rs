//! Shape of the KV cache.

use crate::DType;

/// What one token of one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Token slots in a block.
    pub block_size: usize,
    /// Key/value heads of this rank.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Element type.
    pub dtype: DType,
}

impl KvLayout {
    /// Bytes that one token takes in one layer: keys and values.
    #[must_use]
    pub const fn bytes_per_token(&self) -> usize {
        2 * self.num_kv_heads * self.head_dim * self.dtype.size()
    }
}

/// Layers whose cache has one shape and one life time; each group has its own block tables.
///
/// All groups draw from one pool, so a block of every group takes the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Indices of the layers in the model.
    pub layers: Vec<usize>,
    /// What a token keeps in each.
    pub layout: KvLayout,
    /// Only the last `window` tokens are read; older blocks may go.
    pub window: Option<usize>,
}

impl KvGroup {
    /// Bytes of one block over all layers of the group.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.layers.len() * self.layout.block_size * self.layout.bytes_per_token()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_2_7b_takes_half_a_mebibyte_a_token() {
        let layout =
            KvLayout { block_size: 16, num_kv_heads: 32, head_dim: 128, dtype: DType::F16 };
        let group = KvGroup { layers: (0..32).collect(), layout, window: None };
        assert_eq!(group.block_bytes(), 16 * 512 * 1024);
    }
}

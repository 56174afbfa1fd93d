//! All KV blocks of the device.
//!
//! A group is planes, two a layer (keys, then values); a plane is `[blocks, kv_heads, block_size,
//! dim]`, so the tokens of one head in one block lie together, and what one layer reads lies close.

use std::sync::Arc;

use pagedllm_backend::DeviceError;
use pagedllm_core::KvGroup;

use crate::device::{Device, DeviceBuffer};
use crate::launch::tensor_map::TensorMap;

/// The KV cache.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) groups: Vec<Group>,
}

/// Blocks of one group of layers.
#[derive(Debug)]
pub(crate) struct Group {
    pub buffer: DeviceBuffer,
    /// Two for each layer.
    pub planes: usize,
    pub plane_bytes: usize,
    pub block_bytes: usize,
    pub block_size: usize,
    /// The planes as a Hopper's tensor copies see them, where it copies from them.
    maps: Vec<TensorMap>,
}

impl KvCache {
    pub(crate) fn new(
        device: &Arc<Device>,
        groups: &[KvGroup],
        num_blocks: usize,
    ) -> Result<Self, DeviceError> {
        let make = |group: &KvGroup| -> Result<Group, DeviceError> {
            let layout = group.layout;
            let planes = 2 * group.layers.len();
            let block_bytes = layout.block_size * layout.bytes_per_token() / 2;
            let plane_bytes = num_blocks * block_bytes;
            let buffer = DeviceBuffer::new(device, planes * plane_bytes, "the KV cache")?;
            let block_size = layout.block_size;
            let mut group =
                Group { buffer, planes, plane_bytes, block_bytes, block_size, maps: Vec::new() };
            if device.capability == 90 && TensorMap::fits(layout.dtype, layout.head_dim, block_size)
            {
                let rows = num_blocks * layout.num_kv_heads * block_size;
                group.maps = (0..planes)
                    .map(|plane| {
                        let address = group.buffer.address() + (plane * plane_bytes) as u64;
                        TensorMap::plane(address, rows, layout.head_dim, layout.dtype)
                    })
                    .collect::<Result<_, _>>()?;
            }
            Ok(group)
        };
        Ok(Self { groups: groups.iter().map(make).collect::<Result<_, _>>()? })
    }
}

impl Group {
    /// Address of the keys of a layer of the group.
    pub fn keys(&self, layer: usize) -> u64 {
        self.buffer.address() + (2 * layer * self.plane_bytes) as u64
    }
    /// Address of its values.
    pub fn values(&self, layer: usize) -> u64 {
        self.keys(layer) + self.plane_bytes as u64
    }
    /// Maps of its keys and values; without meaning where there are none.
    pub fn maps(&self, layer: usize) -> [TensorMap; 2] {
        [2 * layer, 2 * layer + 1].map(|plane| self.maps.get(plane).copied().unwrap_or_default())
    }
}

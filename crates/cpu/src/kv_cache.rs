//! Keys and values of all blocks.
//!
//! A layer is `[N, K]` cells, one for each block and key/value head. A cell is cut into strips of
//! 16 tokens, first the strips of keys, then those of values, and both are panels for the same
//! product as weights: keys `[D][16]` (a column is a token), values `[D / 16][16][16]` (a column
//! is a place in the head). In bf16 pairs of rows lie side by side, as in packed weights. Blocks
//! of no multiple of 16 tokens and heads of no multiple of 16 are padded.

use half::{bf16, f16};
use pagedllm_backend::DeviceError;
use pagedllm_core::{BlockCopy, DType, KvGroup, WeightFormat};

use crate::workspace::Buffer;

/// Tokens in a strip, and places of a head in a tile of values.
pub const STRIP: usize = 16;

/// Shape of a cell.
#[derive(Clone, Copy, Debug)]
pub struct CellShape {
    /// Token slots in a block.
    pub block_size: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Elements, as a dense format.
    pub format: WeightFormat,
}

impl CellShape {
    /// Strips in a block.
    #[must_use]
    pub const fn strips(&self) -> usize {
        self.block_size.div_ceil(STRIP)
    }
    /// Rows of a strip of keys: the head's width, even.
    #[must_use]
    pub const fn key_rows(&self) -> usize {
        self.head_dim.next_multiple_of(2)
    }
    /// Tiles of a strip of values.
    #[must_use]
    pub const fn value_tiles(&self) -> usize {
        self.head_dim.div_ceil(STRIP)
    }
    const fn element_bytes(&self) -> usize {
        self.format.block_bytes()
    }
    const fn key_strip_bytes(&self) -> usize {
        self.key_rows() * STRIP * self.element_bytes()
    }
    const fn value_strip_bytes(&self) -> usize {
        self.value_tiles() * STRIP * STRIP * self.element_bytes()
    }
    const fn cell_bytes(&self) -> usize {
        self.strips() * (self.key_strip_bytes() + self.value_strip_bytes())
    }
    /// Bytes of one block in one layer.
    #[must_use]
    pub const fn block_bytes(&self) -> usize {
        self.num_kv_heads * self.cell_bytes()
    }

    /// Keys and values of strip `strip` of a block's head, out of a layer.
    #[must_use]
    pub fn strip<'a>(
        &self,
        layer: &'a [u8],
        block: usize,
        kv_head: usize,
        strip: usize,
    ) -> (&'a [u8], &'a [u8]) {
        let cell = block * self.block_bytes() + kv_head * self.cell_bytes();
        let keys = cell + strip * self.key_strip_bytes();
        let values =
            cell + self.strips() * self.key_strip_bytes() + strip * self.value_strip_bytes();
        (
            &layer[keys..keys + self.key_strip_bytes()],
            &layer[values..values + self.value_strip_bytes()],
        )
    }

    /// Stores one token's keys and values, `[K, D]` each, at `offset` of `block`'s bytes.
    pub fn store(&self, block: &mut [u8], offset: usize, keys: &[f32], values: &[f32]) {
        match self.format {
            WeightFormat::F16 => {
                self.store_as(block, offset, keys, values, |x| f16::from_f32(x).to_le_bytes())
            }
            WeightFormat::BF16 => {
                self.store_as(block, offset, keys, values, |x| bf16::from_f32(x).to_le_bytes())
            }
            _ => self.store_as(block, offset, keys, values, f32::to_le_bytes),
        }
    }

    fn store_as<const LEN: usize>(
        &self,
        block: &mut [u8],
        offset: usize,
        keys: &[f32],
        values: &[f32],
        bytes: impl Fn(f32) -> [u8; LEN],
    ) {
        let pair = if self.format == WeightFormat::BF16 { 2 } else { 1 };
        let (strip, token) = (offset / STRIP, offset % STRIP);
        let heads = keys.chunks_exact(self.head_dim).zip(values.chunks_exact(self.head_dim));
        for ((keys, values), cell) in heads.zip(block.chunks_exact_mut(self.cell_bytes())) {
            let (key_strips, value_strips) =
                cell.split_at_mut(self.strips() * self.key_strip_bytes());
            let key_strip = &mut key_strips[strip * self.key_strip_bytes()..];
            for (d, &key) in keys.iter().enumerate() {
                let index = (d / pair * STRIP + token) * pair + d % pair;
                key_strip[index * LEN..(index + 1) * LEN].copy_from_slice(&bytes(key));
            }
            let value_strip = &mut value_strips[strip * self.value_strip_bytes()..];
            for (tile, values) in values.chunks(STRIP).enumerate() {
                for (d, &value) in values.iter().enumerate() {
                    let within = (token / pair * STRIP + d) * pair + token % pair;
                    let index = tile * STRIP * STRIP + within;
                    value_strip[index * LEN..(index + 1) * LEN].copy_from_slice(&bytes(value));
                }
            }
        }
    }
}

/// All blocks of all groups.
pub struct KvCache {
    /// By group.
    pub groups: Vec<GroupCache>,
}

/// All blocks of one group.
pub struct GroupCache {
    /// Shape of its cells.
    pub shape: CellShape,
    /// By layer.
    pub layers: Vec<Buffer<u8>>,
}

impl KvCache {
    /// Reserves `num_blocks` blocks for each group. Memory is taken as blocks are written.
    ///
    /// # Errors
    /// Out of memory, or an element type that is not supported.
    pub fn new(groups: &[KvGroup], num_blocks: usize) -> Result<Self, DeviceError> {
        let mut all = Vec::with_capacity(groups.len());
        let needed_bytes: u64 =
            groups.iter().map(|group| group.block_bytes() as u64 * num_blocks as u64).sum();
        let free_bytes = crate::workspace::available_bytes();
        if needed_bytes > free_bytes {
            let what = "the KV cache".to_owned();
            return Err(DeviceError::OutOfMemory { what, needed_bytes, free_bytes });
        }
        for group in groups {
            let layout = group.layout;
            let format = match layout.dtype {
                DType::F32 => WeightFormat::F32,
                DType::F16 => WeightFormat::F16,
                DType::BF16 => WeightFormat::BF16,
                other => {
                    return Err(DeviceError::Unsupported(format!("a KV cache of {other}")));
                }
            };
            let shape = CellShape {
                block_size: layout.block_size,
                num_kv_heads: layout.num_kv_heads,
                head_dim: layout.head_dim,
                format,
            };
            let layer = || Buffer::new(num_blocks * shape.block_bytes(), "the KV cache");
            let layers = group.layers.iter().map(|_| layer()).collect::<Result<_, _>>()?;
            all.push(GroupCache { shape, layers });
        }
        Ok(Self { groups: all })
    }

    /// Copies whole blocks, in order.
    pub fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        for copy in copies {
            for group in &mut self.groups {
                let bytes = group.shape.block_bytes();
                let source = copy.source.index() * bytes;
                for layer in &mut group.layers {
                    layer.copy_within(source..source + bytes, copy.target.index() * bytes);
                }
            }
        }
    }

    /// Fills every block with NaN, so that a read of a slot that was not written shows.
    pub fn poison(&mut self) {
        for group in &mut self.groups {
            for layer in &mut group.layers {
                layer.fill(0xff);
            }
        }
    }
}

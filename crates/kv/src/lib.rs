//! KV blocks: who holds which, and which can be reused as a prefix.
//!
//! A [`BlockPool`] deals in block ids and never touches device memory. A sequence holds
//! [`SequenceBlocks`]: one [`BlockTable`] for each group of layers. No clock, no lock, no device.

#![forbid(unsafe_code)]

mod block_pool;
mod block_table;
mod free_list;
mod shape;

pub use block_pool::{BlockPool, OutOfBlocks, PoolStats};
pub use block_table::{BlockTable, SequenceBlocks};
pub use shape::KvShape;

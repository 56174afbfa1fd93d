//! The CPU backend: packed weights, inner loops for each instruction set, and a pool of threads.
//!
//! Matrices are multiplied in the format that their file has; no widened copy of the model
//! exists. [`CpuDType::Float32`] keeps activations in f32 and weights exact; [`CpuDType::Fast`]
//! rounds the activations of block formats to 8 bits. The instruction set is chosen at start and
//! can be forced.
//!
//! It knows no model, no scheduler and no text.

mod attention;
mod backend;
mod kv_cache;
mod linear;
mod probe;
mod rope;
mod sampler;
mod simd;
#[cfg(test)]
mod testing;
mod threads;
mod workspace;

pub use attention::AttentionLayer;
pub use backend::{CpuBackend, CpuNorm, CpuOptions, CpuStep, physical_cores};
pub use kv_cache::KvCache;
pub use linear::{CpuDType, Linear};
pub use simd::Isa;
pub use workspace::Tensor;

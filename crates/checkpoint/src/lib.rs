//! Weights at rest: GGUF files and Hugging Face directories, behind one view.
//!
//! A [`Checkpoint`] maps its files, checks everything that they claim about themselves, and hands
//! out [`WeightView`](pagedllm_core::WeightView)s that borrow from the mapping. Both formats look
//! alike from outside: tensors carry their Hugging Face names, rows are in Hugging Face order, and
//! one [`ModelConfig`] describes the model. The crate knows nothing of devices, of models and of
//! how text becomes tokens.
//!
//! # Invariants
//! 1. No file can make this crate panic, recurse without bound, or allocate more than a small
//!    multiple of the file's own size (checked by random mutations in `tests/` and by `fuzz/`).
//! 2. A tensor that [`Checkpoint::tensor`] returns holds exactly `rows x row_bytes(cols)` bytes.
//! 3. Damage is an error when the checkpoint is opened, never wrong numbers later.
//! 4. `mmap.rs` alone is unsafe; its contract is that nobody changes a file while it is mapped.

mod checkpoint;
mod config;
mod dummy;
mod error;
mod fields;
mod gguf;
mod gguf_config;
mod gguf_names;
mod gguf_vocab;
mod hf_config;
mod hf_names;
mod hf_rope;
mod mmap;
mod open;
mod quote;
mod safetensors;

pub use checkpoint::{Checkpoint, CheckpointFormat, TokenizerFiles};
pub use config::{Activation, ModelConfig, RopeConfig, RopeScaling, SamplingDefaults};
pub use error::CheckpointError;

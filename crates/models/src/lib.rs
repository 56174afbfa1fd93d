//! Model architectures, written in backend verbs.
//!
//! A model holds weights only; everything that changes between steps is an argument. It depends
//! on the step through `&B::Step` alone, so a backend may record `forward` once and replay it.
//! Adding an architecture takes one file and one line of [`load`].

mod llama;
mod parts;
mod rope;

use pagedllm_backend::{Backend, DeviceError, WorkspaceSpec};
use pagedllm_checkpoint::{Checkpoint, CheckpointError, ModelConfig};
use pagedllm_core::{DType, KvGroup, KvLayout, RankId};

pub use rope::rope_of;

/// A model on one rank's device.
pub trait Model<B: Backend>: Send {
    /// Hidden states `[R, hidden]` of the rows that go to the head. Runs inside `Backend::run`.
    fn forward(&self, b: &mut B, kv: &mut B::KvCache, step: &B::Step) -> B::Tensor;
    /// Logits `[R, V]` of hidden rows.
    fn head(&self, b: &mut B, hidden: &B::Tensor, step: &B::Step) -> B::Tensor;
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files are wrong, or lack something.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No architecture of this name is built.
    #[error("architecture `{name}` is not supported; known are {}", known.join(", "))]
    UnsupportedArchitecture {
        /// Name in the checkpoint.
        name: String,
        /// Names that load.
        known: Vec<&'static str>,
    },
    /// The configuration asks for something that is not built.
    #[error("the model's {field} is not supported: {reason}")]
    UnsupportedConfig {
        /// Field of the configuration.
        field: &'static str,
        /// What it says, and what would load.
        reason: String,
    },
    /// The ranks can't share the model.
    #[error("{count} {what} can't be shared by {world} ranks")]
    UnevenSplit {
        /// What does not divide.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// Ranks.
        world: usize,
    },
    /// The caller's progress callback said to stop.
    #[error("loading was cancelled")]
    Cancelled,
}

/// Class names that load.
pub const ARCHITECTURES: [&str; 2] = ["LlamaForCausalLM", "MistralForCausalLM"];

/// What the load of one rank depends on beside the files.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// This rank, and how many share the model.
    pub rank: RankId,
    /// Longest sequence that will run: the size of rope tables.
    pub max_model_len: usize,
}

/// Told after each tensor: bytes done so far. Returns whether to go on.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Loads a model onto a device, tensor by tensor from the mapped files. Where the checkpoint has
/// a configuration only, weights are made up and norms change nothing.
///
/// # Errors
/// See [`LoadError`].
pub fn load<B: Backend>(
    b: &mut B,
    checkpoint: &Checkpoint,
    options: LoadOptions,
    progress: Progress<'_>,
) -> Result<Box<dyn Model<B>>, LoadError> {
    match checkpoint.config().architecture.as_str() {
        "LlamaForCausalLM" | "MistralForCausalLM" => {
            Ok(Box::new(llama::Llama::load(b, checkpoint, options, progress)?))
        }
        name => Err(LoadError::UnsupportedArchitecture {
            name: name.to_owned(),
            known: ARCHITECTURES.to_vec(),
        }),
    }
}

/// KV groups of one rank: layers with the same window share a group.
///
/// # Errors
/// If the key/value heads can't be shared by the ranks.
pub fn kv_groups(
    config: &ModelConfig,
    world: usize,
    block_size: usize,
    dtype: DType,
) -> Result<Vec<KvGroup>, LoadError> {
    let num_kv_heads = share("key/value heads", config.num_kv_heads, world)?;
    let layout = KvLayout { block_size, num_kv_heads, head_dim: config.head_dim, dtype };
    let windows = [None, config.sliding_window];
    let groups: Vec<KvGroup> = windows
        .into_iter()
        .take(if config.sliding_window.is_some() { 2 } else { 1 })
        .map(|window| KvGroup {
            layers: (0..config.num_layers)
                .filter(|&layer| config.windowed_layers[layer] == window.is_some())
                .collect(),
            layout,
            window,
        })
        .filter(|group| !group.layers.is_empty())
        .collect();
    if groups.len() > 1 && groups[0].layers.len() != groups[1].layers.len() {
        return Err(LoadError::UnsupportedConfig {
            field: "layer_types",
            reason: format!(
                "{} full and {} windowed layers; the counts must be equal",
                groups[0].layers.len(),
                groups[1].layers.len()
            ),
        });
    }
    Ok(groups)
}

/// Sizes of the workspace for a model on one rank.
#[must_use]
pub fn workspace(config: &ModelConfig, world: usize, limits: WorkspaceLimits) -> WorkspaceSpec {
    let qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim / world;
    let gate_up = 2 * config.intermediate_size / world;
    WorkspaceSpec {
        max_num_batched_tokens: limits.max_num_batched_tokens,
        max_num_seqs: limits.max_num_seqs,
        max_logit_rows: limits.max_logit_rows,
        max_model_len: limits.max_model_len,
        block_size: limits.block_size,
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        max_cols: qkv.max(gate_up),
    }
}

/// Limits of a step that the workspace must hold.
#[derive(Clone, Copy, Debug)]
pub struct WorkspaceLimits {
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Most sequences in a step.
    pub max_num_seqs: usize,
    /// Most logit rows in a step.
    pub max_logit_rows: usize,
    /// Longest sequence.
    pub max_model_len: usize,
    /// Token slots in a block.
    pub block_size: usize,
}

/// This rank's share of `count` things.
pub(crate) fn share(what: &'static str, count: usize, world: usize) -> Result<usize, LoadError> {
    if count.is_multiple_of(world) {
        Ok(count / world)
    } else {
        Err(LoadError::UnevenSplit { what, count, world })
    }
}

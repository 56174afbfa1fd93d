//! What a model file holds, without loading it.

use std::collections::BTreeMap;
use std::path::Path;

use pagedllm_checkpoint::{Checkpoint, CheckpointFormat};
use pagedllm_core::DType;

use crate::Error;

/// A model file or directory, described.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// Kind of the weight files.
    pub format: CheckpointFormat,
    /// Class name of the architecture.
    pub architecture: String,
    /// Weights in all.
    pub num_parameters: u64,
    /// Bytes of all tensors as stored.
    pub weight_bytes: u64,
    /// Tensors of each weight format.
    pub tensors: Vec<TensorCount>,
    /// Decoder layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the logits.
    pub vocab_size: usize,
    /// Query heads, key/value heads, head width.
    pub heads: (usize, usize, usize),
    /// Positions that the model can serve.
    pub context_length: usize,
    /// Bytes that one token takes in a 16-bit KV cache.
    pub kv_bytes_per_token: u64,
    /// Whether text can be encoded without another file.
    pub has_tokenizer: bool,
    /// The file's own metadata, long values cut.
    pub metadata: Vec<(String, String)>,
}

/// Tensors of one weight format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorCount {
    /// The format's name.
    pub format: String,
    /// How many tensors have it.
    pub count: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Describes a GGUF file or a model directory.
///
/// # Errors
/// The files are wrong.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let wrong = |error: pagedllm_checkpoint::CheckpointError| Error::Model(error.to_string());
    let checkpoint = Checkpoint::open(path).map_err(wrong)?;
    let config = checkpoint.config();
    let mut num_parameters = 0;
    let mut tensors: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).map_err(wrong)?;
        num_parameters += (tensor.rows * tensor.cols) as u64;
        let entry = tensors.entry(tensor.format.to_string()).or_default();
        entry.0 += 1;
        entry.1 += tensor.data.len() as u64;
    }
    let kv_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim;
    Ok(Inspection {
        format: checkpoint.format(),
        architecture: config.architecture.clone(),
        num_parameters,
        weight_bytes: checkpoint.total_bytes(),
        tensors: tensors
            .into_iter()
            .map(|(format, (count, bytes))| TensorCount { format, count, bytes })
            .collect(),
        num_layers: config.num_layers,
        hidden_size: config.hidden_size,
        vocab_size: config.vocab_size,
        heads: (config.num_heads, config.num_kv_heads, config.head_dim),
        context_length: config.context_length(),
        kv_bytes_per_token: (kv_token * DType::BF16.size()) as u64,
        has_tokenizer: checkpoint.vocab_spec().is_some()
            || checkpoint.tokenizer_files().tokenizer.is_some(),
        metadata: checkpoint.metadata().to_vec(),
    })
}

//! A configuration without weights.

use std::collections::BTreeMap;
use std::path::Path;

use crate::checkpoint::{CheckpointFormat, Parts};
use crate::hf_config::{HfConfig, TensorFacts};
use crate::{CheckpointError, ModelConfig, open};

const CONFIG: &str = "config.json";

/// Reads the configuration of what is at `path`; a config.json wins over weight files beside it.
pub(crate) fn path(path: &Path) -> Result<Parts, CheckpointError> {
    let is_config = path.file_name().is_some_and(|name| name == CONFIG) && path.is_file();
    let directory = if is_config { path.parent().unwrap_or(Path::new("")) } else { path };
    if directory.is_dir()
        && let Some(config) = open::json_file(directory, CONFIG)?
    {
        return from_config(directory, &config);
    }
    let stored = open::path(path)?;
    Ok(Parts {
        format: CheckpointFormat::Dummy,
        files: Vec::new(),
        tensors: BTreeMap::new(),
        ..stored
    })
}

fn from_config(directory: &Path, config: &open::JsonObject) -> Result<Parts, CheckpointError> {
    let generation = open::json_file(directory, "generation_config.json")?;
    let facts = TensorFacts { dtype: None, has_attention_bias: false, has_mlp_bias: false };
    Ok(Parts {
        config: HfConfig::new(config)?.read(generation.as_ref(), &facts)?,
        format: CheckpointFormat::Dummy,
        files: Vec::new(),
        tensors: BTreeMap::new(),
        tokenizer_files: open::tokenizer_files(directory),
        vocab: None,
        metadata: open::shown_config(config),
    })
}

/// Whether a model of this configuration has the tensor. Asked for what is optional: biases.
pub(crate) fn contains(config: &ModelConfig, name: &str) -> bool {
    let is_part = |part: &str| name.contains(part);
    name.ends_with(".bias")
        && (config.attention_bias && is_part(".self_attn.") || config.mlp_bias && is_part(".mlp."))
}

//! One view over both formats.

use std::path::{Path, PathBuf};

use pagedllm_core::{VocabSpec, WeightView};

use crate::{CheckpointError, ModelConfig};

/// Kind of weight file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointFormat {
    /// One GGUF file, or its splits.
    Gguf,
    /// A Hugging Face directory of safetensors files.
    Safetensors,
}

/// Text files beside the weights, those that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Option<PathBuf>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<PathBuf>,
    /// `chat_template.jinja`.
    pub chat_template: Option<PathBuf>,
    /// `generation_config.json`.
    pub generation_config: Option<PathBuf>,
}

/// An opened checkpoint. `Send + Sync`; owns its mappings.
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    format: CheckpointFormat,
    tokenizer_files: TokenizerFiles,
    vocab: Option<VocabSpec>,
    metadata: Vec<(String, String)>,
}

impl Checkpoint {
    /// Opens a `.gguf` file, or a directory with config.json and safetensors, or with one GGUF.
    ///
    /// # Errors
    /// Whatever is wrong with the files; see [`CheckpointError`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Err(CheckpointError::NotACheckpoint {
            path: path.to_owned(),
            reason: "no reader is built yet".into(),
        })
    }

    /// The model's shape and constants.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Names of all tensors, as Hugging Face has them, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// The tensor `name`, in Hugging Face's row order.
    ///
    /// # Errors
    /// If there is none, or if it is no matrix or vector of a supported format.
    pub fn tensor(&self, name: &str) -> Result<WeightView<'_>, CheckpointError> {
        Err(CheckpointError::NoSuchTensor { name: name.into() })
    }

    /// [`tensor`](Self::tensor), which must be `rows x cols`; a vector is one row.
    ///
    /// # Errors
    /// Those of `tensor`, and `ShapeMismatch`.
    pub fn tensor_of(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<WeightView<'_>, CheckpointError> {
        let view = self.tensor(name)?;
        if (view.rows, view.cols) != (rows, cols) {
            return Err(CheckpointError::ShapeMismatch {
                name: view.name,
                rows: view.rows,
                cols: view.cols,
                want_rows: rows,
                want_cols: cols,
            });
        }
        Ok(view)
    }

    /// Drops the mapped pages of a tensor that was packed for a device, so that the host does not
    /// hold it twice. The tensor stays readable; its pages come back from the file.
    pub fn release(&self, name: &str) {
        let _ = name;
    }

    /// The vocabulary that a GGUF carries.
    #[must_use]
    pub fn vocab_spec(&self) -> Option<&VocabSpec> {
        self.vocab.as_ref()
    }

    /// Tokenizer files beside the weights.
    #[must_use]
    pub fn tokenizer_files(&self) -> &TokenizerFiles {
        &self.tokenizer_files
    }

    /// Kind of the weight files.
    #[must_use]
    pub fn format(&self) -> CheckpointFormat {
        self.format
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        0
    }

    /// The file's own metadata for people: key and value in file order, long values cut.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }
}

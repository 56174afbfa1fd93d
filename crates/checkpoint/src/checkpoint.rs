//! One view over both formats.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagedllm_core::{VocabSpec, WeightFormat, WeightView};

use crate::mmap::FileBytes;
use crate::quote::quote;
use crate::{CheckpointError, ModelConfig, dummy, open};

/// Kind of weight file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointFormat {
    /// One GGUF file, or its splits.
    Gguf,
    /// A Hugging Face directory of safetensors files.
    Safetensors,
    /// A configuration without weights; see [`Checkpoint::open_dummy`].
    Dummy,
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

/// An opened checkpoint. `Send + Sync`; clones share the mappings.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    parts: Arc<Parts>,
}

/// What opening gathers.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: ModelConfig,
    pub(crate) format: CheckpointFormat,
    pub(crate) files: Vec<FileBytes>,
    /// By Hugging Face name.
    pub(crate) tensors: BTreeMap<String, Entry>,
    pub(crate) tokenizer_files: TokenizerFiles,
    pub(crate) vocab: Option<VocabSpec>,
    pub(crate) metadata: Vec<(String, String)>,
}

/// Where a tensor lies, and how it is to be read.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Index into the files.
    pub(crate) file: usize,
    /// Bytes of the file; inside it, since opening checked that.
    pub(crate) range: Range<usize>,
    /// Format, rows and columns, or why it can't be a weight.
    pub(crate) layout: Result<(WeightFormat, usize, usize), String>,
    /// Heads whose rows are in the order of interleaved pairs, which reading undoes.
    pub(crate) interleaved_heads: Option<usize>,
}

impl Checkpoint {
    /// Opens a `.gguf` file (the first of its splits, if there are several), or a directory with
    /// config.json and safetensors files, or with one GGUF.
    ///
    /// model.safetensors.index.json decides which safetensors files count. Without it
    /// model.safetensors does; without that the only one there is.
    ///
    /// The weight files are mapped and must not be changed or cut while the checkpoint is open; to
    /// replace a model, write new files and rename them.
    ///
    /// # Errors
    /// Whatever is wrong with the files; see [`CheckpointError`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Ok(Self { parts: Arc::new(open::path(path)?) })
    }

    /// The configuration of what is at `path`, without weights: a directory with config.json, the
    /// config.json itself, or whatever [`open`](Self::open) takes. No weight file needs to exist.
    ///
    /// [`contains`](Self::contains) then says which biases the configuration asks for, and there
    /// are no tensors to read: whoever loads the model makes up its weights.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_dummy(path: &Path) -> Result<Self, CheckpointError> {
        Ok(Self { parts: Arc::new(dummy::path(path)?) })
    }

    /// Whether there is a configuration only.
    #[must_use]
    pub fn is_dummy(&self) -> bool {
        self.format() == CheckpointFormat::Dummy
    }

    /// A GGUF file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_gguf(bytes: Vec<u8>) -> Result<Self, CheckpointError> {
        let file = open::Named { name: "model.gguf".into(), bytes: FileBytes::Owned(bytes) };
        Ok(Self { parts: Arc::new(open::gguf(vec![file], None)?) })
    }

    /// The text of a config.json, and a safetensors file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_safetensors(config: &str, bytes: Vec<u8>) -> Result<Self, CheckpointError> {
        let config = open::json("config.json", config.as_bytes())?;
        let file = open::Named { name: "model.safetensors".into(), bytes: FileBytes::Owned(bytes) };
        Ok(Self { parts: Arc::new(open::safetensors(vec![(file, None)], &config, None)?) })
    }

    /// The model's shape and constants.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.parts.config
    }

    /// Names of all tensors, as Hugging Face has them, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        if self.is_dummy() {
            return dummy::contains(self.config(), name);
        }
        self.parts.tensors.contains_key(name)
    }

    /// The tensor `name`, in Hugging Face's row order.
    ///
    /// It borrows from the mapping, but for q and k of the GGUF families whose files hold their
    /// rows in another order: those are put right in a copy of their own at each call.
    ///
    /// # Errors
    /// If there is none, or if it is no matrix or vector of a supported format.
    pub fn tensor(&self, name: &str) -> Result<WeightView<'_>, CheckpointError> {
        let entry = self
            .parts
            .tensors
            .get(name)
            .ok_or_else(|| CheckpointError::NoSuchTensor { name: quote(name) })?;
        let (format, rows, cols) = entry
            .layout
            .clone()
            .map_err(|reason| CheckpointError::UnsupportedTensor { name: quote(name), reason })?;
        let bytes = &self.parts.files[entry.file].bytes()[entry.range.clone()];
        let data = match entry.interleaved_heads {
            None => Cow::Borrowed(bytes),
            // A bias is one row, whose elements are ordered like the rows of its matrix.
            Some(heads) => {
                let outputs = if rows == 1 { cols } else { rows };
                Cow::Owned(split_pairs(bytes, outputs, heads))
            }
        };
        Ok(WeightView { name: name.into(), format, rows, cols, data })
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
        if let Some(entry) = self.parts.tensors.get(name) {
            self.parts.files[entry.file].release(entry.range.clone());
        }
    }

    /// The vocabulary that a GGUF carries; `None` also where it is for an algorithm that pagedllm
    /// has not.
    #[must_use]
    pub fn vocab_spec(&self) -> Option<&VocabSpec> {
        self.parts.vocab.as_ref()
    }

    /// Tokenizer files beside the weights.
    #[must_use]
    pub fn tokenizer_files(&self) -> &TokenizerFiles {
        &self.parts.tokenizer_files
    }

    /// Kind of the weight files.
    #[must_use]
    pub fn format(&self) -> CheckpointFormat {
        self.parts.format
    }

    /// Bytes of all tensors, as stored.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.parts.tensors.values().map(|entry| entry.range.len() as u64).sum()
    }

    /// The file's own metadata for people: key and value in file order, long values cut.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.parts.metadata
    }
}

/// Puts rows of interleaved pairs (0, h, 1, h+1, ... for `h` half a head) back into halves.
fn split_pairs(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (row_bytes, half) = (bytes.len() / rows, rows / heads / 2);
    let mut ordered = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(2 * half * row_bytes) {
        for part in 0..2 {
            for pair in 0..half {
                let row = 2 * pair + part;
                ordered.extend_from_slice(&head[row * row_bytes..(row + 1) * row_bytes]);
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::split_pairs;

    #[test]
    fn pairs_become_halves() {
        // Two heads of four rows, two bytes each.
        let file = [0, 0, 2, 2, 1, 1, 3, 3, 4, 4, 6, 6, 5, 5, 7, 7];
        let rows = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
        assert_eq!(split_pairs(&file, 8, 2), rows);
    }
}

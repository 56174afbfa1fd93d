//! What can be wrong with a checkpoint.

use std::path::PathBuf;

/// Why a checkpoint, or a tensor of it, can't be used. Names from files are cut and escaped.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// The path holds no checkpoint, or leaves open which of several is meant.
    #[error("{}: {reason}", path.display())]
    NotACheckpoint {
        /// The path given.
        path: PathBuf,
        /// What is absent or ambiguous.
        reason: String,
    },
    /// A file is damaged, truncated, or says something impossible about itself.
    #[error("{file}: {reason}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// The field, its value and the limit.
        reason: String,
    },
    /// A weight format that is known but not built yet; the name is as its authors write it.
    #[error("unsupported weight format `{format}`")]
    UnsupportedFormat {
        /// `awq`, `gptq`, `Q2_K`, `F8_E4M3`, ...
        format: String,
    },
    /// The file is for a model family that the GGUF name tables do not cover.
    #[error("unsupported architecture `{name}`")]
    UnsupportedArchitecture {
        /// `general.architecture` of the file.
        name: String,
    },
    /// A field of the configuration is absent, of the wrong type, out of range, or unknown.
    #[error("configuration field `{field}`: {reason}")]
    Config {
        /// The field as the file spells it.
        field: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The index promises tensors that its files do not hold.
    #[error("{count} tensors are missing, among them {}", names.join(", "))]
    MissingTensors {
        /// The first few names.
        names: Vec<String>,
        /// How many there are in all.
        count: usize,
    },
    /// No tensor has this name.
    #[error("the checkpoint has no tensor `{name}`")]
    NoSuchTensor {
        /// The name asked for.
        name: String,
    },
    /// The tensor is there, but its shape is not the one that the model needs.
    #[error(
        "tensor `{name}` is {rows} x {cols}; the configuration asks for {want_rows} x {want_cols}"
    )]
    ShapeMismatch {
        /// The tensor.
        name: String,
        /// Rows in the file.
        rows: usize,
        /// Columns in the file.
        cols: usize,
        /// Rows asked for.
        want_rows: usize,
        /// Columns asked for.
        want_cols: usize,
    },
    /// The tensor is no matrix or vector of a known number type.
    #[error("tensor `{name}`: {reason}")]
    UnsupportedTensor {
        /// The tensor.
        name: String,
        /// Its shape or type, and what would do.
        reason: String,
    },
}

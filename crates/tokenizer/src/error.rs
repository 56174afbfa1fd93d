//! What can go wrong with a tokenizer, and with a chat template.

use std::path::PathBuf;

/// Why a tokenizer can't be loaded or can't encode, or why stop strings are refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file can't be read.
    #[error("can't read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file is larger than the limit.
    #[error("{path} has {bytes} bytes; the limit is {limit}")]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest size that is read.
        limit: u64,
    },
    /// A file is not what its name says.
    #[error("can't parse {path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        message: String,
    },
    /// The decoder of `tokenizer.json` is of a kind that can't be streamed exactly.
    #[error(
        "decoder {kind} is not supported (ByteLevel, Metaspace, and Replace with ByteFallback are)"
    )]
    UnsupportedDecoder {
        /// Its `type`.
        kind: String,
    },
    /// The name of the pre-tokenizer in the vocabulary is not known.
    #[error(
        "pre-tokenizer {name:?} is unknown (tokenizer.ggml.pre); a tokenizer.json beside the weights is used instead if it is given"
    )]
    UnknownPreTokenizer {
        /// `tokenizer.ggml.pre`.
        name: String,
    },
    /// An embedded vocabulary contradicts itself.
    #[error("embedded vocabulary is invalid: {message}")]
    InvalidVocab {
        /// Which field, and how.
        message: String,
    },
    /// The text is longer than the limit.
    #[error("text has {bytes} bytes; the limit is {limit}")]
    TextTooLong {
        /// Its size.
        bytes: usize,
        /// The largest size that is encoded.
        limit: usize,
    },
    /// The text can't be encoded.
    #[error("can't encode text: {message}")]
    Encode {
        /// What the tokenizer says.
        message: String,
    },
    /// A stop string is empty, and would match everywhere.
    #[error("stop[{index}] is empty")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
    /// There are more stop strings than the limit.
    #[error("stop has {count} strings; the limit is {limit}")]
    TooManyStops {
        /// How many.
        count: usize,
        /// How many may be.
        limit: usize,
    },
    /// A stop string is longer than the limit.
    #[error("stop[{index}] has {bytes} bytes; the limit is {limit}")]
    StopTooLong {
        /// Its place in the list.
        index: usize,
        /// Its size.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },
}

/// Why a chat template can't be compiled or rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The source is not a template.
    #[error("chat template does not compile: {message}")]
    Compile {
        /// What and where.
        message: String,
    },
    /// The template itself refused the conversation, through `raise_exception`.
    #[error("{message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// The messages, tools or documents don't have the right shape.
    #[error("{message}")]
    Input {
        /// Which field, and how.
        message: String,
    },
    /// The template stumbled over the conversation.
    #[error("chat template failed: {message}")]
    Render {
        /// What and where.
        message: String,
    },
    /// The template ran longer, or wrote more, than a template may.
    #[error("chat template exceeds the limit of {limit} {unit}")]
    TooExpensive {
        /// The limit.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
}

//! A vocabulary that is embedded in a weight file, as plain data between `checkpoint`, which
//! reads it, and `tokenizer`, which runs it.

use crate::TokenId;

/// The algorithm that a vocabulary is for.
#[derive(Clone, Debug, PartialEq)]
pub enum VocabModel {
    /// Byte-level BPE (`tokenizer.ggml.model` = `gpt2`).
    Bpe {
        /// Merges, best first, two pieces separated by a space.
        merges: Vec<String>,
        /// How text is cut before merging.
        pre: PreTokenizer,
    },
    /// SentencePiece with scores and byte fallback (`tokenizer.ggml.model` = `llama`).
    SentencePiece {
        /// One score a token; the higher one merges first.
        scores: Vec<f32>,
        /// Whether a space is put before the text.
        add_space_prefix: bool,
    },
}

/// Name of a pre-tokenizer as GGUF has it (`tokenizer.ggml.pre`), if the file says one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreTokenizer(pub Option<String>);

/// What a token is (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// The unknown token.
    Unknown,
    /// A control token: matched whole in templates, not shown.
    Control,
    /// Added by the model's author: matched whole, shown.
    UserDefined,
    /// In the table, never produced.
    Unused,
    /// One byte of the byte fallback.
    Byte,
}

/// A whole vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct VocabSpec {
    /// The algorithm.
    pub model: VocabModel,
    /// `[vocab]` pieces, in the vocabulary's own spelling.
    pub tokens: Vec<String>,
    /// `[vocab]` kinds.
    pub kinds: Vec<TokenKind>,
    /// Beginning of sequence.
    pub bos: Option<TokenId>,
    /// End of sequence.
    pub eos: Option<TokenId>,
    /// Ends a turn or a message (`eot`, `eom`), beside `eos`.
    pub other_ends: Vec<TokenId>,
    /// Unknown token.
    pub unk: Option<TokenId>,
    /// Padding.
    pub pad: Option<TokenId>,
    /// Whether encoding starts with `bos`.
    pub add_bos: bool,
    /// Whether encoding ends with `eos`.
    pub add_eos: bool,
    /// Jinja chat template, where the file has one.
    pub chat_template: Option<String>,
}
